"""What the README promises to machines: its front matter configures a Space, and its pictures are there."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from specviz.memory import human
from specviz.presets import load_pairings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def front_matter() -> dict[str, object]:
    opening, block, _ = re.split(r"^---$", README, maxsplit=2, flags=re.MULTILINE)
    assert opening == ""
    return yaml.safe_load(block)


def test_the_front_matter_starts_this_app_on_a_space():
    space = front_matter()
    assert space["sdk"] == "gradio" and space["license"] == "apache-2.0"
    assert (ROOT / str(space["app_file"])).exists()
    assert space["python_version"] == "3.12"  # a text: as a number, 3.10 would be 3.1
    assert len(str(space["short_description"])) <= 60


def test_the_space_gets_a_gradio_that_the_requirements_allow():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (gradio,) = [Requirement(line.split("#")[0]) for line in lines if line.startswith("gradio")]
    assert gradio.specifier.contains(str(front_matter()["sdk_version"]))
    assert not gradio.specifier.contains("6.30.0")


def test_every_pairing_stands_in_the_table_with_its_memory_and_hardware():
    _, _, section = README.partition("\n## Pairings\n")
    rows = dict(re.findall(r"^\| `([^`]+)`(.*)$", section.partition("\n## ")[0], flags=re.MULTILINE))
    for id, pairing in load_pairings().items():
        device = "GPU" if pairing.hardware == "accelerator" else "CPU"
        assert f"| {human(pairing.memory_mb * 10**6)} | {device} |" in rows[id]
        assert ("gated" in rows[id]) == any(model.gated for model in pairing.models)
    assert rows.keys() == load_pairings().keys()


def test_every_picture_and_file_that_is_linked_is_there():
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(linked) >= 4
    assert [name for name in linked if not (ROOT / name).exists()] == []
