"""A plan: what a pair takes by part, whether that fits, and how long a context or how large a batch would."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from transformers import PretrainedConfig

from specviz import memory
from specviz.errors import NotEnoughMemory, UserError
from specviz.memory import Budget
from specviz.models import placement
from specviz.models.cache import capacity
from specviz.models.skeleton import model_without_storage
from specviz.planning.configs import KnownHead

# Bits per weight of quantised layers, scales included: 8bit has a 16-bit scale for 128 weights, 4bit a 32-bit one for
# 64 (NF4; GGUF's Q4_0 comes to the same), fp8 a 32-bit one for a block of 128 x 128.
BITS = {"8bit": 8.125, "4bit": 4.5, "fp8": 8.002}
ASSUMED = (
    "Quantised are all matrices but embeddings and LM head, with {bits} bits per weight, scales included; the rest and "
    "the caches keep their format."
)
MOST_TOKENS = 10_000_000  # where a model names no limit of its own
MOST_SEQUENCES = 65_536


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafts. config: of a separate model; itself: the target does; mtp: its own prediction layers; heads: trained
    ones. n-gram lookup and plain decoding have none of these.
    """

    name: str
    config: PretrainedConfig | None = None
    itself: bool = False
    mtp: bool = False
    heads: tuple[KnownHead, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """The pair and the formats, whatever the lengths. The fields are those of `memory.estimate`.

    quantisation: a key of BITS, or "none".
    """

    target: PretrainedConfig
    drafting: Drafting
    dtype_bytes: int
    quantisation: str = "none"
    kv_dtype_bytes: int | None = None
    on_cpu: bool = False
    packed: bool = False
    windowed: bool = False

    def need(self, context: int, batch: int, gamma: int, *, with_drafter: bool = True, available: int = 0) -> Budget:
        """What it takes; without the drafter the target alone."""
        drafting = self.drafting if with_drafter else Drafting("none")
        return memory.estimate(
            self.target,
            drafter_config=drafting.config,
            itself=drafting.itself,
            mtp=drafting.mtp,
            dtype_bytes=self.dtype_bytes,
            context_tokens=context,
            gamma=gamma,
            available=available,
            weight_bytes=self._stored(self.target),
            drafter_weight_bytes=None if drafting.config is None else self._stored(drafting.config),
            head_bytes=sum(head.size for head in drafting.heads),
            head_layers=sum(head.layers for head in drafting.heads),
            head_states=sum(head.states for head in drafting.heads),
            packed=self.packed,
            batch=batch,
            kv_dtype_bytes=self.kv_dtype_bytes,
            on_cpu=self.on_cpu,
            windowed=self.windowed,
        )

    def _stored(self, config: PretrainedConfig) -> int | None:
        return None if self.quantisation == "none" else quantised_bytes(config, self.quantisation, self.dtype_bytes)

    def kv_row(self, *, drafter: bool) -> int:
        """Bytes that one more token takes in the caches of the target, or of what drafts, one sequence at a time.

        Without a window: what a token costs until one is full.
        """
        both = replace(self, on_cpu=True, windowed=False)  # counts rows, not whole buffers
        longer, shorter = (both.need(length, 1, 0, with_drafter=drafter).kv for length in (2, 1))
        return longer - shorter if not drafter else longer - shorter - self.kv_row(drafter=False)


class Parts(NamedTuple):
    """Bytes of one of the two models, or of both."""

    weights: int
    kv: int
    logits: int
    activations: int
    runtime: int
    headroom: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pair takes at one context and batch.

    available: bytes there are for it, and `counter`, which counter says so. notes: what was assumed. spread: where its
    parts would lie, if on several devices. largest_context, largest_batch: with which it still fits, the other as
    asked; 0 if with none.
    """

    target: Parts
    drafter: Parts
    both: Parts
    kv_row_target: int
    kv_row_drafter: int
    available: int
    counter: str
    fits: bool
    largest_context: int
    largest_batch: int
    limit: int | None  # tokens that the target reads at most, if that is known
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def kv_ratio(self) -> float | None:
        """Cache of both over that of the target alone, per token."""
        return (self.kv_row_target + self.kv_row_drafter) / self.kv_row_target if self.kv_row_target else None

    @property
    def context_in_words(self) -> str:
        """The largest context, and what does not let it be larger."""
        if not self.largest_context:
            return "none fits"
        tokens = f"{self.largest_context:,} tokens"
        if self.largest_context == self.limit:
            return f"{tokens}, which is all that the model reads"
        unknown = "" if self.limit else "; how much the model reads is not known here"
        return f"{tokens}, by memory{unknown}"

    @property
    def batch_in_words(self) -> str:
        """The largest batch."""
        return f"{self.largest_batch:,} sequences" if self.largest_batch else "none fits"

    @property
    def verdict(self) -> str:
        """One sentence."""
        need, there = memory.human(self.both.total), memory.human(self.available)
        if not self.fits:
            return f"Does not fit: it needs {need}, headroom included, and there is {there}."
        return f"Fits: it needs {need} of {there}, of which {memory.human(self.both.headroom)} are to stay free."


def plan(
    spec: Spec,
    context: int,
    batch: int,
    gamma: int,
    *,
    available: int,
    counter: str,
    devices: tuple[int, int] | None = None,
    limit: int | None = None,
) -> Plan:
    """The plan for a budget of `available` bytes, or for several GPUs: how many, and the bytes of each.

    gamma: draft length, or the nodes of a tree. limit: tokens that the target reads at most, if that is known. Raises
    UserError for a model that transformers can't build.
    """
    try:
        alone = spec.need(context, batch, gamma, with_drafter=False)
        both = spec.need(context, batch, gamma)
    except ValueError as error:
        raise UserError(f"This pair can't be planned ({error}), so choose other models.") from error
    if devices is not None:
        available = math.prod(devices)
    notes = [_assumed(spec)] if spec.quantisation != "none" else []
    fits = both.total <= available
    if devices is not None and fits:
        fits, note = _spread(spec, context * batch, gamma, alone, both, devices)
        notes.append(note)

    def still(context: int, batch: int) -> bool:
        return spec.need(context, batch, gamma).total <= available

    made = Plan(
        target=_parts(alone),
        drafter=_difference(both, alone),
        both=_parts(both),
        kv_row_target=spec.kv_row(drafter=False),
        kv_row_drafter=spec.kv_row(drafter=True),
        available=available,
        counter=counter,
        fits=fits,
        largest_context=largest(lambda length: still(length, batch), limit or MOST_TOKENS),
        largest_batch=largest(lambda count: still(context, count), MOST_SEQUENCES),
        limit=limit,
        notes=tuple(notes),
    )
    return replace(made, hints=tuple(_hints(made, spec, context, batch, gamma)))


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` that fits, where none fits after one that doesn't; 0 if even 1 does not."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def quantised_bytes(config: PretrainedConfig, quantisation: str, dtype_bytes: int) -> int:
    """Size of the weights with their matrices quantised, embeddings and LM head apart."""
    return math.ceil(_matrices(config) * BITS[quantisation] / 8) + dtype_bytes * (
        memory.count_parameters(config) - _matrices(config)
    )


@memory.remembered
def _matrices(config: PretrainedConfig) -> int:
    """Parameters in matrices other than embeddings and LM head."""
    model = model_without_storage(config)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    kept = {id(weight) for module in ends if module is not None for weight in module.parameters()}
    return sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and id(weight) not in kept)


def _assumed(spec: Spec) -> str:
    return ASSUMED.format(bits=BITS[spec.quantisation])


def _parts(need: Budget) -> Parts:
    weights = need.weights_target + need.weights_drafter
    return Parts(weights, need.kv, need.logits, need.activations, need.runtime, need.headroom)


def _difference(both: Budget, alone: Budget) -> Parts:
    """What the drafter adds. Its headroom can be below 0: where more is foreseen, less is kept for what is not."""
    return Parts(*(more - less for more, less in zip(_parts(both), _parts(alone), strict=True)))


def _spread(
    spec: Spec, tokens: int, gamma: int, alone: Budget, both: Budget, devices: tuple[int, int]
) -> tuple[bool, str]:
    """Whether the target's parts find room on the GPUs beside the drafter, which lies on the first; and where."""
    count, size = devices
    gpus = {torch.device("cuda", index): size for index in range(count)}
    dtype = torch.float32 if spec.dtype_bytes == 4 else torch.bfloat16
    try:
        placed = placement.plan(
            spec.target,
            dtype,
            torch.device("cuda", 0),
            name="The target",
            budgets=gpus,
            weight_bytes=alone.weights_target,
            context_tokens=tokens,
            gamma=gamma,
            reserve=both.total - alone.total,
        )
    except NotEnoughMemory:
        return False, "No way was found to share the target out so that each part fits on its GPU."
    return True, " ".join(placed.notes) or "Everything fits on one of the GPUs."


def _hints(made: Plan, spec: Spec, context: int, batch: int, gamma: int) -> list[str]:
    """What would help, and what to mind."""
    hints = []
    if made.limit and context > made.limit:
        hints.append(f"The model reads {made.limit:,} tokens at most, so a context of {context:,} is of no use to it.")
    rows = context + gamma + 1
    if not (spec.on_cpu or spec.windowed) and capacity(rows) > 1.5 * rows:
        hints.append(
            f"Buffers of the caches grow in powers of two: for {rows:,} rows they have room for {capacity(rows):,}. "
            f"With {capacity(rows) // 2 - gamma - 1:,} tokens of context they would be half as large."
        )
    if not made.fits:
        if made.largest_context:
            hints.append(f"It fits with at most {made.largest_context:,} tokens of context at this batch.")
        for name in () if spec.quantisation != "none" else ("8bit", "4bit"):
            smaller = replace(spec, quantisation=name, packed=False).need(context, batch, gamma).total
            words = "would fit" if smaller <= made.available else "would still not fit"
            hints.append(f"Quantised to {name} it needs {memory.human(smaller)} and {words}.")
        if made.target.total <= made.available:
            hints.append("The target alone fits: n-gram lookup takes no memory, and a trained head little.")
    ratio = made.kv_ratio
    if ratio is not None and ratio >= 1.5:
        hints.append(
            f"The drafter's cache makes that of the pair {ratio:.2f} times the target's own: at long contexts and "
            "large batches it takes the room of sequences. A trained head has a cache of one layer."
        )
    return hints
