"""`python -m specviz space`: what the folder holds for each hardware, and that it starts where nothing else is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from browser import free_port
from gradio_client import Client
from huggingface_hub import SpaceHardware
from packaging.requirements import Requirement

from specviz.cli import main
from specviz.presets import load_pairings

ROOT = Path(__file__).parent.parent
KINDS = ("cpu", "gpu", "zerogpu")
LARGEST = 10_000_000  # bytes; the Hub wants larger files in large-file storage
STARTS_WITHIN = 120  # seconds


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One for each hardware, as the command writes it."""
    made = {kind: tmp_path_factory.mktemp("spaces") / kind for kind in KINDS}
    for kind, out in made.items():
        assert main(["space", "--hardware", kind, str(out)]) == 0
    return made


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def front_matter(folder: Path) -> dict[str, Any]:
    opening, block, _ = re.split(r"^---$", (folder / "README.md").read_text("utf-8"), maxsplit=2, flags=re.MULTILINE)
    assert opening == ""
    return yaml.safe_load(block)


def requirements(folder: Path) -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (folder / "requirements.txt").read_text("utf-8").splitlines())
    read = [Requirement(line) for line in lines if line and not line.startswith("-")]
    assert len({each.name for each in read}) == len(read)
    return {each.name: each for each in read}


# --- what it holds


@pytest.mark.parametrize("kind", KINDS)
def test_it_holds_the_app_and_nothing_of_its_development(folders, kind):
    folder = folders[kind]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [
            ".gitattributes",
            ".gitignore",
            "LICENSE",
            "README.md",
            "app.py",
            "assets",
            "presets",
            "requirements.txt",
            "specviz",
        ]
    )
    for part in ("specviz", "presets", "assets/js", "assets/css", "assets/drafters"):
        kept = {file.relative_to(ROOT) for file in files(ROOT / part) if file.suffix != ".pyc"}
        assert {file.relative_to(folder) for file in files(folder / part)} == kept and kept
    assert "*.safetensors filter=lfs" in (folder / ".gitattributes").read_text("utf-8")
    for file in files(folder):
        if file.suffix == ".safetensors":
            continue
        text = file.read_bytes().decode()  # a push refuses binary files that are not in large-file storage
        assert "\0" not in text and len(text) < LARGEST
        assert str(ROOT) not in text and str(Path.home()) + os.sep not in text


@pytest.mark.parametrize("kind", KINDS)
def test_its_readme_configures_the_space(folders, kind):
    folder, space = folders[kind], front_matter(folders[kind])
    wanted = {
        "cpu": ("cpu-basic", "3.12"),
        "gpu": ("l4x1", "3.12"),
        "zerogpu": ("zero-a10g", "3.12.12"),
    }
    assert (space["suggested_hardware"], space["python_version"]) == wanted[kind]
    assert space["suggested_hardware"] in set(SpaceHardware)
    assert space["sdk"] == "gradio" and space["license"] == "apache-2.0" and (folder / space["app_file"]).exists()
    assert str(requirements(folder)["gradio"].specifier) == f"=={space['sdk_version']}"
    assert len(space["short_description"]) <= 60
    text = (folder / "README.md").read_text("utf-8")
    assert text.count("\n# ") == 1 and "![" not in text and "SPECVIZ_PAIRINGS" in text
    assert [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (folder / link).exists()] == []


def test_it_names_the_models_that_can_run_there(folders):
    models = {kind: front_matter(folders[kind])["models"] for kind in KINDS}
    default = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert models["zerogpu"] == [default]
    assert all(names[0] == default and len(names) == len(set(names)) for names in models.values())
    assert set(models["gpu"]) == {model.hub.repo for pairing in load_pairings().values() for model in pairing.models}
    assert set(models["cpu"]) < set(models["gpu"]) and "Qwen/Qwen3-8B" not in models["cpu"]


