"""Imports go one way, and the analysis half works without torch. Read from the sources, and tried in a new process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specviz"

# A module may import those of its own line and of the lines above it. "decoding" is what no longer name covers:
# the engine, where a run ends, its clock and its record.
ENGINE_HALF = (
    ("errors", "theory"),
    ("drafter_settings", "trace", "comparison", "decoding.sampling", "decoding.draft", "presets", "recordings"),
    ("decoding.verify", "models", "memory", "refusals", "planning.room", "planning.states"),
    ("prompts",),
    ("drafters",),
    ("decoding",),
    ("measure",),
    ("loaded", "runs", "own", "bench", "training"),
)
ANALYSIS_HALF = (
    ("errors", "theory"),
    ("trace", "drafter_settings"),
    ("comparison", "presets"),
    ("metrics",),
    ("golden", "golden_options", "synthetic", "acceptance_record"),
    ("figures", "replay", "connect"),
)
# These may import anything.
BOTH_HALVES = ("ui", "cli", "commands", "summary", "__main__", "workloads", "batch", "planning", "serving", "report")

PARTS = {part for half in (ENGINE_HALF, ANALYSIS_HALF, (BOTH_HALVES,)) for line in half for part in line}
HEAVY = ("torch", "transformers")  # what the analysis half does without


def part_of(module: str) -> str | None:
    """The table's entry for a module of the package, the longest name that fits; None if it has none."""
    pieces = module.split(".")
    names = (".".join(pieces[:length]) for length in range(len(pieces), 0, -1))
    return next((name for name in names if name in PARTS), None)


def allowed(part: str) -> set[str]:
    """What a part may import; one that stands in both halves has to keep to both."""
    if part in BOTH_HALVES:
        return PARTS
    above = []
    for half in (ENGINE_HALF, ANALYSIS_HALF):
        for index, line in enumerate(half):
            if part in line:
                above.append({name for earlier in half[: index + 1] for name in earlier})
    return set.intersection(*above)


def imports(module: str, source: str) -> set[str]:
    """Full names of all modules that the source imports, inside functions too."""
    found: set[str] = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            origin = statement.module or ""
            if statement.level:
                inside = f"specviz.{module}".split(".")
                if PACKAGE.joinpath(*module.split(".")).is_dir():
                    inside.append("__init__")
                package = inside[: -statement.level]
                origin = ".".join([*package, *([statement.module] if statement.module else [])])
            found.update(submodule_or_package(origin, alias.name) for alias in statement.names)
    return found


def submodule_or_package(origin: str, name: str) -> str:
    """`from origin import name` imports the module origin.name if there is one, else something inside origin."""
    path = PACKAGE.parent.joinpath(*origin.split("."), name)
    known = origin == "specviz" and name in PARTS
    return f"{origin}.{name}" if known or path.is_dir() or path.with_suffix(".py").exists() else origin


def violations(module: str, source: str) -> list[str]:
    """Sentences on what is wrong with a module's imports; module: its name within the package."""
    part = part_of(module)
    if part is None:
        return [f"{module} has no place in the import order; give it one in the table"]
    complaints = []
    analysis = part in {name for line in ANALYSIS_HALF for name in line}
    for imported in sorted(imports(module, source)):
        first, _, rest = imported.partition(".")
        if analysis and first in HEAVY:
            complaints.append(f"{module} belongs to the analysis half and imports {imported}")
        if first == "specviz" and rest:
            other = part_of(rest)
            if other is None:
                complaints.append(f"{rest}, imported by {module}, has no place in the import order")
            elif other not in allowed(part):
                complaints.append(f"{module} imports {rest}")
    return complaints


def sources() -> dict[str, str]:
    """Every module of the package by its name within it, the package's own __init__ left out."""
    files = {file.relative_to(PACKAGE).with_suffix(""): file for file in PACKAGE.rglob("*.py")}
    named = {".".join(path.parts).removesuffix(".__init__"): file for path, file in files.items()}
    return {name: file.read_text(encoding="utf-8") for name, file in named.items() if name != "__init__"}


@pytest.mark.parametrize("module", sorted(sources()))
def test_imports_go_one_way(module):
    assert violations(module, sources()[module]) == []


