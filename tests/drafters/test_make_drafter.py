"""The registry: a run can be done again from its trace header, and weights find the part that they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import tiny_model, tiny_target
from trained import DRAFT_IDS, exit_adapter, medusa_heads

from specviz import runs
from specviz.drafter_settings import SETTINGS
from specviz.drafters import DRAFTERS, Assistant, Weights, make_drafter, settings_of, shipped
from specviz.drafters.heads.adapter import write_adapter
from specviz.drafters.heads.medusa import write_medusa
from specviz.drafters.heads.reduced import reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.presets import check_drafter


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_target().model, None, "Tiny-Chat", "sha256:target")


@pytest.fixture(scope="module")
def written(target, tmp_path_factory) -> Path:
    """One folder of each kind, as they are shipped."""
    folder = tmp_path_factory.mktemp("drafters") / "tiny"
    write_medusa(medusa_heads(), folder / "medusa", {"kind": "medusa", "target": "Tiny-Chat"})
    write_adapter(exit_adapter(3), folder / "early-exit", {"kind": "early-exit", "target": "Tiny-Chat"})
    model = reduced_model(target, 1, DRAFT_IDS)
    write_reduced(model, DRAFT_IDS, folder / "draft-model", {"kind": "draft-model", "target": "Tiny-Chat"})
    return folder


@pytest.fixture
def at_hand(written, monkeypatch) -> None:
    monkeypatch.setattr(shipped, "SHIPPED", written.parent)


def test_every_kind_says_its_settings():
    shape, sure = {"tree", "nodes", "branches"}, {"source", "confidence"}
    assert {kind: settings_of(kind) for kind in DRAFTERS} == {
        "plain": set(),
        "ngram": {"ngram_min", "ngram_max", "pick", *shape},
        "early-exit": {"exit_layer", "adapter", *sure},
        "draft-model": sure,
        "eagle": {"aux_convention", "norm_before_residual", *shape, *sure},
        "medusa": {*shape, *sure},
        "mtp": {*shape, *sure},
        "library": {"method", "source"},
    }


def test_every_setting_has_its_bounds():
    assert {name for kind in DRAFTERS for name in settings_of(kind)} | {"second_gamma"} <= SETTINGS.keys()


WRONG = [
    ("ngram", "ngram_min", "abc", "a whole number from 1 to 16"),
    ("ngram", "ngram_max", 2.5, "a whole number from 1 to 16"),
    ("ngram", "nodes", "abc", "a whole number from 1 to 64"),
    ("ngram", "branches", 1e99, "a whole number from 1 to 16"),
    ("ngram", "tree", 1, "true or false"),
    ("ngram", "tree", "maybe", "true or false"),
    ("ngram", "pick", "rare", "recent or frequent"),
    ("draft-model", "confidence", "abc", "a number from 0 to 1"),
    ("draft-model", "confidence", True, "a number from 0 to 1"),
    ("draft-model", "confidence", float("nan"), "a number from 0 to 1"),
    ("draft-model", "confidence", -3.0, "a number from 0 to 1"),
    ("draft-model", "confidence", 7, "a number from 0 to 1"),
    ("draft-model", "source", 3, "a text"),
    ("early-exit", "exit_layer", "abc", "a whole number from 1 to 1000"),
    ("early-exit", "exit_layer", 2.5, "a whole number from 1 to 1000"),
    ("early-exit", "exit_layer", True, "a whole number from 1 to 1000"),
    ("early-exit", "adapter", 0, "true or false"),
    ("ngram+draft-model", "second_gamma", "abc", "a whole number from 1 to 64"),
    ("ngram+draft-model", "ngram.nodes", 65, "a whole number from 1 to 64"),
]


@pytest.mark.parametrize(("kind", "name", "value", "wanted"), WRONG)
def test_a_setting_out_of_bounds_is_named_and_said_what_to_give(target, kind, name, value, wanted):
    with pytest.raises(
        UserError, match=rf"^{name.removeprefix('ngram.')} is {re.escape(repr(value))}; give {wanted}\.$"
    ):
        make_drafter(kind, target, {name: value})


@pytest.mark.parametrize(("kind", "name", "value", "wanted"), WRONG)
def test_a_preset_may_hold_none_of_them_either(kind, name, value, wanted):
    with pytest.raises(UserError, match=rf"^drafter 2: {name} is {re.escape(repr(value))}; give {wanted}\.$"):
        check_drafter(kind, {name: value}, "drafter 2")


@pytest.mark.parametrize("confidence", [0, 0.5, 1])
def test_the_bounds_themselves_and_whole_numbers_are_fine(target, confidence):
    assert make_drafter("draft-model", target, {"confidence": confidence}).confidence == confidence
    check_drafter("ngram+draft-model", {"ngram_min": 16, "second_gamma": 64, "gamma": 0, "gamma_policy": "fixed"}, "")


@pytest.mark.parametrize("kind", ["medusa", "early-exit", "draft-model"])
def test_weights_for_other_weights_of_the_target_are_noted_after_what_was_said_of_them(written, target, kind):
    given = Weights(written / kind, "mine", "sha256:mine", ("fetched anew",))
    assert make_drafter(kind, target, {}, given).notes == ("fetched anew",)
    config = written / kind / "config.json"
    said = config.read_text()
    try:
        config.write_text(said.replace('"kind":', '"target_weights": "sha256:older", "kind":'))
        assert make_drafter(kind, target, {}, given).notes == (
            "fetched anew",
            "This drafter was made for other weights of Tiny-Chat; it may be accepted a little less often.",
        )
    finally:
        config.write_text(said)


def names(drafter) -> list[str]:
    return [getattr(part, "name", "") for part in getattr(drafter, "parts", (drafter,))]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("draft-model", {}),
        ("draft-model", {"source": "shipped"}),
        ("draft-model", {"source": "self"}),
        ("medusa", {"tree": True}),
        ("early-exit", {}),
        ("early-exit", {"exit_layer": 2}),
        ("ngram+draft-model", {}),
        ("ngram+medusa+draft-model", {}),
        ("medusa+draft-model", {"source": "self"}),
    ],
)
def test_what_a_trace_header_says_makes_the_same_drafter_again(at_hand, target, kind, asked):
    first = make_drafter(kind, target, asked)
    parts = getattr(first, "parts", (first,))
    found = runs._weights_by_name(parts, target.name, target.weights)
    header = {**asked, **({"source": " + ".join(found)} if found else {})}
    assert names(make_drafter(kind, target, header)) == names(first)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("draft-model", "other/draft-model"),
        ("medusa", "mine"),
        ("early-exit", "mine"),
        ("ngram+draft-model", "mine"),
        ("medusa+draft-model", "tiny/medusa + mine"),
    ],
)
def test_weights_that_are_not_at_hand_are_named_and_no_others_taken(at_hand, target, kind, source):
    with pytest.raises(UserError, match=r"The drafter (other/draft-model|mine) has not been loaded"):
        make_drafter(kind, target, {"source": source})


def test_a_source_of_one_part_is_looked_at_as_well(at_hand, target):
    with pytest.raises(UserError, match="The drafter mine has not been loaded"):
        make_drafter("ngram+draft-model", target, {"draft-model.source": "mine"})


def test_beside_what_is_given_a_source_only_names_it(target):
    model = Assistant(tiny_model(seed=1), None, "Tiny-1B", "sha256:1")
    assert names(make_drafter("draft-model", target, {"source": "another name"}, model)) == ["Tiny-1B"]


@pytest.mark.parametrize("kind", ["medusa", "early-exit", "draft-model"])
def test_given_weights_go_to_the_part_that_they_are_for(at_hand, written, target, kind):
    """The other parts draft with what is shipped."""
    given = Weights(written / kind, "mine", "sha256:mine")
    parts = ["medusa", "early-exit", "draft-model"]
    made = make_drafter("+".join(parts), target, {}, given)
    assert names(made) == ["mine" if part == kind else f"tiny/{part}" for part in parts]


def test_weights_that_do_not_say_what_they_are_go_to_whoever_takes_some(written, target, tmp_path):
    write_medusa(medusa_heads(), tmp_path, {})
    assert names(make_drafter("ngram+medusa", target, {}, Weights(tmp_path, "theirs"))) == ["", "theirs"]


def test_weights_that_say_nonsense_about_what_they_are_go_to_whoever_takes_some(written, target, tmp_path):
    write_medusa(medusa_heads(), tmp_path, {"kind": ["medusa"]})
    with pytest.raises(UserError, match="holds no exit adapter"):  # early exit takes them as well, and can't read them
        make_drafter("medusa+early-exit", target, {"exit_layer": 2}, Weights(tmp_path, "theirs"))


@pytest.mark.parametrize("left_out", ["config.json", "model.safetensors"])
def test_a_shipped_folder_without_all_its_files_is_none(target, tmp_path, monkeypatch, left_out):
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    assert shipped.find("medusa", target) is None
    folder = tmp_path / "tiny" / "medusa"
    write_medusa(medusa_heads(), folder, {"target": "Tiny-Chat"})
    assert shipped.find("medusa", target) is not None
    (folder / left_out).unlink()
    assert shipped.find("medusa", target) is None
    with pytest.raises(UserError, match="No trained medusa drafter for Tiny-Chat is at hand"):
        make_drafter("medusa", target, {})
