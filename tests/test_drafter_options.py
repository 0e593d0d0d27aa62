"""The options that say what drafts, and the presets that say the rest."""

from __future__ import annotations

from argparse import Namespace

import pytest

from specviz.cli import make_parser
from specviz.commands import drafting
from specviz.commands.drafting import drafter_settings, settle_drafter, settled_gamma
from specviz.drafters import DRAFTERS, usual_gamma
from specviz.errors import UserError
from specviz.presets import DrafterPreset, ModelSource, Pairing

BY_PART = {
    "tree": True,
    "ngram.nodes": 6,
    "eagle.nodes": 20,
    "branches": 3,
    "eagle.confidence": 0.2,
    "gamma": 7,
}
WITHOUT_CONFIDENCE = {name: BY_PART[name] for name in ("tree", "ngram.nodes", "eagle.nodes", "branches")}


def pairing(**defaults: dict) -> Pairing:
    """One that offers these kinds, by _ for +."""
    drafters = [DrafterPreset(kind.replace("_", "+"), kind, settings, "") for kind, settings in defaults.items()]
    return Pairing("one", "One", ModelSource("tiny", "tiny", "none"), tuple(drafters), 1, "cpu")


def settled(monkeypatch, offered: Pairing, *arguments: str) -> Namespace:
    monkeypatch.setattr(drafting, "pairing", lambda id: offered)
    options = make_parser().parse_args(["run", "--prompt", "x", *arguments])
    settle_drafter(options)
    return options


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {**WITHOUT_CONFIDENCE, "eagle.confidence": 0.2}),
        (["--nodes", "12"], {"tree": True, "nodes": 12, "branches": 3, "eagle.confidence": 0.2}),
        (["--no-tree"], {"eagle.confidence": 0.2}),
        (["--gamma-policy", "fixed"], WITHOUT_CONFIDENCE),
        (["--gamma-policy", "adaptive"], WITHOUT_CONFIDENCE),
        (["--confidence", "0.5"], {**WITHOUT_CONFIDENCE, "confidence": 0.5}),
    ],
)
def test_an_option_is_for_all_parts_and_what_is_left_out_stays_part_by_part(monkeypatch, arguments, expected):
    offered = pairing(ngram_eagle=BY_PART)
    options = settled(monkeypatch, offered, "--drafter", "ngram+eagle", *arguments)
    assert drafter_settings(options, offered) == expected
    assert options.gamma_policy == (arguments[1] if arguments[:1] == ["--gamma-policy"] else "confidence")


@pytest.mark.parametrize(
    ("kind", "option", "value", "wanted"),
    [
        ("draft-model", "--confidence", "nan", "a number from 0 to 1"),
        ("draft-model", "--confidence", "-3", "a number from 0 to 1"),
        ("ngram+eagle", "--confidence", "7", "a number from 0 to 1"),
        ("ngram", "--nodes", "65", "a whole number from 1 to 64"),
        ("ngram+eagle", "--second-gamma", "0", "a whole number from 1 to 64"),
    ],
)
def test_an_option_out_of_bounds_is_refused_before_anything_is_loaded(monkeypatch, kind, option, value, wanted):
    with pytest.raises(UserError, match=rf"^{option} is {value}(\.0)?; give {wanted}\.$"):
        settled(monkeypatch, pairing(), "--drafter", kind, f"{option}={value}")


def test_a_tree_of_one_part_has_a_shape(monkeypatch):
    offered = pairing(ngram_eagle={"eagle.tree": True, "eagle.nodes": 20})
    options = settled(monkeypatch, offered, "--drafter", "ngram+eagle", "--branches", "2")
    assert drafter_settings(options, offered) == {"eagle.tree": True, "eagle.nodes": 20, "branches": 2}
    chain = settled(monkeypatch, offered, "--drafter", "ngram+eagle", "--no-tree", "--branches", "2")
    with pytest.raises(UserError, match="--branches shapes a tree, and a chain is drafted"):
        drafter_settings(chain, offered)


@pytest.mark.parametrize(
    ("kind", "gamma"),
    [
        ("plain", 4),
        ("ngram", 5),
        ("early-exit", 2),
        ("draft-model", 4),
        ("eagle", 4),
        ("medusa", 4),
        ("mtp", 4),
        ("library", 4),
        ("ngram+eagle", 4),
        ("ngram+early-exit", 2),
    ],
)
def test_the_draft_length_is_the_one_asked_for_else_the_presets_else_what_is_usual(monkeypatch, kind, gamma):
    assert {*DRAFTERS} >= {*kind.split("+")} and usual_gamma(kind) == gamma
    options = settled(monkeypatch, pairing(), "--drafter", kind)
    assert settled_gamma(options) == gamma
    if kind != "plain":
        assert settled_gamma(options, pairing(**{kind.replace("+", "_"): {"gamma": 7}})) == 7
    asked = settled(monkeypatch, pairing(), "--drafter", kind, "--gamma", "0")
    assert settled_gamma(asked, pairing(**{kind.replace("+", "_"): {"gamma": 7}})) == 0


def test_a_target_of_ones_own_has_its_presets_only_once_it_was_looked_at(monkeypatch):
    monkeypatch.setattr(drafting, "pairing", None)
    options = make_parser().parse_args(["bench", "--target", "mine", "--drafter", "early-exit"])
    settle_drafter(options)
    assert settled_gamma(options) == 2
    assert settled_gamma(options, pairing(**{"early-exit": {"gamma": 3}})) == 3
