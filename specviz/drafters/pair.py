"""Whether a target and the model that drafts for it can work together, before the weights of either are downloaded."""

from __future__ import annotations

from specviz import memory
from specviz.drafters.draft_model import compare_vocabularies
from specviz.drafters.heads.layouts.settings import TargetSizes, check_fits
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.examine import Examined
from specviz.models.heads import ExaminedHead, cached_layers, share
from specviz.models.kinds import is_dflash

_LANGUAGE = (
    "transformer_layer_config",
    "text_config",
)  # where a config keeps the sizes of the language model, if apart


def check_target(target: Examined) -> None:
    """Raise UserError for a model that can only draft, or that can't take tokens back."""
    if is_dflash(target.config.model_type):
        raise UserError(f"{target.source.name} is a DFlash draft model, which can only draft; name it as the drafter.")
    PrefixCache(target.config.get_text_config(decoder=True))


def check_pair(
    target: Examined,
    drafter: Examined | None,
    kind: str,
    *,
    dtype_bytes: int,
    context_tokens: int,
    gamma: int,
    available: int | None = None,
    packed: bool = False,
    head: ExaminedHead | None = None,
) -> str | None:
    """Check the tokenizers and the memory of a pair; the answer is what to tell the user, if anything.

    drafter: the model that drafts; head: the trained weights that do; None for drafters without. kind: the drafter's.
    The other arguments are those of `memory.estimate`. A checkpoint that stays quantised in memory is counted with the
    size of its files.
    Raises UserError if a draft model's tokenizer is not the target's, if a head was made for a target of other sizes,
    or if a DFlash model is to draft as a language model does, and what `memory.check` raises, with the numbers, if the
    pair does not fit.
    """
    note = None
    if head is not None:
        check_head(target, head)
    if drafter is not None and "draft-model" in kind.split("+"):
        if is_dflash(drafter.config.model_type):
            raise UserError(
                f"{drafter.source.name} is a DFlash draft model, so choose the drafter `library` with the method "
                "`dflash`."
            )
        _check_cache(drafter)
        note = _compare_tokenizers(target, drafter)
    memory.check(
        memory.estimate(
            target.config,
            drafter_config=None if drafter is None else drafter.config,
            dtype_bytes=dtype_bytes,
            context_tokens=context_tokens,
            gamma=gamma,
            available=available,
            weight_bytes=target.weight_bytes if target.compact else None,
            drafter_weight_bytes=drafter.weight_bytes if drafter and drafter.compact else None,
            packed=packed,
            head_bytes=0 if head is None else head_bytes(target, head),
            head_layers=0 if head is None else cached_layers(kind, head.config),
        )
    )
    return note


def check_head(target: Examined, head: ExaminedHead) -> None:
    """Raise UserError if the head's config.json says that it was made for a target of another width or vocabulary.

    Not all of them say; what they leave out shows once their tensors are here.
    """
    config = head.config
    inner = next((each for key in _LANGUAGE if isinstance(each := config.get(key), dict)), config)
    sizes = TargetSizes.of(target.config)
    said = {
        "hidden_size": inner.get("hidden_size") or sizes.hidden_size,
        "vocab_size": inner.get("vocab_size") or sizes.vocab_size,
        "target_hidden_size": config.get("target_hidden_size"),
    }
    check_fits(said, sizes, head.source.name)


def head_bytes(target: Examined, head: ExaminedHead) -> int:
    """Size of the head's weights, which may lie inside the target's own checkpoint."""
    return share(head.weight_bytes, head.folder == target.folder, target.config)


def _check_cache(drafter: Examined) -> None:
    """Raises UserError for a draft model that can't take tokens back."""
    try:
        is_recurrent = PrefixCache(drafter.config.get_text_config(decoder=True)).is_recurrent
    except UserError as error:
        raise UserError(f"{drafter.source.name} can't draft ({str(error).rstrip('.')}).") from error
    if is_recurrent:
        raise UserError(
            f"{drafter.source.name} has recurrent layers, which can't take tokens back, so choose another draft model."
        )


def _compare_tokenizers(target: Examined, drafter: Examined) -> str | None:
    """What differs harmlessly between the two; raises UserError for more than that."""
    try:
        return compare_vocabularies(target.tokenizer, drafter.tokenizer).note
    except UserError as error:
        raise UserError(
            f"{drafter.source.name} has another tokenizer than {target.source.name}, so choose a draft model of the "
            "target's family, or the drafter `library` with the method `universal`, which translates."
        ) from error
