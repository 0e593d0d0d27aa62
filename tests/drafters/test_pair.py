"""Whether two models fit each other, from what is known before their weights are here."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from assistants import dflash_model
from fakes import byte_tokenizer, tiny_model

from specviz import memory
from specviz.drafters.pair import check_pair, check_target
from specviz.errors import UserError
from specviz.models.examine import Examined
from specviz.models.heads import cached_layers
from specviz.presets import ModelSource

SIZES = {"dtype_bytes": 4, "context_tokens": 100, "gamma": 4}


def model(name: str, tokenizer=None, **changes) -> Examined:
    known = Examined(
        source=ModelSource(name.lower(), name, "none", path=Path(name)),
        folder=Path(name),
        config=tiny_model(vocab_size=len(byte_tokenizer())).config,
        tokenizer=tokenizer or byte_tokenizer(),
        weights={"model.safetensors": 1000},
        repository=None,
        quantisation=None,
        compact=False,
        licence="none",
    )
    return replace(known, **changes)


def with_token(token: str, special: bool):
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.add_tokens(token, special_tokens=special)
    return tokenizer


def other_letters():
    """A tokenizer of the same size to which two letters are swapped."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    stored = (
        tokenizer.backend_tokenizer.to_str().replace('"a":', '"?":').replace('"b":', '"a":').replace('"?":', '"b":')
    )
    return type(tokenizer)(tokenizer_object=type(tokenizer.backend_tokenizer).from_str(stored))


def test_one_tokenizer_passes_without_a_word():
    assert check_pair(model("Big"), model("Small"), "draft-model", available=10**9, **SIZES) is None
    assert check_pair(model("Big"), None, "ngram", available=10**9, **SIZES) is None


def test_special_tokens_that_differ_are_mentioned():
    note = check_pair(model("Big"), model("Small", with_token("<new>", True)), "draft-model", available=10**9, **SIZES)
    assert note is not None and "1 special tokens differ" in note


@pytest.mark.parametrize("kind", ["draft-model", "ngram+draft-model"])
def test_another_tokenizer_is_refused_where_tokens_are_shared(kind):
    with pytest.raises(UserError, match=r"^Small has another tokenizer than Big, so .*`library`.*`universal`"):
        check_pair(model("Big"), model("Small", other_letters()), kind, available=10**9, **SIZES)


def test_another_tokenizer_is_fine_where_drafts_are_translated():
    assert check_pair(model("Big"), model("Small", other_letters()), "library", available=10**9, **SIZES) is None


def test_a_dflash_model_is_no_target():
    check_target(model("Big"))
    with pytest.raises(UserError) as caught:
        check_target(model("Blocks", config=dflash_model().config))
    assert str(caught.value) == ("Blocks is a DFlash draft model, which can only draft; name it as the drafter.")


def test_a_dflash_model_drafts_in_its_own_way_only():
    blocks = replace(model("Blocks", config=dflash_model().config), tokenizer=None)
    assert check_pair(model("Big"), blocks, "library", available=10**9, **SIZES) is None
    with pytest.raises(UserError) as caught:
        check_pair(model("Big"), blocks, "draft-model", available=10**9, **SIZES)
    assert str(caught.value) == (
        "Blocks is a DFlash draft model, so choose the drafter `library` with the method `dflash`."
    )


@pytest.mark.parametrize("compact", [(False, False), (True, False), (False, True), (True, True)])
def test_memory_is_that_of_both_and_of_the_files_of_quantised_ones(compact):
    big, small = model("Big", compact=compact[0]), model("Small", compact=compact[1])
    need = memory.estimate(
        big.config,
        drafter_config=small.config,
        weight_bytes=1000 if compact[0] else None,
        drafter_weight_bytes=1000 if compact[1] else None,
        **SIZES,
    )
    plain = memory.count_parameters(big.config) * 4
    assert (need.weights_target, need.weights_drafter) == tuple(1000 if small else plain for small in compact)
    assert check_pair(big, small, "draft-model", available=need.total, **SIZES) is None
    with pytest.raises(UserError, match="This run needs about"):
        check_pair(big, small, "draft-model", available=need.total - 1, **SIZES)


@pytest.mark.parametrize(
    ("kind", "config", "layers"),
    [
        ("eagle", {"num_hidden_layers": 1}, 1),
        ("ngram+mtp", {}, 1),
        ("medusa", {}, 0),
        ("early-exit", {"num_hidden_layers": 4}, 0),
        ("draft-model", {"num_hidden_layers": 3}, 3),
    ],
)
def test_only_heads_that_attend_need_a_cache(kind, config, layers):
    assert cached_layers(kind, config) == layers


def test_the_caches_of_a_heads_layers_are_counted_beside_the_targets():
    target = model("Big").config
    without, with_head = (
        memory.estimate(target, **SIZES, available=0, head_bytes=1000, head_layers=layers).kv for layers in (0, 3)
    )
    assert with_head == without * (target.num_hidden_layers + 3) // target.num_hidden_layers
