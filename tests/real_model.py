"""The default target, for the tests that need real weights. A conftest that imports the fixtures offers them."""

import pytest

from specviz.loaded import Loaded, load


@pytest.fixture(scope="session")
def default_target() -> Loaded:
    return load("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def default_target_bf16() -> Loaded:
    return load("smollm2-135m", dtype="bfloat16", device="cpu")
