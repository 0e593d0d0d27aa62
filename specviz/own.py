"""A pairing of the user's own models, made from their names and checked before anything large is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import torch

from specviz import memory
from specviz.drafters import SELF, usual_gamma
from specviz.drafters.draft_model import compare_vocabularies
from specviz.drafters.pair import check_pair, check_target, head_bytes
from specviz.errors import UserError
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.examine import Examined
from specviz.models.fetch import Progress
from specviz.models.heads import ExaminedHead
from specviz.models.kinds import is_dflash
from specviz.models.pack import packs
from specviz.models.placement import CONTEXT, GAMMA, free_memory
from specviz.models.sources import drafter_of, examine, examine_drafter, own_model
from specviz.presets import DrafterPreset, ModelSource, Pairing, Setting
from specviz.refusals import refused_as

MAX_BLOCK = 16  # tokens that a DFlash model is asked for at once, where its blocks are larger
EXIT_SHARE = 0.8  # of the layers, where early exit starts out: earlier ones of untrained models guess too poorly


@dataclass(frozen=True, slots=True)
class Own:
    """The pairing, what was found out about its models, and what to tell the user about them, if anything."""

    pairing: Pairing
    target: Examined
    drafter: Examined | None
    note: str | None
    head: ModelSource | None = None  # what drafts, if it is a head


def own_pairing(
    target: str,
    drafter: str = "",
    *,
    kind: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    progress: Progress | None = None,
) -> Own:
    """A target and, unless it is left empty, a model that drafts for it: each a folder, a Hub id or a Hub address.

    kind: of drafter that the model is wanted for; by default the one that its tokenizer allows.
    Raises UserError, one sentence, if either can't be had or can't work here, if they do not fit each other, or if
    they do not fit in memory. Their small files are all that is fetched for that.
    """
    if not target.strip():
        raise UserError("No target is named; give a folder or a Hub id, such as owner/name.")
    with refused_as("These models can't be used", "so choose others"):
        on = pick_device(device)
        precision = pick_dtype(dtype, on)
        found = examine(own_model(target), offline=offline, progress=progress)
        check_target(found)
        if drafter.strip() and kind is not None:
            source = drafter_of(own_model(drafter), kind, offline=offline, progress=progress)
            if source.head:
                return _with_head(found, source, kind, precision, on, offline, progress)
        beside = examine(own_model(drafter), offline=offline, progress=progress) if drafter.strip() else None
        kind = (kind or drafting_kind(found, beside)) if beside else "plain"
        sizes = {"dtype_bytes": precision.itemsize, "context_tokens": CONTEXT, "gamma": GAMMA}
        free, packed = sum(free_memory(on).values()), packs(on, precision)
        note = check_pair(found, beside, kind, **sizes, available=free, packed=packed, head=None)
        return Own(_pairing(found, beside, kind, precision, packed), found, beside, note)


def _with_head(
    target: Examined,
    source: ModelSource,
    kind: str,
    dtype: torch.dtype,
    device: torch.device,
    offline: bool,
    progress: Progress | None,
) -> Own:
    """The target with a head that drafts as this kind; raises UserError or NotEnoughMemory if they do not fit."""
    head, packed = examine_drafter(source, offline=offline, progress=progress), packs(device, dtype)
    assert isinstance(head, ExaminedHead)
    sizes = {"dtype_bytes": dtype.itemsize, "context_tokens": CONTEXT, "gamma": GAMMA}
    free = sum(free_memory(device).values())
    check_pair(target, None, kind, **sizes, available=free, packed=packed, head=head)
    alone = _pairing(target, None, "plain", dtype, packed)
    preset = DrafterPreset(kind, source.name, {"gamma": usual_gamma(kind)}, "Drafts with trained weights.", source)
    more = ceil(head_bytes(target, head) * dtype.itemsize / memory.STORED_BYTES / 1e6)
    pairing = replace(
        alone,
        id=f"{alone.id}-{source.id}",
        title=f"{alone.title} + {source.name}",
        drafters=(preset, *alone.drafters),
        memory_mb=alone.memory_mb + more,
    )
    return Own(pairing, target, None, None, source)


def drafting_kind(target: Examined, drafter: Examined) -> str:
    """How the model can draft: with the target's own tokens, or as one of transformers' drafters.

    `library` translates through text where the tokenizers differ, and takes DFlash models.
    """
    if is_dflash(drafter.config.model_type):
        return "library"
    try:
        compare_vocabularies(target.tokenizer, drafter.tokenizer)
    except UserError:
        return "library"
    return "draft-model"


def _pairing(target: Examined, drafter: Examined | None, kind: str, dtype: torch.dtype, packed: bool) -> Pairing:
    need = memory.estimate(
        target.config,
        drafter_config=drafter.config if drafter else None,
        dtype_bytes=dtype.itemsize,
        context_tokens=CONTEXT,
        gamma=GAMMA,
        weight_bytes=target.weight_bytes if target.compact else None,
        drafter_weight_bytes=drafter.weight_bytes if drafter and drafter.compact else None,
        packed=packed,
    )
    sources = [target.source, *([drafter.source] if drafter else [])]
    return Pairing(
        id="own-" + "-".join(source.id for source in sources),
        title=" + ".join(source.name for source in sources),
        target=target.source,
        drafters=tuple(_drafters(target, drafter, kind)),
        memory_mb=ceil(need.total / 1e6),
        hardware="cpu",  # slow it may be: whoever names a model of their own has chosen that
        chat=target.tokenizer is not None and bool(target.tokenizer.chat_template),
    )


def _drafters(target: Examined, drafter: Examined | None, kind: str) -> Iterator[DrafterPreset]:
    """What can draft for the target, the model that was named for it first."""
    if drafter is not None and kind == "draft-model":
        note = "Drafts with the target's own tokens."
        yield DrafterPreset(kind, drafter.source.name, {"gamma": usual_gamma(kind)}, note, drafter.source)
    elif drafter is not None and is_dflash(drafter.config.model_type):
        note = "Drafts a whole block in one pass, from the target's hidden states."
        gamma = min(int(drafter.config.block_size) - 1, MAX_BLOCK)  # a block begins with the last committed token
        yield DrafterPreset(kind, drafter.source.name, {"method": "dflash", "gamma": gamma}, note, drafter.source)
    elif drafter is not None:
        note = "Its tokenizer is another than the target's, so its drafts are translated through their text."
        method: dict[str, Setting] = {"method": "universal", "gamma": usual_gamma(kind)}
        yield DrafterPreset(kind, drafter.source.name, method, note, drafter.source)
    yield DrafterPreset("plain", "No drafter", {}, "Ordinary decoding, one token per pass.")
    copies = "Copies what followed the same words earlier in the text; needs no weights."
    yield DrafterPreset(
        "ngram", "N-gram lookup", {"ngram_min": 1, "ngram_max": 3, "gamma": usual_gamma("ngram")}, copies
    )
    text = target.config.get_text_config(decoder=True)
    if ahead := getattr(text, "num_mtp_layers", None):
        own = "Layers that were trained along with the target guess ahead from its last hidden state."
        yield DrafterPreset("library", "Built-in MTP", {"method": "mtp", "gamma": int(ahead)}, own)
    layers = int(text.num_hidden_layers)
    if layers > 1:
        exit_layer = max(1, min(layers - 1, round(EXIT_SHARE * layers)))
        leaves = f"The target's own first layers draft; it has {layers}."
        exits: dict[str, Setting] = {"exit_layer": exit_layer, "gamma": usual_gamma("early-exit")}
        yield DrafterPreset("early-exit", "Early exit", exits, leaves)
    twice = "Accepts everything and never pays: a draft token costs as much as a target step."
    yield DrafterPreset(
        "draft-model", "The target itself", {"source": SELF, "gamma": usual_gamma("draft-model")}, twice
    )
