"""The estimate beside what a process of its own took, on the default target."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from specviz.errors import UserError
from specviz.planning import measuring
from specviz.planning.measuring import measure

CONTEXTS = (300, 1000, 2000)


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a peak start again")
def test_the_estimate_is_within_five_per_cent_at_three_contexts():
    made = measure("smollm2-135m", "eagle", {}, CONTEXTS, gamma=2, dtype="bfloat16", device="cpu", new_tokens=8)
    assert [run.context for run in made.runs] == list(CONTEXTS)
    taken = [run.measured for run in made.runs]
    assert all(taken) and taken == sorted(taken) and taken[-1] - taken[0] > 1700 * 23_040, "the caches grow"
    for run in made.runs:
        assert run.difference is not None and abs(run.difference) < 0.05, (run.context, run.expected, run.measured)
    assert made.loading is not None and made.held < made.loading + 100_000_000


def test_the_difference_is_a_share_of_what_was_measured():
    need = SimpleNamespace(expected=110)
    assert measuring.Measured(9, need, 100).difference == pytest.approx(0.1)
    assert measuring.Measured(9, need, None).difference is None


def test_what_the_process_says_when_it_fails_is_passed_on(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no such thing\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(UserError, match=r"Nothing could be measured \(ValueError: no such thing\)"):
        measure("smollm2-135m", "ngram", {}, [9], gamma=1)
