"""A head bound to a tiny target, and what it drafts from given states, one pass over all rows for each token."""

from __future__ import annotations

from functools import cache

import torch
from fakes import tiny_target
from published import LAYERS, VOCAB, WIDTH
from torch import Tensor

from specviz.drafters.heads.head import Head
from specviz.models.target import Target

TOKENS = [5, 17, 3, 8, 8, 21]  # those that follow the given states


@cache
def target_of(layers: int = LAYERS) -> Target:
    found = tiny_target("llama", hidden_size=WIDTH, num_hidden_layers=layers, vocab_size=VOCAB)
    found.model.double()
    return found


def given(taps: int) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """States [T, taps * WIDTH], the tokens after them, and the target's embedding and LM head, [VOCAB, WIDTH] each."""
    states = torch.randn(len(TOKENS), taps * WIDTH, generator=torch.Generator().manual_seed(7)).double()
    model = target_of().model
    return states, TOKENS, model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def bound(head: Head) -> Head:
    return head.bind(target_of())


@torch.inference_mode()
def drafted(head: Head, steps: int = 4, perturbed: int | None = None) -> list[Tensor]:
    """Logits [Vd] of `steps` tokens, each the best of its draft vocabulary. perturbed: the tap whose states differ."""
    states, tokens, *_ = given(len(head.config.hidden_layers))
    if perturbed is not None:
        states[:, perturbed * WIDTH : (perturbed + 1) * WIDTH] += 1
    features, tokens, found = head.fuse(states)[None], torch.tensor([tokens]), []
    for _ in range(steps):
        positions = torch.arange(tokens.shape[1])[None]
        causal = torch.full((tokens.shape[1],) * 2, -torch.inf, dtype=features.dtype).triu(1)
        output = head(features, tokens, positions, None, causal)[:, -1:]
        found.append(head.logits(output)[0, 0])
        features = torch.cat([features, head.feedback(output)], 1)
        tokens = torch.cat([tokens, head.vocabulary.to_target(found[-1].argmax())[None, None]], 1)
    return found
