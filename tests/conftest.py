"""What all tests share: the import paths, one thread, one browser, and a way to run through every outcome of a random
procedure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from playwright.sync_api import Browser, sync_playwright

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]
import browser as chromium  # noqa: E402 -- after the paths

torch.set_num_threads(1)

T = TypeVar("T")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, started once."""
    with sync_playwright() as playwright:
        found = chromium.launch(playwright)
        yield found
        found.close()


class Chance:
    """Takes the place of randomness: prescribed branches first, then the first possible one at every choice."""

    def __init__(self, prescribed: list[int]) -> None:
        self.prescribed, self.probability = prescribed, 1.0
        self.taken: list[tuple[int, int]] = []  # branch, number of branches

    def choose(self, weights: Sequence[float]) -> int:
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        branch = self.prescribed[len(self.taken)] if len(self.taken) < len(self.prescribed) else 0
        self.taken.append((branch, len(possible)))
        self.probability *= weights[possible[branch]] / sum(weights)
        return possible[branch]

    def draw(self, p: torch.Tensor, rng: torch.Generator) -> int:
        return self.choose(p.tolist())

    def uniform(self, rng: torch.Generator) -> Uniform:
        return Uniform(self)

    def following(self) -> list[int] | None:
        """The branches of the next run, the last choice varying fastest."""
        branches = list(self.taken)
        while branches and branches[-1][0] == branches[-1][1] - 1:
            branches.pop()
        return [*(branch for branch, _ in branches[:-1]), branches[-1][0] + 1] if branches else None


class Uniform:
    """A number from [0, 1) that is not known yet; a comparison decides it both ways, one after the other."""

    def __init__(self, chance: Chance, scale: float = 1.0) -> None:
        self.chance, self.scale = chance, scale

    def __mul__(self, scale: float) -> Uniform:
        return Uniform(self.chance, self.scale * scale)

    def __lt__(self, threshold: float) -> bool:
        below = min(1.0, threshold / self.scale)
        return self.chance.choose([below, 1 - below]) == 0


@pytest.fixture
def every_outcome(monkeypatch) -> Callable[[Callable[[], T]], Iterator[tuple[float, T]]]:
    """every_outcome(run): the exact probability and the result of every way in which run() can go."""

    def explore(run: Callable[[], T]) -> Iterator[tuple[float, T]]:
        branches: list[int] | None = []
        while branches is not None:
            chance = Chance(branches)
            with monkeypatch.context() as patch:
                patch.setattr("specviz.decoding.verify.uniform", chance.uniform)
                for module in ("specviz.decoding.verify", "specviz.drafters.base", "fakes"):
                    patch.setattr(f"{module}.draw", chance.draw)
                result = run()
            yield chance.probability, result
            branches = chance.following()

    return explore