def test_the_package_itself_imports_nothing():
    """It is imported before any of its modules, the analysis half included."""
    assert imports("__init__", (PACKAGE / "__init__.py").read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("trace", "import torch", "trace belongs to the analysis half and imports torch"),
        ("metrics", "from torch import nn", "metrics belongs to the analysis half and imports torch"),
        ("figures", "def f():\n    import torch.nn as nn", "figures belongs to the analysis half and imports torch.nn"),
        ("replay", "from transformers import Cache", "replay belongs to the analysis half and imports transformers"),
        ("trace", "from specviz.decoding.draft import Draft", "trace imports decoding.draft"),
        ("theory", "from specviz.figures import style", "theory imports figures.style"),
        ("golden", "from specviz.models.text import decode", "golden imports models.text"),
        ("metrics", "from specviz import measure", "metrics imports measure"),
        ("measure", "from specviz import metrics", "measure imports metrics"),
        ("errors", "from specviz.trace import Run", "errors imports trace"),
        ("decoding.draft", "from specviz.decoding.verify import accept", "decoding.draft imports decoding.verify"),
        ("decoding.sampling", "import specviz.models.cache", "decoding.sampling imports models.cache"),
        ("decoding.verify", "from specviz.decoding import engine", "decoding.verify imports decoding.engine"),
        ("models.target", "from specviz.drafters import NGram", "models.target imports drafters"),
        ("models.target", "from ..drafters import base", "models.target imports drafters.base"),
        ("models.target", "from specviz.decoding.stopping import Ending", "models.target imports decoding.stopping"),
        ("drafters.ngram", "from specviz.decoding.engine import decode", "drafters.ngram imports decoding.engine"),
        ("drafters.ngram", "if True:\n    from specviz.ui import page", "drafters.ngram imports ui.page"),
        ("decoding.engine", "from specviz import measure", "decoding.engine imports measure"),
        ("measure", "from specviz.loaded import load", "measure imports loaded"),
        ("runs", "from specviz.cli import main", "runs imports cli"),
        ("runs", "from specviz.figures.histogram import plot", "runs imports figures.histogram"),
        ("novelty", "", "novelty has no place in the import order; give it one in the table"),
        ("ui.page", "import specviz.novelty", "novelty, imported by ui.page, has no place in the import order"),
    ],
)
def test_a_module_that_breaks_the_order_is_noticed(module, source, complaint):
    assert violations(module, source) == [complaint]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ui.page", "import torch\nfrom specviz import metrics, runs, trace\nfrom specviz.figures import histogram"),
        ("decoding.sampling", "import torch\nfrom specviz.decoding import draft\nfrom specviz import errors"),
        ("models.target", "from . import cache\nfrom .cache import PrefixCache\nfrom specviz.decoding import draft"),
        ("drafters", "from .ngram import NGram\nfrom ..models.target import Target"),
        ("decoding.stopping", "from specviz.models.text import TextStream\nfrom specviz.trace import CutReason"),
        ("figures.wave", "import plotly\nfrom specviz.metrics import acceptance\nfrom specviz import trace"),
        ("runs", "import specviz\nfrom specviz import memory, presets"),
    ],
)
def test_a_module_that_keeps_the_order_is_left_alone(module, source):
    assert violations(module, source) == []


def test_the_analysis_half_works_where_torch_cannot_be_imported():
    """Recorded runs replay anywhere. The child process has no torch to import, and says what it has loaded."""
    half = {name for line in ANALYSIS_HALF for name in line}
    modules = sorted(f"specviz.{module}" for module in sources() if part_of(module) in half)
    assert {"specviz.trace", "specviz.metrics", "specviz.replay"} <= set(modules)
    script = (
        "import importlib, sys\n"
        f"heavy = {HEAVY!r}\n"
        "sys.modules.update(dict.fromkeys(heavy))  # None: importing it fails\n"
        "for module in sys.argv[1:]: importlib.import_module(module)\n"
        "print([name for name in heavy if sys.modules[name] is not None], len(sys.modules) > 50)\n"
    )

    def child(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *names], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120
        )

    tried = child(*modules)
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.split() == ["[]", "True"]
    refused = child("specviz.decoding.draft")
    assert refused.returncode != 0 and "torch" in refused.stderr, "the child could import torch after all"


def test_the_analysis_half_loads_no_torch_where_there_is_one():
    """The same with torch at hand: nothing may load it on the way, not even a dependency."""
    half = {name for line in ANALYSIS_HALF for name in line}
    modules = sorted(f"specviz.{module}" for module in sources() if part_of(module) in half)
    script = "import importlib, sys\nfor m in sys.argv[1:]: importlib.import_module(m)\nprint('torch' in sys.modules)"

    def loads_torch(*names: str) -> str:
        command = [sys.executable, "-c", script, *names]
        return subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True).stdout.strip()

    assert loads_torch(*modules) == "False"
    assert loads_torch("specviz.decoding.draft") == "True"
