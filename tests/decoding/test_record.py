"""Everything a step tells about its decisions, against the same numbers worked out separately in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fakes import SampledTree, TopKTree, byte_tokenizer, reference_decode, reference_logits, tiny_model, tiny_target

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters import DraftModel, NGram, Plain
from specviz.trace import Candidate, Node, Step

PROMPT = [3, 1, 4, 1, 5, 9]
SMALL = {"num_hidden_layers": 2, "spread": 3.0}
TARGET, DRAFTER = tiny_model(**SMALL), tiny_model(seed=1, **{**SMALL, "num_hidden_layers": 1})
DRAFTER.model.embed_tokens, DRAFTER.lm_head = TARGET.model.embed_tokens, TARGET.lm_head  # so that they often agree

GREEDY = Sampler()
SAMPLING = Sampler(0.9, top_k=20, repetition_penalty=1.2, logit_bias={7: 2.0})
SAMPLERS = {"greedy": GREEDY, "sampling": SAMPLING}


# --- the same, worked out naively -----------------------------------------------------------------------------


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@dataclass
class Place:
    """What a model says after some tokens."""

    logits: np.ndarray
    scores: np.ndarray
    p: np.ndarray
    raw: np.ndarray


def place(model, tokens: Sequence[int], sampler: Sampler) -> Place:
    logits = reference_logits(model, list(tokens))[-1].double().numpy()
    scores = logits.copy()
    for token, bias in sampler.logit_bias.items():
        scores[token] += bias
    for token in set(tokens):
        penalty = sampler.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    if sampler.temperature == 0:
        p = (np.arange(len(scores)) == scores.argmax()).astype(float)
    else:
        p = softmax(scores / sampler.temperature)
        if sampler.top_k:
            p[p < np.sort(p)[-sampler.top_k]] = 0
            p /= p.sum()
    return Place(logits, scores, p, softmax(logits))


def rank(logits: np.ndarray, token: int) -> int:
    return int((logits > logits[token]).sum()) + 1


def path_to(step: Step, node: int) -> list[int]:
    """The tokens from the root down to a node, itself included."""
    if node == ROOT:
        return []
    return [*path_to(step, step.nodes[node].parent), step.nodes[node].token]


def children(step: Step, node: int) -> list[Node]:
    return [child for child in step.nodes if child.parent == node]


def rows_of_q(kind: str, here: Place, siblings: list[Node]) -> list[np.ndarray]:
    """The distribution each of these siblings was drawn from."""
    rows, left = [], here.p
    for sibling in siblings:
        if kind == "top-k tree":
            rows.append(np.eye(len(left))[sibling.token])
        else:
            rows.append(left / left.sum())
            left = left * (np.arange(len(left)) != sibling.token)
    return rows


# --- runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target():
    return tiny_target(**SMALL)


MAKE: dict[str, Callable] = {
    "chain": lambda target: DraftModel(target, DRAFTER),
    "sampled tree": lambda target: SampledTree(DRAFTER, (3, 2)),
    "top-k tree": lambda target: TopKTree(DRAFTER, (2, 2, 1)),
}


def run(target, kind: str, sampler: Sampler, seed: int = 1, **settings) -> list[Step]:
    asked = Settings(**{"gamma": 3, "max_new_tokens": 20, "sampler": sampler, "seed": seed, **settings})
    return list(decode(target, MAKE[kind](target), PROMPT, asked))


def before(steps: list[Step], index: int) -> list[int]:
    return [*PROMPT, *(token for step in steps[:index] for token in step.committed)]


CASES = [(kind, name) for kind in MAKE for name in SAMPLERS]
CLOSE = {"abs": 1e-5, "rel": 1e-4}


@pytest.fixture(scope="module", params=CASES, ids=[f"{kind}, {name}" for kind, name in CASES])
def case(request, target) -> tuple[str, Sampler, list[Step]]:
    kind, name = request.param
    return kind, SAMPLERS[name], run(target, kind, SAMPLERS[name])


def test_the_runs_looked_at_hold_all_there_is_to_see(target):
    outcomes, kinds = set(), set()
    for kind, name in CASES:
        for step in run(target, kind, SAMPLERS[name]):
            outcomes |= {node.outcome for node in step.nodes}
            kinds.add(step.last.kind)
    assert outcomes == {"accepted", "rejected", "untested"} and kinds == {"correction", "bonus"}


def test_every_node_tells_p_q_and_ranks(case):
    kind, sampler, steps = case
    for index, step in enumerate(steps):
        prefix = before(steps, index)
        for parent in {node.parent for node in step.nodes}:
            seen = [*prefix, *path_to(step, parent)]
            theirs, mine = place(TARGET, seen, sampler), place(DRAFTER, seen, sampler)
            siblings = children(step, parent)
            for node, q in zip(siblings, rows_of_q(kind, mine, siblings), strict=True):
                token = node.token
                assert node.p == pytest.approx(theirs.p[token], **CLOSE)
                assert node.p_raw == pytest.approx(theirs.raw[token], **CLOSE)
                assert node.rank_p == rank(theirs.logits, token)
                assert node.q == pytest.approx(q[token], **CLOSE)
                if kind == "chain":
                    assert node.q_raw == pytest.approx(mine.raw[token], **CLOSE)
                    assert node.rank_q == rank(mine.logits, token)
                else:  # these drafters show no logits
                    assert node.q_raw is None and node.rank_q is None
                assert node.text == f"⟨{token}⟩"
                assert node.depth == len(path_to(step, parent)) + 1


def test_every_trial_follows_from_p_q_and_r(case):
    kind, sampler, steps = case
    for index, step in enumerate(steps):
        prefix, parent, reached = before(steps, index), ROOT, []
        while True:
            seen = [*prefix, *path_to(step, parent)]
            left, mine = place(TARGET, seen, sampler).p, place(DRAFTER, seen, sampler)
            siblings, survivor, rejected = children(step, parent), None, False
            for node, q in zip(siblings, rows_of_q(kind, mine, siblings), strict=True):
                if survivor is not None:
                    assert (node.outcome, node.p_trial, node.accept_prob, node.r) == ("untested", None, None, None)
                    continue
                chance = min(1.0, left[node.token] / q[node.token])
                assert node.p_trial == pytest.approx(left[node.token], **CLOSE)
                assert node.accept_prob == pytest.approx(chance, **CLOSE)
                assert 0 <= node.r < 1
                assert node.outcome == ("accepted" if node.r < node.accept_prob else "rejected")
                if node.outcome == "accepted":
                    survivor = step.nodes.index(node)
                else:
                    left, rejected = np.maximum(left - q, 0), True
                    left = left / left.sum()
            if survivor is None:
                break
            reached.append(survivor)
            parent = survivor
        assert step.path == tuple(reached)
        assert step.num_accepted == len(reached)
        assert step.last.kind == ("correction" if rejected else "bonus")
        assert step.last.p == pytest.approx(left[step.last.token], **CLOSE)
        assert step.last.text == f"⟨{step.last.token}⟩"
        assert step.committed == (*path_to(step, parent), step.last.token)
        off_path = {node for node in range(len(step.nodes)) if step.nodes[node].parent not in (ROOT, *reached)}
        assert all(step.nodes[node].outcome == "untested" for node in off_path)


def assert_candidates(candidates: Sequence[Candidate], order: np.ndarray, prob: np.ndarray, raw: np.ndarray | None):
    """The first eight by `order`, those that are impossible left out."""
    expected = [token for token in np.argsort(-order, kind="stable")[:8] if prob[token] > 1e-12 or raw is not None]
    assert [candidate.token for candidate in candidates] == expected
    for candidate in candidates:
        assert candidate.text == f"⟨{candidate.token}⟩"
        assert candidate.prob == pytest.approx(prob[candidate.token], **CLOSE)
        assert candidate.raw == (None if raw is None else pytest.approx(raw[candidate.token], **CLOSE))


def test_every_decision_tells_what_target_and_drafter_thought(case):
    kind, sampler, steps = case
    for index, step in enumerate(steps):
        prefix = before(steps, index)
        assert [decision.node for decision in step.decisions] == [ROOT, *step.path]
        for decision in step.decisions:
            seen = [*prefix, *path_to(step, decision.node)]
            theirs, mine = place(TARGET, seen, sampler), place(DRAFTER, seen, sampler)
            siblings = children(step, decision.node)
            rows = rows_of_q(kind, mine, siblings)
            largest = np.sort(theirs.logits)
            assert decision.margin == pytest.approx(largest[-1] - largest[-2], **CLOSE)
            assert decision.entropy == pytest.approx(-(theirs.raw * np.log(theirs.raw)).sum(), **CLOSE)
            assert_candidates(decision.p, theirs.scores, theirs.p, theirs.raw)
            if not siblings:
                assert decision.overlap is None and decision.q == ()
            else:
                assert decision.overlap == pytest.approx(np.minimum(theirs.p, rows[0]).sum(), **CLOSE)
                if kind == "chain":
                    assert_candidates(decision.q, mine.scores, rows[0], mine.raw)
                else:
                    assert_candidates(decision.q, rows[0], rows[0], None)
            left, rejected = theirs.p, False
            for node, q in zip(siblings, rows, strict=True):
                if node.outcome == "rejected":
                    left, rejected = np.maximum(left - q, 0), True
                    left = left / left.sum()
            if rejected:
                assert_candidates(decision.residual, left, left, None)
            else:
                assert decision.residual == ()


def test_steps_follow_each_other(case):
    _, _, steps = case
    for index, step in enumerate(steps):
        assert step.index == index
        assert step.start == len(before(steps, index))
        assert step.gamma_asked == 3
        assert step.gamma_used == max((node.depth for node in step.nodes), default=0) <= 3
        assert step.text == tuple(f"⟨{token}⟩" for token in step.committed)
        assert step.cut == ("length" if step is steps[-1] else None)
        assert len(step.decisions) == len(step.committed)
        assert step.rerun == 0 and step.note is None
    assert steps[0].prefill_s > 0 and all(step.prefill_s is None for step in steps[1:])


def test_the_committed_tokens_have_the_p_of_one_pass_over_the_whole_text(target):
    steps = run(target, "chain", Sampler(1.0))
    tokens = [*PROMPT, *(token for step in steps for token in step.committed)]
    p = torch.softmax(reference_logits(TARGET, tokens), -1).double()  # row i predicts token i+1
    position = len(PROMPT)
    for step in steps:
        for node in step.path:
            assert step.nodes[node].p_raw == pytest.approx(float(p[position - 1, step.nodes[node].token]), **CLOSE)
            assert step.nodes[node].p == pytest.approx(step.nodes[node].p_raw, **CLOSE)
            position += 1
        if step.last.kind == "bonus":
            assert step.last.p == pytest.approx(float(p[position - 1, step.last.token]), **CLOSE)
        position += 1
    assert position == len(tokens)


def test_plain_decoding_tells_the_targets_side(target):
    for step in decode(target, Plain(), PROMPT, Settings(max_new_tokens=3, sampler=Sampler(1.0))):
        [decision] = step.decisions
        assert (step.nodes, step.path, step.gamma_used) == ((), (), 0)
        assert (decision.node, decision.q, decision.residual, decision.overlap) == (ROOT, (), (), None)
        assert len(decision.p) == 8 and decision.entropy > 0
        assert step.last.kind == "bonus"


def test_without_detail_only_tokens_outcomes_and_draws_are_kept(target):
    asked = Settings(gamma=3, max_new_tokens=20, sampler=SAMPLING, seed=1)
    brief = list(decode(target, MAKE["sampled tree"](target), PROMPT, asked, detail=False))
    for step, full in zip(brief, run(target, "sampled tree", SAMPLING), strict=True):
        assert step.decisions == ()
        assert (step.committed, step.path, step.last, step.text) == (full.committed, full.path, full.last, full.text)
        for node, other in zip(step.nodes, full.nodes, strict=True):
            for known in ("token", "parent", "depth", "outcome", "p_trial", "accept_prob", "r"):
                assert getattr(node, known) == getattr(other, known)
            assert (node.p, node.q, node.p_raw, node.q_raw, node.rank_p, node.rank_q) == (None,) * 6


def test_a_token_raised_by_a_bias_leads_the_drafters_list_too(target):
    [step] = decode(
        target,
        MAKE["chain"](target),
        PROMPT,
        Settings(gamma=1, max_new_tokens=2, sampler=Sampler(1.0, logit_bias={30: 100.0})),
    )
    assert step.decisions[0].p[0].token == step.decisions[0].q[0].token == 30


def test_the_drafters_list_is_penalised_for_the_draft_tokens_before_it(target):
    class Twice:
        kind, hidden_layers = "scripted", ()

        def propose(self, ctx, gamma, sampler, rng):
            logits = torch.zeros(2, 31)
            logits[:, 8], logits[:, 6] = 3.0, 2.9
            return Draft.chain([8, 6], one_hot([8, 6], 31), logits)

    sampler = Sampler(repetition_penalty=10.0, logit_bias={8: 20.0})  # makes 8 the first token
    step = next(decode(target, Twice(), PROMPT, Settings(gamma=2, sampler=sampler)))
    assert step.path[0] == 0
    first, second = step.decisions[:2]
    assert [candidate.token for candidate in first.q[:2]] == [8, 6]
    assert [candidate.token for candidate in second.q[:2]] == [6, 8]  # 8 has been said: (3 + 20) / 10 < 2.9


# --- cut steps ------------------------------------------------------------------------------------------------


class Says:
    """Drafts a fixed text, chosen and not drawn; `wrong` replaces the token at one place."""

    kind, hidden_layers = "scripted", ()

    def __init__(self, text: list[int], vocab_size: int = 31, wrong: int | None = None) -> None:
        self.text, self.vocab_size, self.wrong = text, vocab_size, wrong

    def propose(self, ctx, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        tokens = self.text[len(ctx.tokens) - len(PROMPT) :][:gamma]
        if self.wrong is not None and self.wrong < len(tokens):
            tokens[self.wrong] = (tokens[self.wrong] + 1) % self.vocab_size
        return Draft.chain(tokens, one_hot(tokens, self.vocab_size)) if tokens else Draft.empty()


@pytest.fixture(scope="module")
def greedy_text() -> list[int]:
    text = reference_decode(TARGET, PROMPT, 12)
    assert len(set(text[:6])) == 6  # so that each can be the stop token
    return text


@pytest.mark.parametrize("place_of_stop", range(5))
@pytest.mark.parametrize("by", ["stop_token", "stop_string"])
def test_a_stop_inside_the_accepted_draft_cuts_what_follows(target, greedy_text, place_of_stop, by):
    stop = greedy_text[place_of_stop]
    stops = {"stop_tokens": frozenset({stop})} if by == "stop_token" else {"stop_strings": (f"⟨{stop}⟩",)}
    asked = Settings(gamma=5, max_new_tokens=12, **stops)
    [step] = decode(target, Says(greedy_text), PROMPT, asked)
    kept = place_of_stop + 1
    assert step.cut == by
    assert step.committed == tuple(greedy_text[:kept])
    assert [node.outcome for node in step.nodes] == ["accepted"] * kept + ["cut"] * (5 - kept)
    assert step.path == tuple(range(kept)) and step.num_accepted == kept
    assert step.last is None
    assert [decision.node for decision in step.decisions] == [ROOT, *range(kept - 1)]


def test_a_stop_as_the_targets_own_token_cuts_no_draft_token(target, greedy_text):
    asked = Settings(gamma=5, max_new_tokens=12, stop_tokens=frozenset({greedy_text[2]}))
    [step] = decode(target, Says(greedy_text, wrong=2), PROMPT, asked)
    assert step.cut == "stop_token"
    assert [node.outcome for node in step.nodes] == ["accepted", "accepted", "rejected", "untested", "untested"]
    assert step.last.token == greedy_text[2] and step.last.kind == "correction"
    assert len(step.decisions) == len(step.committed) == 3


def test_a_stop_after_the_whole_draft_leaves_the_bonus(target, greedy_text):
    asked = Settings(gamma=5, max_new_tokens=12, stop_tokens=frozenset({greedy_text[5]}))
    [step] = decode(target, Says(greedy_text), PROMPT, asked)
    assert {node.outcome for node in step.nodes} == {"accepted"}
    assert step.last.token == greedy_text[5] and step.last.kind == "bonus"
    assert len(step.decisions) == 6


def test_a_rejected_stop_token_cuts_nothing(target, greedy_text):
    stop = (greedy_text[1] + 1) % 31
    assert stop not in greedy_text[:3]
    asked = Settings(gamma=3, max_new_tokens=12, stop_tokens=frozenset({stop}))
    step = next(decode(target, Says(greedy_text, wrong=1), PROMPT, asked))
    assert [node.outcome for node in step.nodes] == ["accepted", "rejected", "untested"]
    assert step.nodes[1].token == stop and step.cut is None and step.last is not None


def test_a_cut_tree_keeps_what_was_decided_above_the_cut(target, greedy_text):
    first, second = greedy_text[:2]
    wrong = (first + 1) % 31
    tokens = (wrong, first, second, second, wrong)
    draft = Draft(tokens, (ROOT, ROOT, 0, 1, ROOT), one_hot(tokens, 31))

    class Tree(Says):
        def propose(self, ctx, gamma, sampler, rng):
            return draft

    asked = Settings(gamma=2, max_new_tokens=12, stop_tokens=frozenset({first}))
    [step] = decode(target, Tree([]), PROMPT, asked)
    assert [node.outcome for node in step.nodes] == ["rejected", "accepted", "cut", "cut", "untested"]
    assert step.committed == (first,) and step.last is None
    [decision] = step.decisions
    assert decision.residual == (Candidate(first, f"⟨{first}⟩", 1.0, None),)


@pytest.mark.parametrize("detail", [True, False])
@pytest.mark.parametrize(("by", "shown"), [(("ngram", "eagle"), ["ngram", "eagle"]), ((), [None, None])])
def test_who_drafted_a_node_is_passed_on(target, greedy_text, by, shown, detail):
    class Named(Says):
        def propose(self, ctx, gamma, sampler, rng):
            return replace(super().propose(ctx, gamma, sampler, rng), by=by)

    step = next(decode(target, Named(greedy_text), PROMPT, Settings(gamma=2, max_new_tokens=12), detail=detail))
    assert [node.by for node in step.nodes] == shown


def test_the_budget_never_leaves_anything_to_cut(target):
    for budget in range(1, 7):
        steps = run(target, "top-k tree", GREEDY, max_new_tokens=budget)
        assert sum(len(step.committed) for step in steps) == budget
        assert steps[-1].cut == "length" and steps[-1].last is not None
        assert all(node.outcome != "cut" for step in steps for node in step.nodes)


def test_text_comes_from_the_tokenizer():
    tokenizer = byte_tokenizer()
    target = tiny_target(tokenizer=tokenizer, vocab_size=259, **SMALL)
    text = list(tokenizer.encode("Hi 🎈!", add_special_tokens=False))  # the balloon takes four tokens
    pieces = decode(target, Says(text, 259), PROMPT, Settings(gamma=7, max_new_tokens=8, stop_tokens=frozenset()))
    step = next(pieces)
    assert [node.text for node in step.nodes] == ["H", "i", " ", "⟨F0⟩", "⟨9F⟩", "⟨8E⟩", "⟨88⟩"]


def test_a_margin_to_a_token_that_is_ruled_out_is_undefined():
    target = tiny_target()
    only = torch.full((31,), -torch.inf)
    only[4] = 1.0
    target.model.lm_head.register_forward_hook(lambda module, args, out: only.expand_as(out))
    step = next(decode(target, NGram(target), [4, 4, 4], Settings(gamma=2, max_new_tokens=5)))
    assert all(decision.margin is None for decision in step.decisions) and step.num_accepted == 2
