"""Draft lengths: what the adaptive policy asks for by what steps took and brought, in seconds that are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import torch
from scripted import Replay, ScriptedTarget
from traces import step

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.policy import PROBE_AFTER, PROBE_AT_MOST, Adaptive, Fixed, GammaPolicy, make_policy
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context
from specviz.trace import Step

LONGEST = 12


class World:
    """A drafter that is right with some probability, and passes that take what they take."""

    def __init__(
        self, right: float, drafting: float, further: float, first: float = 1.0, noise: float = 0.0, fixed: float = 0.0
    ) -> None:
        """Seconds: `drafting` per draft token and `fixed` per draft; `first` for a verify pass over one token and
        `further` for each one more. noise: times vary by up to this share.
        """
        self.right, self.drafting, self.further, self.first, self.fixed = right, drafting, further, first, fixed
        self.noise, self.rng = noise, Random(0)

    def step(self, gamma: int) -> tuple[Step, float, float]:
        """A step with so long a draft, and the seconds of drafting and of the verify pass."""
        letters = ""
        while len(letters) < gamma:
            letters += "u" if "r" in letters else "a" if self.rng.random() < self.right else "r"
        blur = 1 + self.noise * self.rng.random()
        draft_s, verify_s = self.fixed + self.drafting * gamma, self.first + self.further * gamma
        return step(letters, gamma_asked=gamma), blur * draft_s, blur * verify_s

    def best(self) -> int:
        """The draft length with the most tokens per second."""

        def rate(gamma: int) -> float:
            tokens = sum(self.right**i for i in range(gamma + 1))
            return tokens / (self.first + (self.further + self.drafting) * gamma + self.fixed * (gamma > 0))

        return max(range(LONGEST + 1), key=rate)


def run(policy: GammaPolicy, world: World, steps: int = 200) -> list[int]:
    asked = []
    for _ in range(steps):
        asked.append(policy.ask())
        policy.learn(*world.step(asked[-1]))
    return asked


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def test_fixed_asks_for_the_same_whatever_happens():
    assert set(run(Fixed(5), World(0.0, 1.0, 1.0))) == {5}


def test_a_hopeless_drafter_is_hardly_asked_any_more():
    asked = run(Adaptive(LONGEST), World(right=0.0, drafting=0.3, further=0.05))
    assert set(asked[30:]) == {0, 1}
    assert mean(asked[100:]) < 0.05


def test_a_hopeless_drafter_is_tried_again_ever_more_seldom_but_never_given_up():
    asked = run(Adaptive(LONGEST), World(right=0.0, drafting=0.3, further=0.05), 400)
    tries = [index for index, gamma in enumerate(asked) if gamma][-8:]
    gaps = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert set(gaps[-4:]) == {PROBE_AT_MOST}
    start = next(index for index in range(len(asked)) if asked[index : index + PROBE_AFTER] == [0] * PROBE_AFTER)
    assert asked[start + PROBE_AFTER : start + 3 * PROBE_AFTER + 2] == [1, *[0] * (2 * PROBE_AFTER), 1]


def test_a_drafter_that_gets_better_is_found_out():
    policy = Adaptive(LONGEST)
    run(policy, World(right=0.0, drafting=0.1, further=0.02))
    assert mean(run(policy, World(right=0.95, drafting=0.1, further=0.02), 400)[-50:]) > 5


def test_a_perfect_drafter_is_asked_for_long_drafts():
    assert mean(run(Adaptive(LONGEST), World(right=1.0, drafting=0.02, further=0.02))[20:]) > LONGEST - 1


def test_even_a_perfect_drafter_is_left_where_it_costs_more_than_it_brings():
    assert mean(run(Adaptive(LONGEST), World(right=1.0, drafting=1.5, further=0.1))[30:]) < 0.5


@pytest.mark.parametrize("unit", [1.0, 0.02])
@pytest.mark.parametrize(
    "world",
    [
        lambda unit: World(0.5, 0.05 * unit, 0.05 * unit, unit),
        lambda unit: World(0.8, 0.1 * unit, 0.05 * unit, unit),
        lambda unit: World(0.8, 0.05 * unit, 0.3 * unit, unit),
        lambda unit: World(0.9, 0.02 * unit, 0.02 * unit, unit),
        lambda unit: World(0.8, 0.0, 0.05 * unit, unit, fixed=0.2 * unit),  # heads that draft all at once
    ],
)
def test_what_is_asked_for_comes_near_the_best_there_is(world: Callable[[float], World], unit):
    """Whatever the unit of time: it is ratios that count."""
    made = world(unit)
    asked = run(Adaptive(LONGEST), made, 600)[100:]

    def rate(gammas: list[int]) -> float:
        tokens = sum(sum(made.right**i for i in range(gamma + 1)) for gamma in gammas)
        fixed = sum(made.fixed for gamma in gammas if gamma)
        return tokens / (sum(made.first + (made.further + made.drafting) * gamma for gamma in gammas) + fixed)

    assert rate(asked) > 0.95 * rate([made.best()])


def test_times_that_vary_and_a_pass_that_is_held_up_do_little():
    steady, shaken = Adaptive(LONGEST), Adaptive(LONGEST)
    run(steady, World(0.8, 0.1, 0.05, noise=0.0))
    world = World(0.8, 0.1, 0.05, noise=0.4)
    run(shaken, world)
    one, draft_s, verify_s = world.step(4)
    shaken.learn(one, draft_s, 1000 * verify_s)
    assert abs(mean(run(shaken, world)) - mean(run(steady, World(0.8, 0.1, 0.05)))) < 1.5


def test_without_times_it_goes_by_acceptance_alone():
    asked = {}
    for right in (0.0, 0.7, 1.0):
        policy, world = Adaptive(LONGEST), World(right, 0.1, 0.1)
        for _ in range(60):
            policy.learn(world.step(4)[0], None, None)
        asked[right] = policy.ask()
    assert asked[0.0] <= 1 < asked[0.7] < asked[1.0]


def test_the_step_after_a_prefill_tells_nothing_of_times():
    """The drafter has read the prompt in it."""
    policy, spoilt = Adaptive(LONGEST), Adaptive(LONGEST)
    one, draft_s, verify_s = World(1.0, 0.1, 0.1).step(2)
    spoilt.learn(step("aa", gamma_asked=2, prefill_s=3.0), 50.0, 9.0)
    policy.learn(one, None, None)
    for each in (policy, spoilt):
        each.learn(one, draft_s, verify_s)
    assert vars(policy._draft) == vars(spoilt._draft) and vars(policy._verify) == vars(spoilt._verify)
    assert policy._draft.of(2) == pytest.approx(draft_s) and policy._verify.of(3) == pytest.approx(verify_s)


def test_a_drafter_that_reads_the_prompt_later_tells_nothing_of_drafting_then():
    """A verify pass is one all the same."""

    def drafted(by: str) -> Step:
        return replace(one, nodes=tuple(replace(node, by=by) for node in one.nodes))

    policy = Adaptive(LONGEST)
    one, draft_s, verify_s = World(1.0, 0.1, 0.1).step(2)
    policy.learn(replace(drafted("ngram"), prefill_s=3.0), draft_s, verify_s)
    assert not policy._draft.is_known and not policy._verify.is_known
    policy.learn(drafted("eagle"), 50.0, verify_s)
    assert not policy._draft.is_known and policy._verify.of(3) == pytest.approx(verify_s)
    policy.learn(drafted("eagle"), draft_s, verify_s)
    assert policy._draft.of(2) == pytest.approx(draft_s)
    known = dict(vars(policy._draft))
    for by in ("ngram", "eagle"):  # gone on with after another prefill
        policy.learn(replace(drafted(by), prefill_s=3.0 if by == "ngram" else None), 50.0, verify_s)
    assert vars(policy._draft) == known
    policy.learn(drafted("ngram"), draft_s, verify_s)
    assert vars(policy._draft) != known


def test_a_tree_is_charged_for_its_width():
    narrow, wide = Adaptive(LONGEST), Adaptive(LONGEST)
    below = [-1, -1, -1, -1, 0, 0, 0, 0]
    for _ in range(40):  # the second token is accepted every other time, from chain and tree alike
        for chain, tree in (("aa", "auuuauuu"), ("ar", "auuurrrr")):
            narrow.learn(step(chain, gamma_asked=2), 0.02, 1.0 + 0.1 * 2)
            wide.learn(step(tree, below, gamma_asked=2), 0.02, 1.0 + 0.1 * 8)
    assert 0 < wide.ask() < narrow.ask()


def test_steps_already_made_are_learnt_from():
    world = World(right=0.3, drafting=0.2, further=0.1)
    whole, done = Adaptive(LONGEST), []
    for _ in range(40):
        one, draft_s, verify_s = world.step(whole.ask())
        whole.learn(one, draft_s, verify_s)
        done.append(replace(one, draft_s=draft_s, verify_s=verify_s))
        assert make_policy("adaptive", LONGEST, done).ask() == whole.ask()
    assert make_policy("fixed", 3, done).ask() == 3


@pytest.mark.parametrize("longest", [0, 1])
def test_it_never_asks_for_more_than_allowed(longest):
    assert max(run(Adaptive(longest), World(1.0, 0.0, 0.0))) == longest
    assert max(run(Adaptive(longest), World(0.0, 0.5, 0.5))) == longest


# --- in the loop ---------------------------------------------------------------------------------------------------


class Clocked:
    """A script, a target that says it and a drafter that knows it (or does not), on a clock that only they move."""

    def __init__(self, monkeypatch, wrong: bool) -> None:
        self.now = 0.0
        script = list(range(1, 25)) * 10
        self.target = ScriptedTarget(script, 2)
        self.drafter = Replay(script, 2, wrong=frozenset(range(240)) if wrong else frozenset())
        verify, propose = self.target.verify, self.drafter.propose

        def timed_verify(last: int, draft: Draft) -> tuple[torch.Tensor, None]:
            self.now += 1 + 0.05 * len(draft)
            return verify(last, draft)

        def timed_propose(ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
            draft = propose(ctx, gamma, sampler, rng)
            self.now += 0.1 * len(draft)
            return draft

        monkeypatch.setattr(self.target, "verify", timed_verify)
        monkeypatch.setattr(self.drafter, "propose", timed_propose)
        monkeypatch.setattr("specviz.decoding.clock.perf_counter", lambda: self.now)

    def steps(self, tokens: int, done: tuple[Step, ...] = (), **asked: object) -> list[Step]:
        settings = Settings(gamma=LONGEST, max_new_tokens=tokens, gamma_policy="adaptive", stop_tokens=frozenset())
        return list(decode(self.target, self.drafter, [1, 2], settings, done=done, detail=False, **asked))


def test_a_run_drafts_long_where_that_pays(monkeypatch):
    steps = Clocked(monkeypatch, wrong=False).steps(200)
    asked = [one.gamma_asked for one in steps]
    assert asked[0] < asked[-1] == LONGEST
    assert all(one.gamma_used == one.gamma_asked for one in steps[:-2])


def test_a_run_stops_drafting_where_that_does_not_pay(monkeypatch):
    steps = Clocked(monkeypatch, wrong=True).steps(100)
    assert {one.gamma_asked for one in steps[20:]} == {0, 1}
    assert [one.gamma_asked for one in steps[-30:]].count(0) >= 27


def test_times_are_measured_for_it_and_not_published(monkeypatch):
    """The same draft lengths with phases, which are published; on this clock both are exact."""
    silent = Clocked(monkeypatch, wrong=False).steps(120)
    shown = Clocked(monkeypatch, wrong=False).steps(120, phases=True)
    assert [one.gamma_asked for one in silent] == [one.gamma_asked for one in shown]
    assert all(one.draft_s is None and one.verify_s is None and one.decide_s is None for one in silent)
    assert [one.verify_s for one in shown] == pytest.approx([1 + 0.05 * len(one.nodes) for one in shown])


def test_a_run_gone_on_with_knows_what_it_learnt(monkeypatch):
    whole = Clocked(monkeypatch, wrong=True).steps(100, phases=True)
    rest = Clocked(monkeypatch, wrong=True).steps(100, done=tuple(whole[:60]))
    assert [one.gamma_asked for one in rest] == [one.gamma_asked for one in whole[60:]]
    fresh = Clocked(monkeypatch, wrong=True).steps(100)
    assert fresh[0].gamma_asked > 1 >= rest[0].gamma_asked
