"""Fair timing: what is warmed up, what is timed, in which order, and what the comparison says."""

from dataclasses import replace

import pytest
import torch
from fakes import reference_decode, tiny_model, tiny_target
from traces import step as hand_made

from specviz import measure
from specviz.comparison import Comparison, Phases
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import DraftModel, NGram, Plain
from specviz.errors import Cancelled
from specviz.measure import compare, cost_ratio, first_divergence, verify_cost, where_time_goes
from specviz.trace import Step

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def target():
    return tiny_target("llama", 3)


class Clockwork:
    """A clock that only decode runs move: a known number of seconds per verify pass."""

    def __init__(self, monkeypatch, target, seconds_per_pass):
        self.now, self.runs, self.phased = 0.0, [], []
        verify, prefill = target.verify, target.prefill

        def timed_verify(*arguments):
            self.now += seconds_per_pass
            return verify(*arguments)

        def counted_prefill(*arguments):
            self.now += 100.0  # must not be part of any result
            return prefill(*arguments)

        monkeypatch.setattr(target, "verify", timed_verify)
        monkeypatch.setattr(target, "prefill", counted_prefill)
        monkeypatch.setattr(measure, "perf_counter", lambda: self.now)
        monkeypatch.setattr("specviz.decoding.clock.perf_counter", lambda: self.now)

        def logged(target, drafter, *rest, phases, **options):
            (self.phased if phases else self.runs).append(drafter.kind)
            return decode(target, drafter, *rest, phases=phases, **options)

        monkeypatch.setattr(measure, "decode", logged)


def test_ratio_is_passes_when_a_pass_costs_the_same(monkeypatch, target):
    clock = Clockwork(monkeypatch, target, 1.0)
    settings = Settings(gamma=3, max_new_tokens=16)
    *_, result = compare(target, DraftModel(target, target.model), PROMPT, settings, repeats=4)
    assert result.tokens == 16 and result.identical is True and result.divergence is None
    assert result.plain_s == (1.0,) * 4  # one pass a token, prefill not counted
    assert result.speculative_s == (4 / 16,) * 4
    assert result.speedup == 4.0 and result.spread == (4.0, 4.0) and result.plain_tokens_per_s == 1.0
    warm_up, timed = clock.runs[:2], clock.runs[2:]
    assert warm_up == ["draft-model", "plain"]
    assert timed == ["plain", "draft-model", "draft-model", "plain"] * 2, "interleaved, the order alternating"
    assert clock.phased == ["draft-model", "plain"], "after all that is timed"


def test_a_lap_tells_when_each_step_was_done_and_what_it_said(monkeypatch, target):
    Clockwork(monkeypatch, target, 0.5)
    drafter = DraftModel(target, target.model)
    settings = Settings(gamma=3, max_new_tokens=10)
    *_, result = compare(target, drafter, PROMPT, settings, repeats=2)
    steps = list(decode(target, drafter, PROMPT, settings))
    assert [len(step.committed) for step in steps] == [4, 4, 2]
    for lap in result.speculative:
        assert lap.seconds == (0.5, 1.0, 1.5) and lap.texts == tuple(step.text for step in steps)
    said = tuple((piece,) for step in steps for piece in step.text)
    for lap in result.plain:
        assert lap.seconds == tuple(0.5 * (place + 1) for place in range(10)) and lap.texts == said


def test_phases_come_last_and_only_if_wanted(monkeypatch, target):
    """Drafting and deciding cost nothing on this clock, a verify pass one second whatever its width."""
    Clockwork(monkeypatch, target, 1.0)
    drafter, settings = DraftModel(target, target.model), Settings(gamma=3, max_new_tokens=10)
    *earlier, last = compare(target, drafter, PROMPT, settings, repeats=2)
    assert all(result.phases is None for result in earlier)
    assert replace(last, phases=None) == earlier[-1], "a phased run changes no measured speed"
    found = last.phases
    assert (found.draft_s, found.verify_s, found.decide_s) == (0.0, 0.3, 0.0)
    assert (found.plain_verify_s, found.plain_decide_s) == (1.0, 0.0)
    assert (found.cost_ratio, found.verify_cost) == (0.0, 1.0)
    assert found.gamma_used == pytest.approx((3 + 3 + 1) / 3)
    assert found.acceptance_length == found.promised == pytest.approx(1 + (3 + 3 + 1) / 3)
    *_, without = compare(target, drafter, PROMPT, settings, repeats=2, phases=False)
    assert without == earlier[-1]


