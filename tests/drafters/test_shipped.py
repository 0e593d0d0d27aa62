"""Weights that come with the project: found by the target's name, and used unless others are given."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fakes import tiny_target
from trained import DRAFT_IDS, exit_adapter, medusa_heads

from specviz.drafters import DraftModel, EarlyExit, Medusa, Weights, make_drafter, shipped
from specviz.drafters.heads.adapter import write_adapter
from specviz.drafters.heads.medusa import write_medusa
from specviz.drafters.heads.reduced import reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.target import Target

HASH = "sha256:of the target"


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_target().model, None, "Tiny-Chat", HASH)


@pytest.fixture(scope="module")
def written(target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("drafters")
    about = {"target": "Tiny-Chat", "target_weights": HASH}
    write_medusa(medusa_heads(), folder / "other" / "medusa", {**about, "target": "Other-Chat"})
    write_medusa(medusa_heads(), folder / "tiny" / "medusa", about)
    write_adapter(exit_adapter(3), folder / "tiny" / "early-exit", about)
    write_reduced(reduced_model(target, 1, DRAFT_IDS), DRAFT_IDS, folder / "tiny" / "draft-model", about)
    return folder


@pytest.fixture(autouse=True)
def folder(written, monkeypatch) -> Path:
    monkeypatch.setattr(shipped, "SHIPPED", written)
    return written


def test_they_are_found_by_kind_and_target(folder, target):
    found = shipped.find("medusa", target)
    content = (folder / "tiny" / "medusa" / "model.safetensors").read_bytes()
    assert found == Weights(folder / "tiny" / "medusa", "tiny/medusa", f"sha256:{hashlib.sha256(content).hexdigest()}")
    assert shipped.find("eagle", target) is None
    assert shipped.find("medusa", tiny_target()) is None


def test_they_are_used_where_none_are_given(target):
    assert isinstance(drafter := make_drafter("medusa", target, {}), Medusa)
    assert (drafter.name, drafter.notes) == ("tiny/medusa", ())
    early_exit = make_drafter("early-exit", target, {})
    assert isinstance(early_exit, EarlyExit) and (early_exit.exit_layer, early_exit.name) == (3, "tiny/early-exit")
    assert make_drafter("early-exit", target, {"exit_layer": 3}).adapter is not None
    model = make_drafter("draft-model", target, {})
    assert isinstance(model, DraftModel) and model.name == "tiny/draft-model"
    assert make_drafter("draft-model", target, {"source": "shipped"}).name == "tiny/draft-model"
    assert [part.name for part in make_drafter("medusa+early-exit", target, {}).parts] == [
        "tiny/medusa",
        "tiny/early-exit",
    ]


def test_the_target_itself_still_drafts_if_asked_to(target):
    assert make_drafter("draft-model", target, {"source": "self"}).name == "Tiny-Chat itself"


def test_another_exit_has_no_adapter_and_says_so(target):
    bare = make_drafter("early-exit", target, {"exit_layer": 2})
    assert (bare.exit_layer, bare.adapter, bare.name) == (2, None, "")
    assert bare.notes == ("The trained adapter is for an exit after layer 3; after layer 2 none is used.",)
    asked = make_drafter("early-exit", target, {"exit_layer": 3, "adapter": False})
    assert (asked.exit_layer, asked.adapter, asked.notes) == (3, None, ())


def test_given_weights_go_before(folder, target):
    given = Weights(folder / "tiny" / "medusa", "mine", "sha256:mine")
    assert make_drafter("medusa", target, {}, given).name == "mine"


def test_weights_made_for_other_weights_of_the_target_draft_with_a_note(target):
    requantised = Target(target.model, None, "Tiny-Chat", "sha256:others")
    (note,) = make_drafter("medusa", requantised, {}).notes
    assert "other weights of Tiny-Chat" in note
    (note,) = make_drafter("draft-model", requantised, {}).notes
    assert "other weights of Tiny-Chat" in note


def test_weights_made_for_another_target_are_refused(folder, target):
    other = Weights(folder / "other" / "medusa", "theirs")
    stranger = Target(target.model, None, "Tiny-Chat", "sha256:stranger")
    with pytest.raises(UserError, match="made for Other-Chat, not for Tiny-Chat"):
        make_drafter("medusa", stranger, {}, other)


def test_asking_for_a_shipped_draft_model_where_none_is_tells_what_to_do():
    with pytest.raises(UserError, match="No trained draft-model drafter for tiny llama is at hand"):
        make_drafter("draft-model", tiny_target(), {"source": "shipped"})
