"""`space`: a folder that is this app as a Hugging Face Space, ready to push."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specviz.errors import UserError
from specviz.presets import Pairing, load_pairings

ROOT = Path(__file__).parents[2]
COPIED = ("app.py", "specviz", "assets", "presets", "LICENSE", ".gitignore")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.py[cod]", "images")  # the pictures are the README's
# A push refuses binary files that are not in large-file storage; the trained drafters are the only ones.
STORAGE = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a Space needs to run on it. Front matter: https://huggingface.co/docs/hub/spaces-config-reference."""

    flavor: str  # the Hub's name: huggingface_hub.SpaceHardware
    requirements: Mapping[str, str]  # lines in place of those of requirements.txt, by package; others are added
    offers: str  # "cpu": the pairings that run on one; "first": that one; "every"
    note: str  # for the Space's README
    front_matter: Mapping[str, str] = field(default_factory=dict)  # besides the project's own


HARDWARE = {
    "cpu": Hardware(
        "cpu-basic",
        {},  # the build with CUDA, larger by several GB than need be, runs on a CPU as well
        "cpu",
        "Pairings that need a GPU are listed, with the reason why they can't run here.",
    ),
    "gpu": Hardware(
        "l4x1",  # the cheapest that computes in bfloat16: https://huggingface.co/docs/hub/spaces-gpus
        {},  # the build with CUDA 13
        "every",
        "Weights are fetched when a visitor first chooses a pairing; gated ones need the secret `HF_TOKEN`.",
    ),
    "zerogpu": Hardware(
        "zero-a10g",  # the flavor's name has outlived the GPU
        # The newest torch and the Python that ZeroGPU supports: https://huggingface.co/docs/hub/spaces-zerogpu
        {"torch": "torch==2.11.0", "spaces": "spaces  # whichever release ZeroGPU itself has installed"},
        "first",
        "Models are loaded when the Space starts: the first pairing, or those that the variable names. A run takes a "
        "GPU for some seconds of the visitor's quota; where none is to be had, a recorded run is shown, which says so.",
        {"python_version": "3.12.12", "startup_duration_timeout": "1h"},
    ),
}


def command(options: argparse.Namespace) -> None:
    out: Path = options.out
    hardware = HARDWARE[options.hardware]
    check_empty(out)
    try:
        write(hardware, out)
    except OSError as error:
        raise UserError(f"{out} can't be written ({error.strerror}); choose another folder.") from error
    print(
        f"{out} is ready. For a new Space: hf repos create specviz --type space --sdk gradio --flavor {hardware.flavor}"
    )
    print(f"Then: hf upload specviz {out} . --type space (after a change, write the folder anew and upload it again)")


def check_empty(out: Path) -> None:
    """Raises UserError for a folder that holds something, or that lies in what is to be copied."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; choose another, or empty it.")
    if any(out.resolve().is_relative_to(ROOT / name) for name in COPIED):
        raise UserError(f"{out} lies inside the app itself; choose a folder elsewhere.")


def write(hardware: Hardware, out: Path) -> None:
    """Fill the folder. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, out / name, ignore=LEFT_OUT)
        else:
            shutil.copyfile(source, out / name)
    (out / ".gitattributes").write_text(STORAGE, encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, front_matter, body = re.split(r"^---$", text, maxsplit=2, flags=re.MULTILINE)
    settings = settings_of(hardware, yaml.safe_load(front_matter))
    (out / "README.md").write_text(readme(hardware, settings, body), encoding="utf-8")
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (out / "requirements.txt").write_text(requirements(hardware, settings, lines), encoding="utf-8")


def offered(hardware: Hardware) -> list[Pairing]:
    """The pairings that a visitor can choose there, unless SPECVIZ_PAIRINGS says otherwise."""
    every = list(load_pairings().values())
    on_cpu = [pairing for pairing in every if pairing.hardware == "cpu"]
    return {"cpu": on_cpu, "first": every[:1], "every": every}[hardware.offers]


def settings_of(hardware: Hardware, project: Mapping[str, Any]) -> dict[str, Any]:
    """The front matter for this hardware, from the project's."""
    models = [model.hub.repo for pairing in offered(hardware) for model in pairing.models if model.hub]
    own = {"suggested_hardware": hardware.flavor, "models": list(dict.fromkeys(models))}
    return {**project, **own, **hardware.front_matter}


def readme(hardware: Hardware, settings: Mapping[str, Any], body: str) -> str:
    """The Space's card: its configuration, what the app is, and what can be set there."""
    opening = re.sub(r"^!\[.*\]\(.*\)\n+", "", body.split("\n## ")[0], flags=re.MULTILINE)
    pairings = ", ".join(f"`{each.id}`" for each in offered(hardware))
    front_matter = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    return (
        f"---\n{front_matter}---\n{opening.rstrip()}\n\n## This Space\n\nIt offers {pairings}. The variable "
        f"`SPECVIZ_PAIRINGS` in its settings names others, with commas between them. {hardware.note}\n"
    )


def requirements(hardware: Hardware, settings: Mapping[str, Any], lines: list[str]) -> str:
    """The project's requirements with what this hardware needs in their place.

    `sdk_version` overrides a requirement on gradio, so the two are kept equal.
    """
    own = {"gradio": f"gradio=={settings['sdk_version']}", **hardware.requirements}
    written = []
    for line in lines:
        name = re.match(r"[\w-]*", line)
        replaced = own.pop(name.group() if name else "", None)
        written.append(line if replaced is None else replaced)
    return "\n".join([*written, *own.values()]) + "\n"
