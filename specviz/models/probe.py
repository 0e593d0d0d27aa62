"""Does a model really continue from a rolled-back cache? Tried once, at load, on a handful of tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.placement import compute_dtype, input_device

READ, WRONG, REST = 3, 2, 3  # tokens: read first, read and taken back, read last
TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}  # of the largest logit; 16-bit formats get COARSE
COARSE = 0.1


@torch.inference_mode()
def check_rollback(model: PreTrainedModel, name: str) -> None:
    """Compare a pass over several tokens on a rolled-back cache with one pass over everything.

    Raises UserError for models whose forward pass ignores the cached state when it gets several tokens, keeps a cache
    of its own, or sees later tokens: their drafts would be verified wrongly, and silently.
    """
    config = model.config.get_text_config(decoder=True)
    ids = [1 + index % (int(config.vocab_size) - 1) for index in range(READ + REST)]
    wrong = [ids[-1]] * WRONG
    try:
        whole = model(torch.tensor([ids], device=input_device(model)), use_cache=False).logits[0].float()
        cache = PrefixCache(config)
        first = _read(model, cache, ids[:READ])
        snapshot = cache.snapshot()
        _read(model, cache, wrong)
        cache.crop(READ)
        cache.restore(snapshot)
        parts = torch.cat([first, _read(model, cache, ids[READ:])])
        filled = len(cache) == len(ids)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{name} can't be decoded with a cache of its prefix ({reason[0]}); choose another model."
        ) from error
    allowed = TOLERANCE.get(compute_dtype(model), COARSE) * float(whole.abs().max())
    if not filled or not float((parts - whole).abs().max()) <= allowed:
        raise UserError(
            f"{name} does not continue exactly from a cache after tokens were taken back, so it can't verify drafts; "
            "choose another model."
        )


def _read(model: PreTrainedModel, cache: PrefixCache, tokens: list[int]) -> Tensor:
    """Logits [k, V] after each of these tokens."""
    base, device = len(cache), input_device(model)
    logits: Tensor = model(
        input_ids=torch.tensor([tokens], device=device),
        position_ids=torch.arange(base, base + len(tokens), device=device)[None],
        cache=cache.hf,
        use_cache=True,
    ).logits[0]
    return logits.float()