def test_yields_after_each_repeat(target):
    results = list(compare(target, NGram(target), PROMPT, Settings(max_new_tokens=6), repeats=3))
    repeats = [result.repeats for result in results]
    assert repeats == [0, 0, 1, 2, 3, 3], "once for each warm-up, then for each repeat, then with the phases"


@pytest.mark.parametrize("phases", [False, True])
def test_equal_token_counts_though_the_output_stopped_early(monkeypatch, target, phases):
    output = reference_decode(target.model, PROMPT, 12)
    stop = frozenset({output[5]})
    length = output.index(output[5]) + 1
    counts = []

    def counted(*arguments, **options):
        counts.append(0)
        for step in decode(*arguments, **options):
            counts[-1] += len(step.committed)
            yield step

    monkeypatch.setattr(measure, "decode", counted)
    settings = Settings(max_new_tokens=12, stop_tokens=stop)
    *_, result = compare(target, NGram(target), PROMPT, settings, repeats=2, phases=phases)
    assert counts == [length] * (8 if phases else 6) and result.tokens == length
    assert {lap.tokens for lap in (*result.plain, *result.speculative)} == {length}


def test_nothing_to_time(target):
    *_, result = compare(target, NGram(target), PROMPT, Settings(max_new_tokens=0))
    assert result == Comparison(0, (), (), True, None)


def test_sampling_is_not_compared(target):
    settings = Settings(max_new_tokens=6, sampler=Sampler(temperature=1.0))
    *_, result = compare(target, NGram(target), PROMPT, settings, repeats=1)
    assert result.identical is None and result.divergence is None and result.repeats == 1


def test_stop_is_obeyed_within_one_step(target):
    steps = 0

    def should_stop():
        nonlocal steps
        steps += 1
        return steps == 5

    with pytest.raises(Cancelled):
        list(compare(target, Plain(), PROMPT, Settings(max_new_tokens=50), should_stop=should_stop))
    assert steps == 5
    assert len(list(decode(target, Plain(), PROMPT, Settings(max_new_tokens=3)))) == 3, "the target is usable again"


def test_stop_is_obeyed_in_the_phased_runs_too(target):
    timed = compare(target, Plain(), PROMPT, Settings(max_new_tokens=5), repeats=1, should_stop=lambda: stopped)
    stopped = False
    for result in timed:
        stopped = result.repeats == 1
        if stopped:
            break
    with pytest.raises(Cancelled):
        next(timed)


def test_synchronised_at_the_ends_only(monkeypatch, target):
    calls: list[torch.device] = []
    monkeypatch.setattr(measure, "synchronise", calls.append)
    monkeypatch.setattr("specviz.decoding.clock.synchronise", lambda device: None)
    list(compare(target, NGram(target), PROMPT, Settings(max_new_tokens=9), repeats=1))
    assert len(calls) == 2 * 4  # two warm-up runs and two timed ones


def test_first_divergence_names_token_and_margin(target):
    plain = reference_decode(target.model, PROMPT, 6)
    other = [*plain[:3], (plain[3] + 1) % 31, *plain[4:]]
    found = first_divergence(target, PROMPT, plain, other, Settings())
    assert (found.index, found.plain, found.speculative) == (3, plain[3], other[3])
    with torch.inference_mode():
        logits = target.model(torch.tensor([[*PROMPT, *plain[:3]]])).logits[0, -1]
    assert found.margin == pytest.approx(float(logits[plain[3]] - logits[other[3]]), abs=1e-4)
    assert found.margin > 0 and not found.near_tie
    assert first_divergence(target, PROMPT, plain, list(plain), Settings()) is None


