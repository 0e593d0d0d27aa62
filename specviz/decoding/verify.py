"""The acceptance rules: which draft tokens the target keeps, and what it says next.

`token` and `block` leave the output distributed exactly as the target's own; `typical` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import draw, residual, uniform
from specviz.errors import UserError
from specviz.trace import LastKind

EPSILON, DELTA = 0.09, 0.3  # of typical acceptance, as Medusa's code has them (posterior_threshold, posterior_alpha)


@dataclass(frozen=True, slots=True)
class Trial:
    """One draft token that was put to the test."""

    node: int
    p: float  # what was left of the target's probability
    q: float
    chance: float  # that it passes the test
    r: float | None  # the uniform draw, below `chance` if it passed; None if nothing was drawn
    accepted: bool  # whether it was kept; under the block rule also where only a later one passed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft."""

    path: tuple[int, ...]  # accepted nodes, from the root down
    token: int  # the target's own token that follows them
    kind: LastKind
    trials: tuple[Trial, ...]
    left: tuple[Tensor, ...]  # [V] each: what remained of p at the root and after each accepted node


Rule = Callable[[Draft, Tensor, torch.Generator], Verdict]
"""rule(draft, p, rng); p: [n+1, V], row 0 after the last committed token, row i+1 after node i."""


def accept(draft: Draft, p: Tensor, rng: torch.Generator) -> Verdict:
    """Walk down from the last committed token, keeping at most one child at each place.

    A child x drawn from q is accepted with probability min(1, p(x)/q(x)); when it is rejected, p becomes
    norm(max(0, p - q)) and the next sibling is tried. Where no child survives, the correction is drawn from what
    is left of p; after a leaf, the bonus is drawn from p. The output is then distributed exactly as p.

    On a chain this is algorithm 1 of Leviathan et al. 2023 (arXiv 2211.17192); on a tree it is the multi-step
    rule of SpecInfer (Miao et al. 2023, arXiv 2305.09781). With one-hot p it is greedy decoding.
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
            trials.append(Trial(child, p_child, q_x[child], min(1.0, p_child / q_x[child]), r, surviving))
            if surviving:
                path.append(child)
                node = child
                break
            kind = "correction"
            if p_child > 0 or q_x[child] < 1:  # else q is one-hot where p has nothing, and takes nothing from it
                p_here = residual(p_here, draft.q[child])
        left.append(p_here)
    return Verdict(tuple(path), draw(p_here, rng), kind, tuple(trials), tuple(left))


def block(draft: Draft, p: Tensor, rng: torch.Generator) -> Verdict:
    """Test every place of a chain, and keep it up to the last one that passes, whatever those before it did.

    Algorithm 2 of Sun et al. 2024 (arXiv 2403.10444). With p_0 = 1 and p_i = min(1, p_(i-1) * p(x_i)/q(x_i)), at least
    i tokens must be kept with probability p_i. The drafter's next token brings p_(i+1) to p_i - m_i on average, where
    m_i = sum(max(0, p_i * p - q)) over the distributions after x_i; so place i passes with h_i = m_i / (m_i + 1 - p_i),
    which makes up for that, and the last place, which nothing follows, with p_i. The correction comes from
    norm(max(0, p_i * p - q)). On average this keeps at least as many tokens as testing one at a time. It stays exact
    where a draft ends early after a token the drafter was not sure of.

    Raises UserError for a tree.
    """
    if not draft.is_chain:
        raise UserError("The block rule verifies chains only; draft a chain, or choose the token rule.")
    p_x, q_x = _drafted(draft, p)
    reach = [1.0]  # p_0, p_1, ...
    for p_i, q_i in zip(p_x, q_x, strict=True):
        reach.append(min(1.0, reach[-1] * p_i / q_i))
    chances = _block_chances(draft, p, reach)
    draws = [uniform(rng) for _ in chances]
    passed = [r < chance for r, chance in zip(draws, chances, strict=True)]
    kept = max((place for place, passes in enumerate(passed, 1) if passes), default=0)
    kind: LastKind = "bonus" if kept == len(draft) else "correction"
    last = p[kept] if kind == "bonus" else residual(reach[kept] * p[kept], draft.q[kept])
    trials = (Trial(node, p_x[node], q_x[node], chances[node], draws[node], node < kept) for node in range(len(draft)))
    return Verdict(tuple(range(kept)), draw(last, rng), kind, tuple(trials), (*p[:kept], last))


def _block_chances(draft: Draft, p: Tensor, reach: list[float]) -> list[float]:
    """h_1, h_2, ..., the last one p_n; the masses are read in one transfer."""
    if not len(draft):
        return []
    inner = reach[1:-1]
    scale = torch.tensor(inner, dtype=p.dtype, device=p.device)[:, None]
    masses = (scale * p[1:-1] - draft.q[1:]).clamp_(min=0).sum(-1).tolist()
    # 0/0: the next place passes for sure, so that this one no longer matters.
    chances = [mass / (mass + 1 - p_i) if mass > 0 or p_i < 1 else 1.0 for mass, p_i in zip(masses, inner, strict=True)]
    return [*chances, reach[-1]]


def typical(draft: Draft, p: Tensor, rng: torch.Generator) -> Verdict:
    """Keep what the target finds not unlikely: of the paths on which every token has
    p(x) > min(EPSILON, DELTA * exp(-entropy(p))) the longest, and of equals the likeliest. The last token is drawn
    from p as it is.

    Not lossless: the output leans towards the drafter. Typical acceptance of Medusa (Cai et al. 2024, arXiv
    2401.10774), here on p as sampled from. With one-hot p it is greedy decoding.
    """
    p_x, q_x = _drafted(draft, p)
    limits = torch.special.entr(p).sum(-1).neg().exp().mul(DELTA).clamp(max=EPSILON).tolist()
    passing = {ROOT: (0, 1.0)}  # depth and joint probability of the nodes that pass with all before them
    for node, parent in enumerate(draft.parents):
        if parent in passing and p_x[node] > limits[parent + 1]:
            depth, joint = passing[parent]
            passing[node] = (depth + 1, joint * p_x[node])
    end = max(passing, key=lambda node: passing[node])
    path = _path_to(draft, end)
    places = (ROOT, *path)
    trials = tuple(
        Trial(node, p_x[node], q_x[node], float(node in path), None, node in path)
        for node, parent in enumerate(draft.parents)
        if parent in places and (node in path or node not in passing)  # another way that is not taken stays untested
    )
    kind: LastKind = "correction" if draft.children(end) else "bonus"
    left = tuple(p[node + 1] for node in places)
    return Verdict(path, draw(left[-1], rng), kind, trials, left)


def _path_to(draft: Draft, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node != ROOT:
        path.insert(0, node)
        node = draft.parents[node]
    return tuple(path)


def _drafted(draft: Draft, p: Tensor) -> tuple[list[float], list[float]]:
    """p(x) and q(x) of every draft token, read in one transfer."""
    if not len(draft):
        return [], []
    places = [*(parent + 1 for parent in draft.parents)], [*range(len(draft))], draft.tokens
    before, nodes, tokens = torch.tensor(places, device=p.device)
    p_x, q_x = torch.stack([p[before, tokens], draft.q[nodes, tokens]]).tolist()
    if not all(q > 0 for q in q_x):  # NaN included
        raise ValueError("a drafter proposed a token to which its q gives no probability")
    return p_x, q_x


RULES: dict[str, Rule] = {"token": accept, "block": block, "typical": typical}
LOSSLESS = frozenset({"token", "block"})
