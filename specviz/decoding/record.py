"""From tensors to the trace: what a step shows of its decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler
from specviz.decoding.stopping import Cut
from specviz.decoding.verify import Trial, Verdict
from specviz.models.text import TokenText
from specviz.trace import Candidate, Decision, LastToken, Node, Outcome, Step

TOP = 8  # candidates shown per decision
TINY = 1e-30  # keeps the logarithm of a vanished probability finite; its product with that probability is 0


@dataclass(frozen=True, slots=True)
class _Scene:
    """A step as the loop left it."""

    prefix: Sequence[int]  # the tokens before it
    draft: Draft
    logits: Tensor  # [n+1, V]
    raw: Tensor  # [n+1, V] their softmax: the target at temperature 1
    p: Tensor  # [n+1, V]
    verdict: Verdict
    path: tuple[int, ...]  # accepted nodes that were committed
    is_cut: bool  # the run ended before the target's own token


class Recorder:
    """Turns what the loop computed into Steps. Without `detail`, only tokens, outcomes and draws are kept."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, sampler: Sampler, detail: bool) -> None:
        self.text, self.sampler, self.detail = TokenText(tokenizer), sampler, detail
        self.index = 0

    def step(
        self,
        prefix: Sequence[int],
        gamma: int,
        draft: Draft,
        logits: Tensor,
        p: Tensor,
        verdict: Verdict,
        cut: Cut,
        times: dict[str, float | None],
        rerun: int,
    ) -> Step:
        """prefix: the tokens before this step; logits, p: float32 [n+1, V]; the rest as the loop has it."""
        path = verdict.path[: len(cut.committed)]
        last = None
        if len(cut.committed) > len(verdict.path):
            p_last = float(verdict.left[-1][verdict.token])
            last = LastToken(verdict.token, self.text(verdict.token), verdict.kind, p_last)
        raw = torch.softmax(logits, -1) if self.detail else p
        scene = _Scene(prefix, draft, logits, raw, p, verdict, path, last is None)
        self.index += 1
        return Step(
            index=self.index - 1,
            start=len(prefix),
            gamma_asked=gamma,
            gamma_used=draft.depth,
            nodes=self._nodes(scene),
            path=path,
            last=last,
            committed=cut.committed,
            text=cut.text,
            cut=cut.reason,
            rerun=rerun,
            note=draft.note,
            decisions=self._decisions(scene) if self.detail else (),
            **times,
        )

    def _nodes(self, scene: _Scene) -> tuple[Node, ...]:
        draft = scene.draft
        if len(draft) == 0:
            return ()
        trials = {trial.node: trial for trial in scene.verdict.trials}
        depths = draft.depths
        end = len(scene.path) if scene.is_cut else max(depths)  # deeper nodes lie beyond the end of the run
        numbers = _node_numbers(scene) if self.detail else [(None,) * 6] * len(draft)
        nodes = []
        for node, (p_x, q_x, p_raw, q_raw, rank_p, rank_q) in enumerate(numbers):
            trial = trials.get(node)
            token = draft.tokens[node]
            nodes.append(
                Node(
                    token=token,
                    text=self.text(token),
                    parent=draft.parents[node],
                    depth=depths[node],
                    outcome="cut" if depths[node] > end else _outcome(node, scene.path, trial),
                    p=p_x,
                    q=q_x,
                    p_trial=trial.p if trial else None,
                    accept_prob=trial.chance if trial else None,
                    r=trial.r if trial else None,
                    p_raw=p_raw,
                    q_raw=q_raw,
                    rank_p=None if rank_p is None else int(rank_p),
                    rank_q=None if rank_q is None else int(rank_q),
                    by=draft.by[node] if draft.by else None,
                )
            )
        return tuple(nodes)

    def _decisions(self, scene: _Scene) -> tuple[Decision, ...]:
        """One per place on the path at which the target was asked and its answer still counted."""
        draft, logits, verdict, path = scene.draft, scene.logits, scene.verdict, scene.path
        scores = self.sampler.scores(logits, scene.prefix, draft)
        walk = [ROOT, *path][: len(path) if scene.is_cut else None]
        # Only a rejection by a draw takes q from p.
        refused = [trial.node for trial in verdict.trials if not trial.accepted and trial.r is not None]
        rejected = {draft.parents[node] for node in refused}
        decisions = []
        for depth, (place, left) in enumerate(zip(walk, verdict.left, strict=False)):
            row = place + 1
            p, raw = scene.p[row], scene.raw[row]
            first = next(iter(draft.children(place)), None)
            favourites = scores[row].topk(min(TOP, scores.shape[-1]))
            peak = favourites if scores is logits else logits[row].topk(min(2, logits.shape[-1]))
            decisions.append(
                Decision(
                    node=place,
                    p=self._candidates(favourites.indices, p, raw),
                    q=() if first is None else self._top_q(draft, first, [*scene.prefix, *draft.take(path[:depth])]),
                    residual=self._top_of(left, verdict.token) if place in rejected else (),
                    margin=_margin(peak.values),
                    entropy=_entropy(raw, logits[row]),
                    overlap=None if first is None else _overlap(p, draft.q[first], draft.tokens[first]),
                )
            )
        return tuple(decisions)

    def _top_q(self, draft: Draft, node: int, before: Sequence[int]) -> tuple[Candidate, ...]:
        """before: all tokens before the node."""
        q = draft.q[node]
        if draft.logits is None:
            return self._top_of(q, draft.tokens[node])
        logits = draft.logits[node].float()
        order = self.sampler.scores(logits[None], before)[0].topk(min(TOP, len(q)))
        return self._candidates(order.indices, q, torch.softmax(logits, -1))

    def _top_of(self, prob: Tensor, likely: int) -> tuple[Candidate, ...]:
        """The first candidates of a distribution without logits; `likely` may be the only one."""
        if float(prob[likely]) == 1:
            return (Candidate(likely, self.text(likely), 1.0, None),)
        return self._candidates(prob.topk(min(TOP, len(prob))).indices, prob, None)

    def _candidates(self, ids: Tensor, prob: Tensor, raw: Tensor | None) -> tuple[Candidate, ...]:
        """Candidates with these ids; those with no probability at all are left out."""
        rows = [prob[ids], raw[ids]] if raw is not None else [prob[ids]]
        probs, *raws = torch.stack(rows).tolist()
        raws = raws[0] if raws else [None] * len(probs)
        return tuple(
            Candidate(token, self.text(token), _short(probability), None if raw_p is None else _short(raw_p))
            for token, probability, raw_p in zip(ids.tolist(), probs, raws, strict=True)
            if probability > 0 or (raw_p or 0) > 0
        )


