"""The acceptance rule: which draft tokens the target keeps, and what it says next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import draw, residual, uniform
from specviz.trace import LastKind


@dataclass(frozen=True, slots=True)
class Trial:
    """One draft token that was put to the test."""

    node: int
    p: float  # what was left of the target's probability
    q: float
    r: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft."""

    path: tuple[int, ...]  # accepted nodes, from the root down
    token: int  # the target's own token that follows them
    kind: LastKind
    trials: tuple[Trial, ...]
    left: tuple[Tensor, ...]  # [V] each: what remained of p at the root and after each accepted node


def accept(draft: Draft, p: Tensor, rng: torch.Generator) -> Verdict:
    """Walk down from the last committed token, keeping at most one child at each place.

    A child x drawn from q is accepted with probability min(1, p(x)/q(x)); when it is rejected, p becomes
    norm(max(0, p - q)) and the next sibling is tried. Where no child survives, the correction is drawn from what
    is left of p; after a leaf, the bonus is drawn from p. The output is then distributed exactly as p.

    On a chain this is algorithm 1 of Leviathan et al. 2023 (arXiv 2211.17192); on a tree it is the multi-step
    rule of SpecInfer (Miao et al. 2023, arXiv 2305.09781). With one-hot p it is greedy decoding.

    p: [n+1, V], row 0 after the last committed token, row i+1 after node i.
    """
    p_x, q_x = _drafted(draft, p)
    path: list[int] = []
    trials: list[Trial] = []
    left: list[Tensor] = []
    node, surviving = ROOT, True
    kind: LastKind
    while surviving:
        p_here, kind, surviving = p[node + 1], "bonus", False
        for child in draft.children(node):
            p_child = p_x[child] if kind == "bonus" else float(p_here[draft.tokens[child]])
            r = uniform(rng)
            surviving = r * q_x[child] < p_child  # r < p/q
            trials.append(Trial(child, p_child, q_x[child], r, surviving))
            if surviving:
                path.append(child)
                node = child
                break
            p_here, kind = residual(p_here, draft.q[child]), "correction"
        left.append(p_here)
    return Verdict(tuple(path), draw(p_here, rng), kind, tuple(trials), tuple(left))


def _drafted(draft: Draft, p: Tensor) -> tuple[list[float], list[float]]:
    """p(x) and q(x) of every draft token, read in one transfer."""
    if not len(draft):
        return [], []
    rows = torch.arange(len(draft), device=p.device)
    tokens = torch.tensor(draft.tokens, device=p.device)
    parents = torch.tensor(draft.parents, device=p.device)
    p_x, q_x = torch.stack([p[parents + 1, tokens], draft.q[rows, tokens]]).tolist()
    if not all(q > 0 for q in q_x):  # NaN included
        raise ValueError("a drafter proposed a token to which its q gives no probability")
    return p_x, q_x
