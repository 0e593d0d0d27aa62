"""Which way of drafting suits which workload, and what choosing by workload would gain. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from specviz.workloads.arms import Arm
from specviz.workloads.results import Result
from specviz.workloads.summary import Place, by_arm


class Best(NamedTuple):
    """The way of drafting that was quickest on a workload."""

    place: Place
    arm: Arm
    speed: float  # harmonic mean over its prompts
    next_arm: Arm | None  # the second
    next_speed: float | None


class Choice(NamedTuple):
    """What is best where, and what that is worth.

    Speeds are over plain decoding, harmonic means over the prompts; where nothing was timed they are tokens per pass,
    which leave out what drafting costs (`timed` is False).
    """

    timed: bool
    prompts: int  # that every way of drafting was measured on; others are left out
    single: Arm  # the best for all workloads together
    single_speed: float
    by_workload: tuple[Best, ...]
    gain: float | None  # by choosing for each workload, over the single best; None with nothing to choose between
    """Each prompt's way is chosen by the other prompts of its workload, so that luck with a prompt is no gain."""


def choose(results: Sequence[Result]) -> Choice | None:
    """None without a prompt that all arms were measured on."""
    groups = by_arm(results)
    shared = set.intersection(*({_key(result) for result in group} for group in groups)) if groups else set()
    if not shared:
        return None
    timed = all(result.speedup is not None for result in results)
    costs = [
        {_key(result): 1 / ((result.speedup if timed else result.tokens / result.steps) or 1) for result in group}
        for group in groups
    ]
    places: dict[Place, list[tuple[str, str]]] = {}
    for result in groups[0]:
        if _key(result) in shared:
            places.setdefault(Place(result.suite, result.workload), []).append(_key(result))
    keys = [key for of_place in places.values() for key in of_place]
    arms = [group[0].arm for group in groups]
    single = _quickest(costs, keys)
    return Choice(
        timed=timed,
        prompts=len(keys),
        single=arms[single],
        single_speed=1 / _cost(costs[single], keys),
        by_workload=tuple(_best(place, of_place, arms, costs) for place, of_place in places.items()),
        gain=_gain(costs, places, keys),
    )


def _best(
    place: Place, keys: Sequence[tuple[str, str]], arms: Sequence[Arm], costs: Sequence[dict[tuple[str, str], float]]
) -> Best:
    order = sorted(range(len(arms)), key=lambda index: _cost(costs[index], keys))
    following = order[1] if len(order) > 1 else None
    return Best(
        place,
        arms[order[0]],
        1 / _cost(costs[order[0]], keys),
        None if following is None else arms[following],
        None if following is None else 1 / _cost(costs[following], keys),
    )


def _gain(
    costs: Sequence[dict[tuple[str, str], float]],
    places: dict[Place, list[tuple[str, str]]],
    keys: Sequence[tuple[str, str]],
) -> float | None:
    """Time with the single best over time with a choice for each workload, both chosen without the prompt itself."""
    if len(costs) < 2 or len(places) < 2 or min(map(len, places.values())) < 2:
        return None
    of_one, of_many = [], []
    for of_place in places.values():
        for key in of_place:
            of_one.append(costs[_quickest(costs, _without(key, keys))][key])
            of_many.append(costs[_quickest(costs, _without(key, of_place))][key])
    return fmean(of_one) / fmean(of_many)


def _quickest(costs: Sequence[dict[tuple[str, str], float]], keys: Sequence[tuple[str, str]]) -> int:
    return min(range(len(costs)), key=lambda index: _cost(costs[index], keys))


def _cost(costs: dict[tuple[str, str], float], keys: Iterable[tuple[str, str]]) -> float:
    """Time per token, in plain decoding's: the mean over the prompts."""
    return fmean(costs[key] for key in keys)


def _without(key: tuple[str, str], keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [other for other in keys if other != key]


def _key(result: Result) -> tuple[str, str]:
    return result.suite, result.prompt
