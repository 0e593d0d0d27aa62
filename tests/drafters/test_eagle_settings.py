"""What an EAGLE head's file leaves open is a setting of the drafter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import tiny_target
from tiny_heads import head_config

from specviz.drafters import make_drafter
from specviz.drafters.base import Weights
from specviz.drafters.heads.head import Head
from specviz.drafters.heads.layouts import write_head
from specviz.errors import UserError
from specviz.models.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(vocab_size=8, num_hidden_layers=8)


def published(folder: Path, target: Target, without: tuple[str, ...] = (), **said: object) -> Weights:
    """A head as others publish it: with its own LM head, and without the entry that is ours."""
    write_head(Head(head_config(target, hidden_layers=(2, 4, 5)), own_lm_head=True), folder, "eagle3", {})
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **said}
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in ("specviz", *without)}))
    return Weights(folder, "their head")


def test_how_its_layers_are_counted(tmp_path, target):
    weights = published(tmp_path, target)
    with pytest.raises(UserError, match=r"so give aux_convention \(--aux-convention\): input if"):
        make_drafter("eagle", target, {}, weights)
    assert make_drafter("eagle", target, {"aux_convention": "input"}, weights).hidden_layers == (2, 4, 5)
    assert make_drafter("eagle", target, {"aux_convention": "output"}, weights).hidden_layers == (3, 5, 6)
    with pytest.raises(UserError, match="aux_convention is 'sglang'; give input or output"):
        make_drafter("eagle", target, {"aux_convention": "sglang"}, weights)


def test_where_its_residual_branch_starts(tmp_path, target):
    block = json.loads((published(tmp_path, target).path / "config.json").read_text())
    said = {"speculators_model_type": "eagle3", "transformer_layer_config": block}
    weights = published(tmp_path, target, ("norm_before_residual", "norm_output", "norm_before_fc"), **said)
    with pytest.raises(UserError, match=r"norm_before_residual: true \(--norm-before-residual\) .* false \(--no-norm-"):
        make_drafter("eagle", target, {}, weights)
    for answer in (True, False):
        made = make_drafter("eagle", target, {"norm_before_residual": answer}, weights)
        assert made.head.config.norm_before_residual is answer


@pytest.mark.parametrize("answer", [None, True, False])
def test_a_file_of_the_authors_layout_that_does_not_say_starts_it_before_the_norm_unless_told(tmp_path, target, answer):
    weights = published(tmp_path, target, ("norm_before_residual",))
    said = {} if answer is None else {"norm_before_residual": answer}
    made = make_drafter("eagle", target, {"aux_convention": "input", **said}, weights)
    assert made.head.config.norm_before_residual is bool(answer)


def test_in_a_combination_they_are_its_own(tmp_path, target):
    made = make_drafter("ngram+eagle", target, {"aux_convention": "output"}, published(tmp_path, target))
    assert made.parts[1].hidden_layers == (3, 5, 6)


def test_other_heads_have_no_such_settings(tmp_path, target):
    with pytest.raises(UserError, match="mtp has no setting 'aux_convention'"):
        make_drafter("mtp", target, {"aux_convention": "input"}, Weights(tmp_path, "a layer"))
