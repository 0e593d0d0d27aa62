"""From logits to probabilities, and draws from them. The same sampler serves target and drafter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.errors import UserError

COLDEST = 1e-30  # at temperatures below this, quotients of logits would overflow float32
BELOW_ONE = 1 - 2**-52  # times a number, it is always less than that number: rounding runs past no last token
NUCLEUS_HEAD = 1024  # top-p looks at this many candidates before it sorts the whole vocabulary


@dataclass(frozen=True, slots=True)
class Sampler:
    """Settings that turn logits into the distribution tokens are drawn from.

    Applied in this order: logit bias, repetition penalty, temperature, top-k, top-p, min-p. Temperature 0 is
    greedy: a one-hot distribution. Ties at a filter's edge are kept.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off; divides positive and multiplies negative logits of seen tokens
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0, 10)
        _between("top-k", self.top_k, 0, 1_000_000)
        if self.top_k != int(self.top_k):
            raise UserError(f"Top-k is {self.top_k}; give a whole number.")
        _between("min-p", self.min_p, 0, 1)
        _between("repetition penalty", self.repetition_penalty, 0.1, 10)
        _between("top-p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise UserError("top-p must be above 0; use temperature 0 for greedy decoding.")
        for token, bias in self.logit_bias.items():
            _between(f"the logit bias of token {token}", bias, -100, 100)
            if token < 0:
                raise UserError(f"Logit bias names token {token}; token ids start at 0.")

    def probs(self, logits: Tensor, prefix: Sequence[int], draft: Draft | None = None) -> Tensor:
        """The distribution after the prefix and after each draft node.

        logits: [n+1, V], row 0 follows the prefix, row i+1 follows node i and sees the node's ancestors and
        the node itself. Returns float32 [n+1, V], rows summing to 1.
        """
        scores = self.scores(logits, prefix, draft)  # [n+1, V]
        if self.temperature == 0:
            return one_hot(scores.argmax(-1), scores.shape[-1])
        p = torch.softmax(scores / max(self.temperature, COLDEST), -1)
        if 0 < self.top_k < p.shape[-1]:
            p = _keep(p, p >= p.topk(self.top_k, -1).values[:, -1:])
        if self.top_p < 1:
            p = _keep(p, p >= _nucleus_edge(p, self.top_p))
        if self.min_p > 0:
            p = _keep(p, p >= self.min_p * p.amax(-1, keepdim=True))
        return p

    def scores(self, logits: Tensor, prefix: Sequence[int], draft: Draft | None = None) -> Tensor:
        """Logits with bias and repetition penalty applied, float32 [n+1, V]; they order the tokens as `probs` does."""
        scores = logits.float()
        if self.logit_bias:
            ids = torch.tensor(list(self.logit_bias), device=scores.device)
            if int(ids.max()) >= scores.shape[-1]:
                raise UserError(f"Logit bias names token {int(ids.max())}; the vocabulary has {scores.shape[-1]}.")
            bias = torch.tensor(list(self.logit_bias.values()), dtype=torch.float32, device=scores.device)
            scores = scores.index_add(-1, ids, bias.expand(scores.shape[0], -1).contiguous())
        if self.repetition_penalty != 1:
            seen = _seen(scores, prefix, draft)
            penalised = torch.where(scores > 0, scores / self.repetition_penalty, scores * self.repetition_penalty)
            scores = torch.where(seen, penalised, scores)
        return scores


def _seen(scores: Tensor, prefix: Sequence[int], draft: Draft | None) -> Tensor:
    """[n+1, V] bool: tokens that occur before each row's prediction."""
    seen = torch.zeros(scores.shape, dtype=torch.bool)
    seen[0, torch.tensor(list(prefix), dtype=torch.long)] = True
    if draft is not None:
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            seen[node + 1] = seen[parent + 1]
            seen[node + 1, token] = True
    return seen.to(scores.device)


def _nucleus_edge(p: Tensor, top_p: float) -> Tensor:
    """[n+1, 1]: the probability of the last token needed to reach top_p in mass."""
    for size in (min(NUCLEUS_HEAD, p.shape[-1]), p.shape[-1]):
        head = p.topk(size, -1).values
        inside = head.cumsum(-1) - head < top_p  # the mass before a token has not reached top_p yet
        if size == p.shape[-1] or not bool(inside[:, -1].any()):
            break
    return head.gather(-1, inside.sum(-1, keepdim=True) - 1)


def _keep(p: Tensor, mask: Tensor) -> Tensor:
    p = p * mask
    return p / p.sum(-1, keepdim=True)


def one_hot(tokens: Tensor | Sequence[int], vocab_size: int) -> Tensor:
    """float32 [n, V] with probability 1 on each token."""
    index = torch.as_tensor(tokens, dtype=torch.long)
    rows = torch.zeros(len(index), vocab_size, dtype=torch.float32, device=index.device)
    return rows.scatter_(1, index[:, None], 1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)): what a rejected draft token is replaced from. [V]

    Where rounding leaves nothing (p and q equal), p itself: a rejection there has probability zero.
    """
    left = (p - q).clamp_(min=0)
    mass = left.sum()
    return torch.where(mass > 0, left / mass, p)


def uniform(rng: torch.Generator) -> float:
    """One draw from [0, 1)."""
    return torch.rand((), generator=rng, dtype=torch.float64).item()


def draw(p: Tensor, rng: torch.Generator) -> int:
    """One token from p [V], by inverting its distribution function in double precision."""
    cdf = (p if p.device.type != "mps" else p.cpu()).cumsum(-1, dtype=torch.float64)  # mps has no float64
    point = min(uniform(rng), BELOW_ONE) * cdf[-1]
    return int(torch.searchsorted(cdf, point, right=True))


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise UserError(f"{name[:1].upper()}{name[1:]} is {value}; give a number from {low} to {high}.")