def _outcome(node: int, path: tuple[int, ...], trial: Trial | None) -> Outcome:
    if node in path:
        return "accepted"
    return "rejected" if trial else "untested"


def _node_numbers(scene: _Scene) -> list[tuple[float | None, ...]]:
    """Per node p, q, raw p, raw q and the ranks of its token, read in one transfer."""
    draft, p = scene.draft, scene.p
    rows = torch.arange(len(draft), device=p.device)
    tokens = torch.tensor(draft.tokens, device=p.device)
    before = torch.tensor(draft.parents, device=p.device) + 1
    columns = [p[before, tokens], draft.q[rows, tokens]]
    asked = scene.logits[: len(draft)] if draft.is_chain else scene.logits[before]  # a chain needs no copy
    columns += [scene.raw[before, tokens], _ranks(asked, tokens)]
    if draft.logits is not None:
        drafted = draft.logits.float()
        columns += [torch.softmax(drafted, -1)[rows, tokens], _ranks(drafted, tokens)]
    values = torch.stack([column.double() for column in columns], 1).tolist()
    if draft.logits is not None:
        return [(p_x, q_x, p_raw, q_raw, rank_p, rank_q) for p_x, q_x, p_raw, rank_p, q_raw, rank_q in values]
    return [(p_x, q_x, p_raw, None, rank_p, None) for p_x, q_x, p_raw, rank_p in values]


def _ranks(logits: Tensor, tokens: Tensor) -> Tensor:
    """The rank of each token in its row of logits [n, V]; 1 is the largest."""
    larger = torch.empty_like(logits)  # as floats: summing booleans takes four times as long
    torch.gt(logits, logits.gather(1, tokens[:, None]), out=larger)
    return larger.sum(-1) + 1


def _entropy(raw: Tensor, logits: Tensor) -> float:
    """Of raw = softmax(logits) [V], in nats: the logarithm of the normaliser less the mean logit."""
    entropy = float(logits.amax() - raw.amax().log() - torch.dot(raw, logits))
    if math.isfinite(entropy):
        return max(0.0, entropy)
    return -float((raw * raw.clamp_min(TINY).log()).sum())  # some logits are -inf


def _overlap(p: Tensor, q: Tensor, token: int) -> float:
    """sum(min(p, q)); `token` was drawn from q, and is often all that q holds."""
    return float(p[token]) if float(q[token]) == 1 else float(torch.minimum(p, q).sum())


def _margin(largest: Tensor) -> float | None:
    """Between the two largest logits; None where the second one is ruled out."""
    margin = float(largest[0] - largest[1]) if len(largest) > 1 else math.inf
    return margin if math.isfinite(margin) else None


def _short(value: float) -> float:
    """Six significant digits: plenty for a picture, and short in a file."""
    return float(f"{value:.6g}")
