"""Fair timing: what is warmed up, what is timed, in which order, and what the comparison says."""

import pytest
import torch
from fakes import reference_decode, tiny_model, tiny_target

from specviz import measure
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import DraftModel, NGram, Plain
from specviz.measure import Cancelled, Comparison, compare, cost_ratio, first_divergence, verify_cost

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def target():
    return tiny_target("llama", 3)


class Clockwork:
    """A clock that only decode runs move: a known number of seconds per verify pass."""

    def __init__(self, monkeypatch, target, seconds_per_pass):
        self.now, self.synchronised, self.runs = 0.0, 0, []
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
        real = measure._run

        def logged(target, drafter, *rest):
            self.runs.append(drafter.kind)
            return real(target, drafter, *rest)

        monkeypatch.setattr(measure, "_run", logged)


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


def test_yields_after_each_repeat(target):
    results = list(compare(target, NGram(target), PROMPT, Settings(max_new_tokens=6), repeats=3))
    assert [result.repeats for result in results] == [0, 0, 1, 2, 3], "once for each warm-up, then for each repeat"


def test_equal_token_counts_though_the_output_stopped_early(monkeypatch, target):
    output = reference_decode(target.model, PROMPT, 12)
    stop = frozenset({output[5]})
    length = output.index(output[5]) + 1
    counts = []
    real = measure._run

    def counted(*arguments):
        tokens, seconds = real(*arguments)
        counts.append(len(tokens))
        return tokens, seconds

    monkeypatch.setattr(measure, "_run", counted)
    *_, result = compare(target, NGram(target), PROMPT, Settings(max_new_tokens=12, stop_tokens=stop), repeats=2)
    assert counts == [length] * 6 and result.tokens == length


def test_slower_is_said_as_plainly(monkeypatch, target):
    """A drafter that costs as much as it brings makes a ratio below 1."""
    result = Comparison(8, (1.0, 1.0, 1.0), (2.0, 4.0, 1.25), True, None)
    assert result.speedup == 0.5 and result.spread == (0.25, 0.8)


def test_nothing_to_time(target):
    *_, result = compare(target, NGram(target), PROMPT, Settings(max_new_tokens=0))
    assert result.speedup is None and result.spread is None and result.tokens == 0


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


def test_no_phases_without_asking(target):
    for step in decode(target, NGram(target), PROMPT, Settings(max_new_tokens=8)):
        assert step.draft_s is step.verify_s is step.decide_s is None and step.seconds > 0
