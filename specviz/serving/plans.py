"""Deployments out of what the project knows: a pairing with one of its drafters, or a recorded run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from specviz.drafter_settings import bare
from specviz.presets import DrafterPreset, HubSource, ModelSource, Pairing, nearest, slug, takes_head
from specviz.serving.deployment import Deployment, Sampling
from specviz.trace import Run

JOINED = " + "  # between the names of what the parts of a combination draft with
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
NOT_OF_DRAFTER = ("gamma", "gamma_policy")  # among a preset's defaults


def of_preset(pairing: Pairing, preset: DrafterPreset, gamma: int, settings: Mapping[str, Any]) -> Deployment:
    """The pairing's target with that drafter. settings: what is to be otherwise than in the preset."""
    usual = {name: value for name, value in preset.defaults.items() if name not in NOT_OF_DRAFTER}
    return Deployment(
        pairing.target,
        preset.kind,
        gamma,
        {**usual, **settings},
        preset.model,
        pairing.chat,
        gamma_policy=str(preset.defaults.get("gamma_policy", "fixed")),
    )


def of_run(run: Run, pairings: Iterable[Pairing]) -> Deployment:
    """The target, drafter and settings of a recorded run.

    Its models are looked for by their names among the pairings'. Others count as ids on the Hub if their names look
    like such, else as folders.
    """
    pairing = next((each for each in pairings if each.target.name == run.target), None)
    target = pairing.target if pairing is not None else _named(run.target, head=False)
    known = {sampling.name for sampling in fields(Sampling)}
    drawn = {name: value for name, value in run.sampler.items() if name in known}
    left_out = {"logit_bias": run.sampler.get("logit_bias"), "stop": run.stop_strings}
    return Deployment(
        target,
        run.drafter,
        run.gamma,
        run.drafter_settings,
        _drafter(run, target, pairing),
        run.chat_template,
        run.rule,
        run.gamma_policy,
        Sampling(**drawn, seed=run.seed, max_new_tokens=run.max_new_tokens),
        dtype=run.dtype,
        notes=tuple(
            f"The example request leaves out what the run had as {name}; send it under that name."
            for name, value in left_out.items()
            if value
        ),
    )


def _drafter(run: Run, target: ModelSource, pairing: Pairing | None) -> ModelSource | None:
    """The model or head that drafted, unless it was the target itself or is shipped with this project."""
    source = next((str(value) for name, value in run.drafter_settings.items() if bare(name) == "source"), "")
    named = [name.removesuffix(" (the drafter)") for name in source.split(JOINED) if name not in ("", "self")]
    if pairing is not None:
        models = [preset.model for preset in pairing.drafters if preset.model is not None]
        if found := next((model for model in models if model.name in named), None):
            return found
        offered = nearest(pairing, run.drafter, run.drafter_settings)
        if not named and offered is not None:
            return offered.model
    others = [name for name in named if not name.startswith(f"{target.id}/")]
    return _named(others[0], head=takes_head(run.drafter)) if others else None


def _named(name: str, head: bool) -> ModelSource:
    """A model of which the name is all that is known: "owner/name", "owner/name@revision", or a folder's."""
    repo, _, revision = name.partition("@")
    if _HUB_ID.fullmatch(repo):
        return ModelSource(slug(name), name, "unknown", hub=HubSource(repo, revision or "main", None), head=head)
    return ModelSource(slug(Path(name).name), name, "unknown", path=Path(name), head=head)


def changed(plan: Deployment, asked: Mapping[str, Any]) -> Deployment:
    """The deployment with other sampling, rule, context, GPUs or dtype where they are asked for; None is not asked."""
    given = {name: value for name, value in asked.items() if value is not None}
    of_sampling = {each.name for each in fields(Sampling)}
    sampling = replace(plan.sampling, **{name: value for name, value in given.items() if name in of_sampling})
    return replace(plan, sampling=sampling, **{name: value for name, value in given.items() if name not in of_sampling})
