"""What counts as inside a forward pass, by a clock that only the test moves."""

import itertools

import pytest
import torch
from fakes import tiny_target
from torch import nn

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.drafters import DraftModel, EarlyExit, Plain
from specviz.workloads import forwards, runner
from specviz.workloads.forwards import watched
from specviz.workloads.runner import watch

PROMPT = [3, 1, 4, 1, 5]


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (forwards, runner):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr("specviz.decoding.clock.perf_counter", lambda: self.now)

    def slow(self, monkeypatch, thing, name, seconds):
        """Calls of thing.name take so long."""
        method = getattr(thing, name)

        def slowed(*args, **options):
            self.now += seconds
            return method(*args, **options)

        monkeypatch.setattr(thing, name, slowed)


class Lm(nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def forward(self):
        self.clock.now += 1.0


class Head(nn.Module):
    """Computes in two calls, one of which makes the other, as the drafters' heads may."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.shared = (Lm(clock),)  # a tuple, so that it is none of its own modules

    def forward(self):
        self.clock.now += 0.5

    def logits(self):
        self.clock.now += 0.25
        self()


Head.__module__ = "specviz.drafters.heads.head"  # the methods of other projects' modules are not known


class WithHead:
    kind, hidden_layers = "with head", ()

    def __init__(self, clock):
        self.clock, self.head = clock, Head(clock)

    def propose(self, ctx, gamma, sampler, rng):
        self.head.logits()  # 0.75, the inner call not counted twice
        self.head()  # 0.5
        self.head.shared[0]()  # 1.0
        self.clock.now += 0.25  # the drafter's own
        return Draft.empty()


def test_the_share_outside_forward_passes(monkeypatch):
    target, clock = tiny_target(), Clock(monkeypatch)
    clock.slow(monkeypatch, target.model, "forward", 2.0)
    clock.slow(monkeypatch, target, "keep", 0.5)
    clock.slow(monkeypatch, target, "prefill", 100.0)
    settings = Settings(gamma=2, max_new_tokens=6)
    steps, outside = watch(target, Plain(), PROMPT, settings)
    assert outside == 0.5 / 2.5 and len(steps) == 6
    drafter = WithHead(clock)
    _, outside = watch(target, drafter, PROMPT, settings)
    assert outside == pytest.approx(0.75 / 5.0)
    assert "logits" not in vars(drafter.head), "the method is its own again"
    assert watch(target, Plain(), PROMPT, Settings(max_new_tokens=1))[1] is None


@pytest.mark.parametrize("kind", ["early-exit", "draft-model"])
def test_every_pass_of_target_and_drafter_counts_once(monkeypatch, kind):
    target = tiny_target("llama", 1)
    drafter = EarlyExit(target, 2) if kind == "early-exit" else DraftModel(target, tiny_target("llama", 2).model)
    ticks = itertools.count()
    monkeypatch.setattr(forwards, "perf_counter", lambda: float(next(ticks)))  # every pass lasts one tick
    with watched(target, drafter) as seen:
        steps = list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=8)))
    assert seen.seconds == 1 + sum(1 + step.gamma_used for step in steps), "the prompt, then drafts and verify passes"
    counted = seen.seconds
    list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=8)))
    assert seen.seconds == counted, "the hooks are gone"


def test_a_pass_that_fails_leaves_the_count_in_order():
    target = tiny_target()
    with watched(target, Plain()) as seen:
        with pytest.raises(IndexError):
            target.model(input_ids=torch.tensor([[999]]))
        before = seen.seconds
        target.model(input_ids=torch.tensor([[1]]))
        assert seen.seconds > before
