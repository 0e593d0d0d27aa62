"""The default target, for the tests that need real weights. A conftest that imports the fixtures offers them."""

import os
from collections.abc import Iterator

import pytest
import torch

from specviz.runs import Loaded, load


@pytest.fixture(scope="session")
def default_target() -> Loaded:
    return load("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def default_target_bf16() -> Loaded:
    return load("smollm2-135m", dtype="bfloat16", device="cpu")


@pytest.fixture
def all_threads() -> Iterator[None]:
    """A real model is worth more than the one thread that tiny ones get."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)
