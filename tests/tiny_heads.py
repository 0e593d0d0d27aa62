"""Tiny autoregressive heads for the tests: random ones, and ones that know what their target will say.

Also what any head drafts without keeping rows, to compare with.
"""

from __future__ import annotations

from pathlib import Path

import torch
from fakes import tiny_target
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.autoregressive import Autoregressive
from specviz.drafters.base import Context, Weights
from specviz.drafters.eagle import Eagle
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.mtp import Mtp
from specviz.models.target import Target

COMBINES = ("concat", "wide", "joined", "mtp", "mtp-reversed")
WEIGHTS = Weights(Path("nowhere"), "tiny head")  # of heads that are built here


def head_config(target: Target, combine: str = "wide", **changes: object) -> HeadConfig:
    """Settings as public heads of that kind have them, for the target's sizes."""
    layers, width = int(target.config.num_hidden_layers), int(target.config.hidden_size)
    settings = {
        "hidden_size": width,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "hidden_layers": (0, layers // 2, layers - 1) if combine in ("wide", "joined") else (layers,),
        "target_hidden_size": width,
        "vocab_size": target.vocab_size,
        "combine": combine,
        "input_norm": combine != "concat",
        "final_norm": combine != "concat",
        "feedback": "normed" if combine == "joined" or combine.startswith("mtp") else "output",
    }
    return HeadConfig(**{**settings, **changes})


def random_head(
    target: Target, combine: str = "wide", seed: int = 0, draft_ids: list[int] | None = None, **changes: object
) -> Head:
    """A head that knows nothing. draft_ids: the target's ids of its vocabulary, if that is reduced."""
    size = None if draft_ids is None else len(draft_ids)
    head = Head(head_config(target, combine, draft_vocab_size=size, **changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise / 4 if parameter.dim() == 1 else 2 * noise / parameter.shape[-1] ** 0.5)
    if draft_ids is not None:
        head.d2t = torch.tensor(draft_ids)
    return head


def markov_target(vocab_size: int = 31, seed: int = 0, memory: float = 0.0) -> Target:
    """A target whose next token depends on the last one alone: its states are the embeddings, of length sqrt(H).

    The first component of every embedding is 1. memory: how much earlier tokens count all the same.
    """
    target = tiny_target("llama", seed, vocab_size=vocab_size, num_hidden_layers=2, max_position_embeddings=1024)
    with torch.no_grad():
        for layer in target.model.base_model.layers:
            layer.self_attn.o_proj.weight *= memory
            layer.mlp.down_proj.weight *= memory
        embeddings = target.model.get_input_embeddings().weight
        rest = embeddings[:, 1:]
        rest *= ((embeddings.shape[1] - 1) / rest.pow(2).sum(-1, keepdim=True)).sqrt()
        embeddings[:, 0] = 1
    return target


def oracle(target: Target, combine: str = "wide", noise: float = 0.0, seed: int = 0) -> Head:
    """A head that says what a Markov target will. noise: how much it is misled by the states that it reads."""
    head = Head(head_config(target, combine, norm_before_residual=True))
    width = head.config.hidden_size
    layer, identity = head.layers[0], torch.eye(width)
    with torch.no_grad():
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.weight.zero_()
        misled = noise * torch.randn(width, width, generator=torch.Generator().manual_seed(seed)) / width**0.5
        if combine == "wide":
            # Its output is the state plus what the attention gives, and that sees the embedding of its own row only:
            # all queries and keys are the same large vector, which turns with the position.
            attention = layer.self_attn
            for part in (attention.q_proj, attention.k_proj):
                part.weight.zero_()
                part.weight[:, 0] = 1000**0.5
            attention.v_proj.weight.copy_(torch.cat([identity, misled - identity], 1))
            for kv_head in range(2):  # each is read by two query heads, of which the first is enough
                values, reader = slice(16 * kv_head, 16 * kv_head + 16), slice(32 * kv_head, 32 * kv_head + 16)
                attention.o_proj.weight[values, reader] = torch.eye(16)
        else:
            parts = [misled, identity] if combine in ("joined", "mtp-reversed") else [identity, misled]
            (head.join if combine == "joined" else head.fc).weight.copy_(torch.cat(parts, 1))
    return head


def drafter(target: Target, head: Head, kind: type[Autoregressive] | None = None, **settings: object) -> Autoregressive:
    """The drafter that such heads are of, or one of another class."""
    kind = kind or (Mtp if head.config.combine.startswith("mtp") else Eagle)
    return kind(target, WEIGHTS, head=head, **settings)


class Reference:
    """What a head drafts from a context, by one causal pass over all rows for each path; no row is kept."""

    def __init__(self, head: Head, ctx: Context) -> None:
        self.head, self.known = head, {(): (head.fuse(ctx.hidden)[None], ctx.tokens[1:])}

    def logits(self, path: tuple[int, ...]) -> Tensor:
        """Logits [V] after the drafted tokens of the path."""
        features, read = self.known[path]
        output = self.head(features, torch.tensor([read]), torch.arange(len(read))[None])[:, -1:]
        for token in range(self.head.config.vocab_size):
            grown = torch.cat([features, self.head.feedback(output)], 1)
            self.known.setdefault((*path, token), (grown, [*read, token]))
        return self.head.vocabulary.full(self.head.logits(output)[0, 0])


def check(with_head: Autoregressive, ctx: Context, draft: Draft) -> None:
    """All logits of a draft are the reference's."""
    reference = Reference(with_head.head, ctx)
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    found: dict[int, Tensor] = {}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        paths[node] = (*paths[parent], token)
        if parent not in found:
            found[parent] = reference.logits(paths[parent])
        torch.testing.assert_close(draft.logits[node], found[parent], rtol=1e-4, atol=1e-4)


class Checked(Autoregressive):
    """Compares each of its drafts with the reference."""

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        draft = super().propose(ctx, gamma, sampler, rng)
        check(self, ctx, draft)
        return draft
