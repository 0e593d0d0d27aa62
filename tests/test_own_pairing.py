"""Pairings of models of the user's own, from folders to a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from drafters.assistants import dflash_model, teach_dflash
from fakes import byte_tokenizer, reference_decode, tiny_model, tiny_target

from specviz import memory, own, runs
from specviz.decoding.engine import Settings
from specviz.errors import Cancelled, NotEnoughMemory, UserError
from specviz.loaded import load
from specviz.models.load import weight_hash
from specviz.own import drafting_kind, own_pairing
from specviz.presets import Pairing

TOKENIZER = byte_tokenizer()
LETTERS = {"vocab_size": len(TOKENIZER)}
PLACE = {"device": "cpu", "dtype": "float32"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return saved(tmp_path / "target", tiny_model(**LETTERS))


def saved(folder: Path, model: torch.nn.Module) -> Path:
    """A folder with a tokenizer unless the model is a DFlash one."""
    model.save_pretrained(folder)
    if hasattr(model.config, "vocab_size"):
        TOKENIZER.save_pretrained(folder)
    return folder


def paired(target: Path, drafter: Path, **asked: object) -> Pairing:
    return own_pairing(str(target), str(drafter), **PLACE, **asked).pairing


def test_a_draft_model_shares_the_targets_tokens(target, tmp_path):
    small = saved(tmp_path / "small", tiny_model(seed=1, num_hidden_layers=2, **LETTERS))
    first = paired(target, small).drafters[0]
    assert (first.kind, first.defaults, first.model.path) == ("draft-model", {"gamma": 4}, small)


@pytest.mark.parametrize(("block", "gamma"), [(2, 1), (6, 5), (17, 16), (32, 16)])
def test_a_dflash_model_drafts_the_blocks_that_it_was_made_for(target, tmp_path, block, gamma):
    blocks = saved(tmp_path / "blocks", dflash_model(block_size=block))
    found = own_pairing(str(target), str(blocks), **PLACE)
    assert drafting_kind(found.target, found.drafter) == "library"
    first, second, *_ = found.pairing.drafters
    assert (first.kind, first.title, first.model.path) == ("library", "blocks", blocks)
    assert first.defaults == {"method": "dflash", "gamma": gamma} and second.kind == "plain"


def test_a_dflash_model_from_a_folder_drafts_for_its_target(target, tmp_path):
    """A trained one, so that some of its tokens are accepted; packed or not, the output is the target's."""
    model = teach_dflash(dflash_model(), tiny_target(**LETTERS))
    first = (pairing := paired(target, saved(tmp_path / "blocks", model))).drafters[0]
    loaded = load(pairing, first.model, **PLACE)
    assert loaded.assistant.tokenizer is None and type(loaded.assistant.model) is type(model)
    settings = Settings(gamma=first.defaults["gamma"], max_new_tokens=40, stop_tokens=frozenset())
    prepared = runs.prepare(loaded, first.kind, {"method": "dflash"}, "abc", settings, raw_prompt=True)
    steps = list(prepared.steps())
    expected = reference_decode(tiny_model(**LETTERS), prepared.prompt, 40)
    assert [token for step in steps for token in step.committed] == expected
    assert len(steps) < 40 and not any(step.note for step in steps[1:])
    need = runs.budget(prepared)
    assert need.weights_drafter == 4 * memory.count_parameters(model.config)
    again = load(pairing, first.model, **PLACE, having=[load(pairing, **PLACE)])
    assert type(again.assistant.model) is type(model), "beside a target that is in memory already"


def test_a_dflash_model_is_no_target(target, tmp_path):
    blocks = saved(tmp_path / "blocks", dflash_model())
    for drafter in ("", str(target)):
        with pytest.raises(UserError, match=r"^blocks is a DFlash draft model, which can only draft; name it as the"):
            own_pairing(str(blocks), drafter, **PLACE)


def test_a_dflash_model_made_for_another_target_is_refused_when_it_is_to_draft(target, tmp_path):
    pairing = paired(target, saved(tmp_path / "blocks", dflash_model(hidden_size=64)))
    loaded = load(pairing, pairing.drafters[0].model, **PLACE)
    with pytest.raises(UserError, match=r"^blocks reads states of width 64; target has 32, so choose the DFlash model"):
        runs.prepare(loaded, "library", {"method": "dflash"}, "abc", Settings(), raw_prompt=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 10**30},
        {"hidden_act": "junk"},
        {"rope_parameters": {"rope_type": "junk"}},
        {"num_mtp_layers": "x"},
        {"num_attention_heads": 0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_config_that_describes_no_model_is_one_sentence(target, changes):
    config = target / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(UserError, match=r"^[^\n]*can't be used \([^\n]+\), so choose [^\n]*\.$"):
        own_pairing(str(target), **PLACE)


@pytest.mark.parametrize("stop", [Cancelled, NotEnoughMemory])
def test_a_stop_and_a_lack_of_memory_stay_what_they_are(target, monkeypatch, stop):
    def check(*models, **sizes):
        raise stop("enough")

    monkeypatch.setattr(own, "check_pair", check)
    with pytest.raises(stop, match=r"^enough$"):
        own_pairing(str(target), **PLACE)


def test_a_folder_that_was_trained_into_anew_is_another_model(target):
    first = own_pairing(str(target), **PLACE).pairing
    loaded = load(first, **PLACE)
    assert own_pairing(str(target), **PLACE).pairing == first
    saved(target, tiny_model(seed=1, **LETTERS))
    second = own_pairing(str(target), **PLACE).pairing
    again = load(second, **PLACE, having=[loaded])
    assert again.target.weights == weight_hash(target) != loaded.target.weights
