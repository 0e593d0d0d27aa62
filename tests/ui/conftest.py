"""One served page for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import browser as chromium
import pytest
from real_model import default_target  # noqa: F401 -- a fixture
from stage import HOSTILE, SCRIPT, Actor, Loader

from specviz.ui import build_demo


@pytest.fixture(scope="session")
def served_actor() -> Iterator[tuple[str, Actor, Loader]]:
    actor = Actor(SCRIPT, tokens=HOSTILE)
    loader = Loader(actor)
    with chromium.served(build_demo(loader=loader)) as address:
        yield address, actor, loader


@pytest.fixture
def stage(served_actor: tuple[str, Actor, Loader]) -> Iterator[tuple[str, Actor, Loader]]:
    """The page's address, and behind it an actor ready to start."""
    address, actor, loader = served_actor
    actor.play(SCRIPT)
    yield address, actor, loader
    actor.delay = 0.0
    chromium.wait_until(lambda: not loader.loaded.lock.locked())
