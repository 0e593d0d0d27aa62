"""Configurations from wherever they are at hand, and what is known of heads, without a network."""

import json

import pytest
from public_configs import HEADS, SHAPES

from specviz.errors import UserError
from specviz.planning import configs
from specviz.planning.configs import known, known_head, named, shipped_head
from specviz.planning.drafts import nodes, of_preset
from specviz.planning.states import lent_bytes, states_read
from specviz.presets import HubSource, ModelSource, load_pairings

SMALL = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}


def from_hub(repo, head=False):
    return ModelSource(repo.replace("/", "--").lower(), repo, "unknown", hub=HubSource(repo, "main", None), head=head)


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(configs.hub, "cached", lambda source: None)
    monkeypatch.setattr(configs.hub, "look_up", pytest.fail)  # no network, whatever is asked


@pytest.mark.parametrize("repo", SHAPES)
def test_public_models_are_known_by_their_sizes(repo, nothing_here):
    found, expected = known(from_hub(repo), offline=True), SHAPES[repo].full()
    assert found.source == configs.SHIPPED and found.config.model_type == expected.model_type
    mine, theirs = (config.get_text_config().to_dict() for config in (found.config, expected))
    for config in (mine, theirs):  # which ours knows of more models than the tests need
        config.pop("sliding_window", None)
    assert mine == theirs


@pytest.mark.parametrize("pairing", load_pairings().values(), ids=lambda pairing: pairing.id)
def test_every_pairing_can_be_planned_before_anything_is_downloaded(pairing, nothing_here):
    target = known(pairing.target, offline=True)
    for preset in pairing.drafters:
        drafting = of_preset(preset, target, offline=True)
        assert (preset.model is None) or drafting.heads or drafting.config, preset.title
        trees = {"tree", "nodes"} & {*preset.defaults}
        assert nodes(preset) == (preset.defaults.get("nodes", 8) if trees else 0)


@pytest.mark.parametrize("repo", HEADS)
def test_public_heads_are_known_by_the_size_of_their_file(repo, nothing_here):
    head = known_head(from_hub(repo, head=True), "eagle", SHAPES["Qwen/Qwen3-8B"].full(), offline=True)
    assert head.size == HEADS[repo].size and head.layers == 1


def test_a_folder_and_a_file_by_any_name_are_read(tmp_path):
    for path in (tmp_path / "config.json", tmp_path / "small.json"):
        path.write_text(json.dumps(SMALL))
        found = known(named(str(path)), offline=True)
        assert found.config.num_hidden_layers == 3 and found.config.model_type == "llama"
    assert known(named(str(tmp_path)), offline=True).config.hidden_size == 16


def test_what_is_not_at_hand_is_said_in_one_sentence(nothing_here):
    with pytest.raises(UserError, match=r"^The configuration of some/model is not on this machine and offline mode"):
        known(from_hub("some/model"), offline=True)
    with pytest.raises(UserError, match="is not on this machine"):
        known_head(from_hub("some/head", head=True), "eagle", SHAPES["Qwen/Qwen3-8B"].full(), offline=True)


def test_a_configuration_that_is_none_is_said_in_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nothing-of-the-kind"}')
    with pytest.raises(UserError, match="can't be used"):
        known(named(str(tmp_path)), offline=True)


def test_shipped_drafters_are_counted_with_the_rows_that_they_copy():
    head = shipped_head("eagle", "SmolLM2-135M-Instruct")
    assert head is not None and (head.layers, head.states) == (1, 3)
    assert 10_000_000 < head.size - 2 * 8192 * 576 < 11_000_000
    assert shipped_head("eagle", "another target") is None


@pytest.mark.parametrize(
    ("kind", "config", "states"),
    [
        ("eagle", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15]}}, 2),
        ("ngram+eagle", {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, 4),
        ("eagle", {"draft_vocab_size": 32000}, 3),
        ("eagle", {}, 1),
        ("medusa", {}, 1),
        ("mtp", {}, 1),
        ("draft-model", {"num_hidden_layers": 2}, 0),
        ("early-exit", {}, 0),
    ],
)
def test_which_states_a_head_reads(kind, config, states):
    assert states_read(kind, config) == states


def test_only_heads_of_ours_copy_rows_of_the_lm_head():
    sizes = {"draft_vocab_size": 100, "hidden_size": 16}
    assert lent_bytes({**sizes, "specviz": {}}) == 2 * 100 * 16
    assert lent_bytes(sizes) == lent_bytes({"specviz": {}, "hidden_size": 16}) == 0
