"""The engine-neutral record: fields as AIPerf defines them, counted by hand."""

from __future__ import annotations

import json

from traces import step, trace

from specviz.acceptance_record import FIELDS, Settings, record
from specviz.synthetic import distribution, synthetic_trace

AIPERF = (
    "engine",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_steps",
    "num_spec_tokens",
    "completion_tokens",
    "per_step_accepted",
    "per_step_drafted",
)


def test_a_run_is_counted_over_the_steps_that_drafted():
    found = record(trace("aaru", "", "ruuu", "aaaa", step("acc", cut="length")))
    assert {name: found[name] for name in (*AIPERF, "undrafted_steps")} == {
        "engine": "specviz",
        "mean_acceptance_length": 1 + 7 / 4,
        "draft_acceptance_rate": 7 / 15,
        "acceptance_histogram": {0: 1, 1: 1, 2: 1, 4: 1},
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 15,
        "num_spec_steps": 4,
        "num_spec_tokens": 4,
        "completion_tokens": 3 + 1 + 1 + 5 + 1,
        "per_step_accepted": [2, 0, 4, 1],
        "per_step_drafted": [4, 4, 4, 3],
        "undrafted_steps": 1,
    }
    assert sum(found["acceptance_histogram"].values()) == found["num_spec_steps"]


def test_a_tree_drafts_all_its_nodes_and_accepts_a_path():
    found = record(trace(step("raru", parents=(-1, -1, 1, 1)), gamma=2))
    assert (found["per_step_accepted"], found["per_step_drafted"], found["num_spec_tokens"]) == ([1], [4], 2)


def test_what_cannot_be_computed_is_null():
    found = record(trace("", ""))
    assert (found["mean_acceptance_length"], found["draft_acceptance_rate"]) == (None, None)
    assert (found["num_spec_steps"], found["undrafted_steps"], found["completion_tokens"]) == (0, 2, 2)
    assert record(trace())["mean_acceptance_length"] is None


def test_the_settings_come_with_it():
    run = trace(
        "aa", gamma=2, weights={"tiny": "abc"}, seed=5, rule="typical", lossless=False, sampler={"temperature": 0.7}
    )
    found = record(run)
    assert set(Settings._fields) <= set(found) and set(FIELDS) <= set(found)
    expected = {
        "method": "ngram",
        "gamma": 2,
        "temperature": 0.7,
        "dtype": "float32",
        "device": "cpu",
        "seed": 5,
        "batch": 1,
        "chat_template": False,
        "weights": {"tiny": "abc"},
        "rule": "typical",
        "lossless": False,
        "mode": "live",
        "target": "tiny",
    }
    assert {name: found[name] for name in expected} == expected
    assert json.loads(json.dumps(found, allow_nan=False))["acceptance_histogram"] == {"2": 1}


def test_a_synthetic_run_stays_synthetic():
    found = record(synthetic_trace(distribution("geometric", 2.0, 3), 4, seed=0))
    assert (found["mode"], found["temperature"], found["lossless"]) == ("synthetic", None, False)
    assert "Synthetic acceptance" in found["notes"][0]