def test_divergence_in_length(target):
    plain = reference_decode(target.model, PROMPT, 6)
    found = first_divergence(target, PROMPT, plain, plain[:4], Settings())
    assert (found.index, found.plain, found.speculative, found.margin) == (4, plain[4], None, None)


def test_a_near_tie_is_called_one():
    target = tiny_target("llama", 3)
    plain = reference_decode(target.model, PROMPT, 4)
    rival = (plain[2] + 1) % 31
    with torch.no_grad():  # two tokens with the same row of the LM head have the same logit
        head = target.model.lm_head.weight
        head[rival] = head[plain[2]] * (1 + 1e-7)
    found = first_divergence(target, PROMPT, plain, [*plain[:2], rival, plain[3]], Settings())
    assert found.near_tie and abs(found.margin) < 1e-3


def test_cost_ratio_leaves_the_first_step_out(target):
    drafter = DraftModel(target, tiny_model("llama", 9))
    steps = list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=12), phases=True))
    drafted = [step for step in steps[1:] if step.gamma_used]
    seconds = sum(step.draft_s for step in drafted) / sum(step.gamma_used for step in drafted)
    plain = list(decode(target, Plain(), PROMPT, Settings(max_new_tokens=6), phases=True))
    single = sorted(step.verify_s for step in plain)
    assert cost_ratio(steps, plain) == pytest.approx(seconds / ((single[2] + single[3]) / 2))
    assert cost_ratio(steps[:1], plain) is None and cost_ratio(steps, []) is None
    assert cost_ratio(plain, plain) is None, "nothing was drafted"
    assert verify_cost(steps, plain) > 0 and verify_cost(plain, plain) is None


def test_cost_ratio_leaves_out_where_a_drafter_of_several_reads_the_prompt():
    """It does when its turn comes, and again after the run was left and gone on with."""

    def drafted(by: str, seconds: float, **changed: float) -> Step:
        made = hand_made("aa", draft_s=seconds, verify_s=1.0, **changed)
        return replace(made, nodes=tuple(replace(node, by=by) for node in made.nodes))

    nothing = hand_made("", draft_s=30.0, verify_s=1.0)
    steps = [
        drafted("ngram", 0.5, prefill_s=1.0),
        nothing,
        drafted("eagle", 50.0),
        drafted("eagle", 0.75),
        drafted("ngram", 0.25),
    ]
    plain = [hand_made("", draft_s=0.0, verify_s=1.0)]
    assert cost_ratio(steps, plain) == (0.75 + 0.25) / 4
    gone_on = [drafted("ngram", 10.0, prefill_s=1.0), drafted("eagle", 50.0), drafted("eagle", 1.0)]
    assert cost_ratio(steps + gone_on, plain) == (0.75 + 0.25 + 1.0) / 6
    assert cost_ratio(steps[:3], plain) is None


def test_where_time_goes_is_per_token():
    def phased(draft, verify, decide, letters, tokens):
        return hand_made(letters, draft_s=draft, verify_s=verify, decide_s=decide, committed=(7,) * tokens)

    speculative = [phased(6.0, 2.0, 1.0, "aa", 3), phased(1.0, 4.0, 0.5, "ar", 2), phased(0.0, 3.0, 0.0, "", 1)]
    found = where_time_goes(speculative, [phased(0.0, 1.0, 0.5, "", 1), phased(0.0, 3.0, 0.5, "", 1)])
    assert found == Phases(
        draft_s=7 / 6,
        verify_s=9 / 6,
        decide_s=1.5 / 6,
        plain_verify_s=2.0,
        plain_decide_s=0.5,
        cost_ratio=(1.0 / 2) / 2.0,  # the first step's drafting left out
        verify_cost=3.0 / 2.0,
        gamma_used=4 / 3,
        acceptance_length=1 + 3 / 3,
    )


def test_no_phases_without_asking(target):
    for step in decode(target, NGram(target), PROMPT, Settings(max_new_tokens=8)):
        assert step.draft_s is step.verify_s is step.decide_s is None and step.seconds > 0
