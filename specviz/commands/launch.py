"""`launch`: how other engines are told to decode with the target, drafter and settings of a run here."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

from specviz import trace
from specviz.commands.common import say
from specviz.commands.drafting import OPTIONS, drafter_settings, preset_of, settle_drafter, settled_gamma
from specviz.drafters import SELF
from specviz.errors import UserError
from specviz.models.sources import own_model
from specviz.presets import ModelSource, Pairing, load_pairings, pairing, takes_head
from specviz.serving import Deployment, Launch, launches
from specviz.serving.options import ABOUT, ASKED
from specviz.serving.plans import changed, of_run

SCHEMA = 1
NOT_LAUNCHED = 3  # the exit status where none of the engines has a command for it


def command(options: argparse.Namespace) -> None:
    """Print what each engine is told. Raises UserError for models and settings that can't be."""
    plan = _recorded(options) if options.trace is not None else _named(options)
    plan = changed(plan, {name: getattr(options, name) for name in (*ASKED, *ABOUT)})
    found = launches(plan, options.engine) if options.engine else launches(plan)
    if options.json:  # ASCII, so that no terminal's encoding can spoil it
        print(json.dumps({"schema": SCHEMA, **_asked(plan), "launches": [asdict(each) for each in found]}))
    else:
        print("\n\n".join(map(in_words, found)))
    if not any(each.command for each in found):
        sys.exit(NOT_LAUNCHED)


def _recorded(options: argparse.Namespace) -> Deployment:
    """The deployment of the recorded run; the options may change its draft length."""
    for name in ("drafter", "drafter_path", "gamma_policy", "second_gamma", *OPTIONS):
        if getattr(options, name, None) is not None:
            raise UserError(
                f"--trace brings its drafter and that one's settings; leave out --{name.replace('_', '-')}."
            )
    run = trace.read(options.trace).run
    plan = of_run(run, load_pairings().values())
    return plan if options.gamma is None else replace(plan, gamma=options.gamma)


def _named(options: argparse.Namespace) -> Deployment:
    """The deployment that the options name, what they leave out being as in the pairing's preset."""
    named = options.drafter_path
    if options.target is None and options.pairing is None:
        options.pairing = next(iter(load_pairings()))
    settle_drafter(options)
    chosen = _own_pairing(options.target) if options.target is not None else pairing(options.pairing)
    drafter: ModelSource | None
    if named not in (None, SELF):
        drafter = replace(own_model(named), head=takes_head(options.drafter))
    else:
        preset = preset_of(options.drafter, chosen)
        drafter = preset.model if preset is not None and named != SELF else None
    plan = Deployment(
        chosen.target,
        options.drafter,
        settled_gamma(options, chosen),
        drafter_settings(options, chosen),
        drafter,
        chosen.chat,
        gamma_policy=options.gamma_policy,
    )
    if options.target is not None:
        say(f"{plan.target.name} is not looked at: whether it fits the drafter, and reads chats, is not checked.")
    return plan


def _own_pairing(target: str) -> Pairing:
    """A target of the user's own, of which nothing is read: launching elsewhere takes its name alone."""
    model: ModelSource = own_model(target)
    return Pairing(model.id, model.name, model, (), 0, "accelerator")


def _asked(plan: Deployment) -> dict[str, object]:
    return {
        "target": plan.target.name,
        "drafter": plan.kind,
        "drafts_with": plan.drafter.name if plan.drafter is not None else None,
        "gamma": plan.gamma,
        "settings": dict(plan.settings),
        "rule": plan.rule,
        "gamma_policy": plan.gamma_policy,
        "sampling": asdict(plan.sampling),
        "context": plan.context,
        "tensor_parallel": plan.tensor_parallel,
        "dtype": plan.dtype,
    }


def in_words(launch: Launch) -> str:
    """The command between what it was checked for and what differs; or why there is none.

    All but the command are comments, an example request too, so that what is printed can be run as it is.
    """
    head = _comment(f"{launch.title}: {launch.checked}")
    if launch.command is None:
        return f"{head}\n{_comment(launch.unsupported or '')}"
    lines = [head, launch.command]
    if launch.request is not None:
        lines.append(_comment(f"Example request: POST {launch.request.route}\n{launch.request.body}"))
    return "\n".join([*lines, *(_comment(f"- {sentence}") for sentence in launch.differs)])


def _comment(text: str) -> str:
    """Every line of it as a comment of shells, YAML and Python alike."""
    return "\n".join(f"# {line}" for line in text.splitlines())
