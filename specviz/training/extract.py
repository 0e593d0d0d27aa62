"""Training data from sequences that exist already: only what the target computes on them is added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specviz.errors import UserError
from specviz.models.slots import hidden_rows, logits_of, padded
from specviz.models.target import Target
from specviz.refusals import refused_as
from specviz.training.generate import top
from specviz.training.shards import TOP, Sample

BATCH_TOKENS = 4096  # per forward pass


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and its answer."""

    ids: list[int]
    prompt_length: int


def read_sequences(file: Path, vocab_size: int, positions: int | None = None) -> list[Sequence]:
    """Raises UserError for a file that is not as `train data --ids` describes it, or whose ids the target has not.

    positions: those that the target was made for, None if it names no limit; no sequence may need more.
    """
    with refused_as(f"{file} can't be read as sequences", "so see `train data --help` for what it should hold"):
        found = _from_npz(file) if file.suffix == ".npz" else _from_jsonl(file)
    if not found:
        raise UserError(f"{file} holds no sequences; give a file with some.")
    for number, each in enumerate(found, 1):
        if not 0 < each.prompt_length < len(each.ids):
            raise UserError(
                f"Sequence {number} of {file} has {each.prompt_length} prompt tokens of {len(each.ids)} in all."
            )
        if not (min(each.ids) >= 0 and max(each.ids) < vocab_size):
            raise UserError(f"Sequence {number} of {file} has ids beyond the target's {vocab_size}; give its own.")
        if positions is not None and len(each.ids) - 1 > positions:  # the last token is never read
            raise UserError(
                f"Sequence {number} of {file} has {len(each.ids):,} tokens, too many for the target's {positions:,} "
                "positions; shorten it or leave it out."
            )
    return found


@torch.inference_mode()
def extract(target: Target, sequences: list[Sequence], hidden_layers: tuple[int, ...]) -> list[Sample]:
    """The sequences in their order, with their hidden rows and the target's most probable tokens."""
    samples: dict[int, Sample] = {}
    for batch in _batches(sequences):
        members = [sequences[index] for index in batch]
        # The last token is never read, as in sampling; padding on the right needs no mask.
        ids = padded([each.ids[:-1] for each in members], target.device)
        output = target.model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True)
        hidden = hidden_rows(output, hidden_layers)
        assert hidden is not None
        for row, (index, each) in enumerate(zip(batch, members, strict=True)):
            rows, first = len(each.ids) - 1, each.prompt_length - 1
            states = output.last_hidden_state[row, first:rows]
            ids_there, probs_there = top(logits_of(target.model, output, states), TOP)
            top_ids = torch.zeros(rows, TOP, dtype=torch.int32)
            top_probs = torch.zeros(rows, TOP, dtype=torch.bfloat16)
            top_ids[first:], top_probs[first:] = ids_there.int().cpu(), probs_there.bfloat16().cpu()
            kept = hidden[row, :rows].cpu().clone()  # not a view of the whole batch
            samples[index] = Sample(each.ids, each.prompt_length, float("nan"), "given", kept, top_ids, top_probs)
    return [samples[index] for index in range(len(sequences))]


def _batches(sequences: list[Sequence]) -> Iterator[list[int]]:
    """Indices of sequences of about the same length, up to BATCH_TOKENS with the padding."""
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index].ids))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(sequences[index].ids) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _from_npz(file: Path) -> list[Sequence]:
    with np.load(file, allow_pickle=False) as arrays:
        ids, lengths, prompts = arrays["ids"], arrays["length"], arrays["prompt_length"]
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (ids, lengths, prompts)):
        raise ValueError("ids, length and prompt_length must be lists of whole numbers")
    ends = np.cumsum(lengths)
    if len(prompts) != len(lengths) or (len(ends) and ends[-1] != len(ids)):
        raise ValueError("the lengths do not add up")
    return [
        Sequence(ids[end - length : end].tolist(), int(prompt))
        for end, length, prompt in zip(ends, lengths, prompts, strict=True)
    ]


def _from_jsonl(file: Path) -> list[Sequence]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Sequence([int(token) for token in line["ids"]], int(line["prompt_length"])) for line in lines]
