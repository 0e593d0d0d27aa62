"""Whether a target and the model that drafts for it can work together, before the weights of either are downloaded."""

from __future__ import annotations

from specviz import memory
from specviz.drafters.draft_model import compare_vocabularies
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.examine import Examined
from specviz.models.kinds import is_dflash


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
    head_bytes: int = 0,
) -> str | None:
    """Check the tokenizers and the memory of a pair; the answer is what to tell the user, if anything.

    drafter: the model that drafts; None for drafters without one. kind: the drafter's. The other arguments are those of
    `memory.estimate`. A checkpoint that stays quantised in memory is counted with the size of its files.
    Raises UserError if a draft model's tokenizer is not the target's, or if a DFlash model is to draft as a language
    model does, and what `memory.check` raises, with the numbers, if the pair does not fit.
    """
    note = None
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
            head_bytes=head_bytes,
        )
    )
    return note


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
