"""`train data`: shards of training data, made one after the other; a run that was stopped goes on after the last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from time import monotonic

from specviz.errors import UserError
from specviz.memory import available_bytes, human, kv_bytes
from specviz.models.target import Target
from specviz.training import shards
from specviz.training.extract import Sequence, extract, read_sequences
from specviz.training.generate import LONGEST_PROMPT, Generator
from specviz.training.output import prepare
from specviz.training.shards import SEQUENCES, About, Sample

Say = Callable[[str], None]


def usual_layers(target: Target) -> tuple[int, ...]:
    """The layers whose hidden states the heads read by default: low, middle and high, and the last after the norm."""
    count = int(target.config.num_hidden_layers)
    return tuple(sorted({min(2, count), count // 2, max(count - 3, 0), count}))


def check_layers(target: Target, layers: tuple[int, ...]) -> None:
    count = int(target.config.num_hidden_layers)
    if not layers or not all(0 <= layer <= count for layer in layers):
        raise UserError(f"The layers are {list(layers)}; this target's hidden states are numbered 0 to {count}.")


def sample_data(
    target: Target,
    out: Path,
    layers: tuple[int, ...],
    *,
    tokens: int,
    slots: int,
    answer_tokens: int,
    seed: int,
    say: Say,
) -> None:
    """Sample conversations from the target until the folder has `tokens` answer tokens of this seed."""
    check_layers(target, layers)
    _check_room(target, slots, answer_tokens)
    prepare(out)
    about = About(target.name, target.weights, layers, seed)
    done = _existing(out, f"seed{seed}", about)
    have = sum(shard.answer_tokens() for shard in done)
    if have >= tokens:
        say(f"{out} has {have} answer tokens of seed {seed} already, so nothing is sampled; ask for more --tokens")
        return
    progress = Progress(have, tokens, say)
    if done:
        say(f"{len(done)} shards with {have} answer tokens are there; going on after them")
    # Sampling can't take up where it stopped, so it begins anew, and must not say the same things again.
    generator = Generator(target, layers, slots=slots, answer_tokens=answer_tokens, seed=derived_seed(seed, len(done)))
    samples = generator.samples()
    for number, part in enumerate(_parts(samples), len(done)):
        shards.write(_file(out, f"seed{seed}", number), part, about.metadata())
        have += sum(len(each.ids) - each.prompt_length for each in part)
        progress.show(have)
        if have >= tokens:
            break


def extract_data(target: Target, out: Path, layers: tuple[int, ...], file: Path, *, seed: int, say: Say) -> None:
    """Shards of the file's sequences, in their order; those that are there already are left. The seed only goes into
    the names. Raises UserError if what is there is not the beginning of the file.
    """
    check_layers(target, layers)
    prepare(out)
    sequences = read_sequences(file, target.vocab_size, target.max_tokens)
    about = About(target.name, target.weights, layers, seed)
    stem = f"ids-{file.stem}-{seed}"
    done = _existing(out, stem, about)
    have = 0
    for shard in done:  # the last may be a short one, of a file that has grown since
        if not _same(shard, sequences[have : have + len(shard.lengths)]):
            raise UserError(f"{shard.path} holds other sequences than {file}; choose another folder.")
        have += len(shard.lengths)
    if have == len(sequences):
        say(f"{out} has all {have} sequences of {file} already")
    progress = Progress(have, len(sequences), say, "sequences")
    for number, start in enumerate(range(have, len(sequences), SEQUENCES), len(done)):
        part = sequences[start : start + SEQUENCES]
        shards.write(_file(out, stem, number), extract(target, part, layers), about.metadata())
        progress.show(start + len(part))


def derived_seed(seed: int, part: int) -> int:
    """Another seed for each continuation; the seed itself for the first."""
    return seed if part == 0 else int.from_bytes(hashlib.sha256(f"{seed} {part}".encode()).digest()[:4], "big")


class Progress:
    """Says how far it is, how fast, and how long it will take."""

    def __init__(self, have: int, wanted: int, say: Say, unit: str = "answer tokens") -> None:
        self.start, self.first, self.wanted, self.say, self.unit = monotonic(), have, wanted, say, unit

    def show(self, have: int) -> None:
        rate = (have - self.first) / (monotonic() - self.start)
        left = max(self.wanted - have, 0) / rate
        self.say(f"{have} of {self.wanted} {self.unit}, {rate:.0f} a second, {clock(left)} left")


def clock(seconds: float) -> str:
    """1:02:03 or 2:03"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _parts(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    while part := list(islice(samples, SEQUENCES)):
        yield part


def _check_room(target: Target, slots: int, answer_tokens: int) -> None:
    """Raise UserError if the caches of so many conversations can't be held, or the target's positions are too few."""
    need = slots * kv_bytes(target.config, LONGEST_PROMPT + answer_tokens + 1, target.dtype.itemsize)
    free = available_bytes(target.device)
    if need > free:
        raise UserError(
            f"{slots} conversations of up to {answer_tokens} answer tokens need {human(need)} of memory and "
            f"{human(free)} is free; give fewer --slots or --answer-tokens."
        )
    if target.max_tokens is not None and LONGEST_PROMPT + answer_tokens > target.max_tokens:
        raise UserError(
            f"Prompts of up to {LONGEST_PROMPT} tokens with answers of up to {answer_tokens} can be longer than the "
            f"{target.max_tokens:,} positions of {target.name}; give fewer --answer-tokens, or --ids."
        )


def _same(shard: shards.Shard, sequences: list[Sequence]) -> bool:
    """Whether the shard is of exactly these sequences."""
    return (
        shard.lengths == [len(each.ids) for each in sequences]
        and shard.prompt_lengths == [each.prompt_length for each in sequences]
        and shard.ids.tolist() == [token for each in sequences for token in each.ids]
    )


def _file(out: Path, stem: str, number: int) -> Path:
    return out / f"{stem}-{number:05}.safetensors"


def _existing(out: Path, stem: str, about: About) -> list[shards.Shard]:
    """The shards that an earlier run left, numbered without a gap. Raises UserError if they are other data's."""
    found: list[shards.Shard] = []
    while (file := _file(out, stem, len(found))).exists():
        found.append(shards.read(file))
        if found[-1].about != about:
            raise UserError(f"{file} was made with {found[-1].about}, not {about}; choose another folder.")
    return found