def test_it_asks_for_the_torch_that_the_hardware_runs(folders):
    project = requirements(ROOT)
    for kind in KINDS:
        asked = requirements(folders[kind])
        own = {"torch", "gradio", "spaces"}
        assert {name: str(asked[name]) for name in asked.keys() - own} == {
            name: str(project[name]) for name in project.keys() - own
        }
    assert str(requirements(folders["zerogpu"])["torch"].specifier) == "==2.11.0"
    assert [kind for kind in KINDS if "spaces" in requirements(folders[kind])] == ["zerogpu"]
    assert requirements(folders["gpu"])["torch"] == requirements(folders["cpu"])["torch"] == project["torch"]


# --- the command


def test_it_says_in_two_lines_how_to_go_on(tmp_path, capsys):
    assert main(["space", "--hardware", "gpu", str(tmp_path / "new" / "space")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 and "--flavor l4x1" in out[0] and f"hf upload specviz {tmp_path / 'new' / 'space'} ." in out[1]


def test_it_writes_over_nothing(tmp_path, capsys):
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for taken, words in (
        (kept, "exists and is not an empty folder; choose another, or empty it."),
        (tmp_path, "exists and is not an empty folder; choose another, or empty it."),
        (ROOT / "specviz" / "space", "lies inside the app itself; choose a folder elsewhere."),
        (kept / "below", "can't be written (Not a directory); choose another folder."),
    ):
        assert main(["space", str(taken)]) == 2
        assert capsys.readouterr().err == f"specviz: {taken} {words}\n"
    assert kept.read_text() == "mine" and not (ROOT / "specviz" / "space").exists()
    (tmp_path / "empty").mkdir()
    assert main(["space", str(tmp_path / "empty")]) == 0


# --- it starts


def python_3_12() -> Path | None:
    """A Python 3.12 that can make environments, if this machine has one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = [Path(found) for found in (sys.executable, shutil.which("python3.12")) if found]
    asking = "import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 12))"
    for each in [*named, *sorted(pyenv.glob("versions/3.12*/bin/python"))]:
        if subprocess.run([each, "-c", asking], capture_output=True, check=False).returncode == 0:
            return each
    return None


@pytest.fixture
def environment(tmp_path: Path, folders: dict[str, Path]) -> Iterator[Path]:
    """A new Python 3.12 with nothing but what the CPU Space asks for."""
    python = python_3_12()
    if python is None:
        pytest.skip("There is no Python 3.12 here; install one, with its venv module, to try the prepared Space.")
    folder = tmp_path / "environment"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    install = ["-m", "pip", "install", "-q", "--no-compile", "-r", folders["cpu"] / "requirements.txt"]
    try:
        subprocess.run([python, "-m", "venv", folder], env=own, check=True)
        done = subprocess.run([folder / "bin" / "python", *install], env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes


@pytest.fixture
def space(environment: Path, folders: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """The address of the Space's page, started as Spaces starts it; only that it listens to this machine alone."""
    port = str(free_port())
    variables = {
        "SYSTEM": "spaces",
        "SPACE_ID": "somebody/specviz",
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": port,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "OMP"))}
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            [environment / "bin" / "python", "app.py"],
            cwd=folders["cpu"],
            env={**own, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}/"
        deadline = time.monotonic() + STARTS_WITHIN
        while not answers(address):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.model
def test_the_folder_starts_and_decodes_on_a_bare_python_3_12(space):
    assert '"title":"specviz"' in httpx.get(space).text
    client = Client(space, verbose=False)
    answer = client.predict("Count to five, twice.", max_new_tokens=16, measure=False, api_name="/run")
    client.close()
    assert answer["run"]["target"] == "SmolLM2-135M-Instruct" and answer["run"]["versions"]["python"].startswith("3.12")
    assert 0 < len(answer["tokens"]) <= 16 and answer["acceptance"]["steps"] > 0
    assert answer["text"].strip()
