"""Drafters with weights made in code, and a target that they can know by heart."""

from __future__ import annotations

from pathlib import Path

import torch
from fakes import VOCAB, tiny_model
from torch import Tensor, nn

from specviz.drafters import Context, Weights
from specviz.drafters.heads.adapter import ExitAdapter
from specviz.drafters.heads.medusa import MedusaHeads
from specviz.models.target import Target

WIDTH = 32
DRAFT_IDS = torch.tensor([0, 1, 2, 4, 7, 8, 11, 12, 13, 17, 20, 21, 22, 25, 26, 28, 30])
GIVEN = Weights(Path("/nowhere"), "made in code", "sha256:0")


def randomised(module: nn.Module, seed: int = 3) -> nn.Module:
    """Every parameter random, of such a size that each matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 4 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module


def medusa_heads(heads: int = 4, blocks: int = 1, *, own: bool = False, reduced: bool = True) -> MedusaHeads:
    made = MedusaHeads(heads, blocks, WIDTH, VOCAB, len(DRAFT_IDS) if reduced else None, own_lm_heads=own)
    if reduced:
        made.d2t = DRAFT_IDS
    return randomised(made)


def exit_adapter(exit_layer: int = 2, *, reduced: bool = True) -> ExitAdapter:
    made = ExitAdapter(exit_layer, WIDTH, 24, VOCAB, len(DRAFT_IDS) if reduced else None, eps=1e-6)
    if reduced:
        made.d2t = DRAFT_IDS
    return randomised(made)


def context(target: Target, tokens: list[int], layer: int = -1) -> Context:
    """The context of a run that committed these tokens, with the states of one layer."""
    with torch.inference_mode():
        output = target.model(input_ids=torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False)
    return Context(list(tokens), output.hidden_states[layer][0])


def masked(logits: Tensor, ids: Tensor = DRAFT_IDS) -> Tensor:
    """Logits [.., V] with -inf for all tokens but those."""
    outside = torch.ones(logits.shape[-1], dtype=torch.bool)
    outside[ids] = False
    return logits.masked_fill(outside, -torch.inf)


def circle_target() -> Target:
    """A target that goes round: after token t it says t + 1, whatever came before, and its state is t's embedding."""
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.base_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding = torch.eye(VOCAB, WIDTH)
        model.get_input_embeddings().weight.copy_(embedding)
        model.get_output_embeddings().weight.copy_(embedding.roll(1, 0))
    return Target(model, None, name="circle")


def circle_heads(count: int = 4) -> MedusaHeads:
    """Heads that know that target: head i says t + 2 + i from the state of t."""
    heads = MedusaHeads(count, 1, WIDTH, VOCAB, own_lm_heads=True)
    with torch.no_grad():
        for head in range(count):
            heads.lm_heads[head] = torch.eye(VOCAB, WIDTH).roll(2 + head, 0)
    return heads
