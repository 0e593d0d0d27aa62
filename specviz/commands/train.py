"""`train`: make training data from a target, and drafters from the data."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch
import transformers

from specviz import loaded
from specviz.commands.common import progress, say
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.own import own_pairing
from specviz.presets import pairing
from specviz.refusals import refused_as
from specviz.training import card
from specviz.training.beginning import Earlier
from specviz.training.data import extract_data, sample_data, usual_layers
from specviz.training.dataset import Dataset
from specviz.training.options import KINDS
from specviz.training.output import writing
from specviz.training.tasks import DraftModelTask, ExitTask, HeadTask, MedusaTask, Task
from specviz.training.trainer import Plan, Progress, train

MOST_PASSES = 1000  # far beyond any draft


def command(options: argparse.Namespace) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.threads is not None:
        if options.threads < 1:
            raise UserError(f"--threads is {options.threads}; give 1 or more.")
        torch.set_num_threads(options.threads)
    if not -(2**63) <= options.seed < 2**63:
        raise UserError(f"--seed is {options.seed}; give a whole number of at most 63 bits.")
    target = _target(options)
    if options.what == "data":
        _data(options, target)
    else:
        _train(options, target)


def _target(options: argparse.Namespace) -> Target:
    where = {"device": options.device, "dtype": options.dtype, "offline": options.offline, "progress": progress()}
    chosen = pairing(options.pairing) if options.target is None else own_pairing(options.target, "", **where).pairing
    target = loaded.load(chosen, **where).target
    target.model.requires_grad_(False)
    return target


def _data(options: argparse.Namespace, target: Target) -> None:
    layers = options.layers or usual_layers(target)
    if options.ids is not None:
        extract_data(target, options.out, layers, options.ids, seed=options.seed, say=say)
        return
    if min(options.tokens, options.slots, options.answer_tokens) < 1:
        raise UserError("--tokens, --slots and --answer-tokens must be at least 1.")
    sample_data(
        target,
        options.out,
        layers,
        tokens=options.tokens,
        slots=options.slots,
        answer_tokens=options.answer_tokens,
        seed=options.seed,
        say=say,
    )


def _train(options: argparse.Namespace, target: Target) -> None:
    data = Dataset(options.data)
    if data.about.weights != target.weights:
        raise UserError(
            f"{options.data} was made with other weights ({data.about.target}) than {target.name} has; make it anew."
        )
    answers = data.answer_tokens
    say(f"{len(data.training):,} conversations to train on, {answers:,} answer tokens, {len(data.held_out)} held out")
    _check(options)
    d2t = data.frequent(options.draft_vocab, sorted(target.stop_tokens), target.vocab_size).to(target.device)
    torch.manual_seed(options.seed)
    begin_as = None if getattr(options, "begin_as", None) is None else Earlier.read(options.begin_as, target, say)
    task = _task(options, target, d2t, begin_as)
    tokens = options.tokens if options.epochs is None else int(options.epochs * answers)
    plan = Plan(
        tokens,
        options.minutes,
        options.batch_tokens,
        options.learning_rate,
        options.checkpoint_minutes,
        options.seed,
        _made_with(options, begin_as),
    )
    done = train(task, data, d2t, target.vocab_size, int(target.config.hidden_size), plan, options.out, say)
    _write(options, target, task, data, done, begin_as)


def _check(options: argparse.Namespace) -> None:
    """Raise UserError for numbers that can't be."""
    counts = ("tokens", "epochs", "minutes", "batch_tokens", "passes", "heads", "blocks", "draft_vocab", "width")
    for name in counts:
        value = getattr(options, name, None)
        if value is not None and not 0 < value < 1e12:
            raise UserError(f"--{name.replace('_', '-')} is {value}; give a number above 0.")
    if getattr(options, "passes", 1) > MOST_PASSES:
        raise UserError(f"--passes is {options.passes}; give up to {MOST_PASSES}.")
    if not 0 <= options.checkpoint_minutes < 1e12:
        raise UserError(f"--checkpoint-minutes is {options.checkpoint_minutes}; give a number of minutes from 0 on.")
    if not 0 < options.learning_rate < 1:
        raise UserError(f"--learning-rate is {options.learning_rate}; give a number between 0 and 1.")


def _task(options: argparse.Namespace, target: Target, d2t: torch.Tensor, begin_as: Earlier | None) -> Task:
    count = int(target.config.num_hidden_layers)
    if options.what == "medusa":
        return MedusaTask(target, d2t, options.heads, options.blocks, begin_as=begin_as)
    # The others are built as the target is, or begin as parts of it: they need parts by the names that Llama's have.
    problem = f"{target.name} is no model that {KINDS[options.what]} can be trained for"
    with refused_as(problem, "so choose one built as Llama is, such as Mistral, Qwen or SmolLM, or train medusa"):
        if options.what == "eagle3":
            layers = options.layers or (min(2, count), count // 2, count)
            if options.layers and list(layers) != sorted(set(layers)):
                raise UserError(f"--layers names {list(layers)}; give each once, from the lowest to the highest.")
            if options.joined and layers[-1] != count:
                raise UserError(f"A --joined head goes on from the target's last state, so end --layers with {count}.")
            if begin_as is not None and not options.joined:
                raise UserError("--begin-as is for --joined heads, which have the form of the head they begin as.")
            joined = options.joined
            return HeadTask(target, d2t, "eagle3", layers, options.passes, joined=joined, begin_as=begin_as)
        if options.what == "mtp":
            return HeadTask(target, d2t, "mtp", (count,), options.passes, begin_as=begin_as)
        if options.what == "draft-model":
            return DraftModelTask(target, d2t, options.layers_from, begin_as=begin_as)
        return ExitTask(target, d2t, options.exit_layer, options.width or int(target.config.hidden_size))


def _write(
    options: argparse.Namespace, target: Target, task: Task, data: Dataset, done: Progress, begin_as: Earlier | None
) -> None:
    folder: Path = options.out / "drafter"
    called, before = _command_line(), None if begin_as is None else begin_as.made
    form = card.FORMS.get("joined" if getattr(options, "joined", False) else options.what, "")
    with writing(folder):
        task.write(folder, card.about(options.what, target, done, options.seed, called, before))
        card.write(folder, options.what, target, data, done, options.seed, called, before, form)
    kind = card.KINDS.get(options.what, options.what)
    say(f"written to {folder}: {KINDS[options.what]}; try it with run --drafter {kind} --drafter-path {folder}")


def _made_with(options: argparse.Namespace, begin_as: Earlier | None) -> str:
    """What must be the same for a run to go on with another's checkpoint."""
    names = ("what", "seed", "draft_vocab", "passes", "joined", "heads", "blocks", "layers", "layers_from")
    values = {name: getattr(options, name, None) for name in (*names, "exit_layer", "width")}
    values |= {"turned": options.what == "medusa", "begin_as": begin_as and begin_as.digest}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None and value is not False)


def _command_line() -> str:
    """As it was given, paths by their last part: where things lay is nobody's business."""
    parts = [Path(part).name if "/" in part else part for part in sys.argv[1:]]
    return shlex.join(["python", "-m", "specviz", *parts])
