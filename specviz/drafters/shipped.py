"""Trained drafters that come with the project, `assets/drafters/<target>/<kind>/`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specviz.drafters.base import Weights
from specviz.drafters.heads.files import about
from specviz.models.checkpoint import CONFIG, WEIGHTS
from specviz.models.sources import file_hash
from specviz.models.target import Target

SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "drafters"


def find(kind: str, target: Target) -> Weights | None:
    """The trained drafter of that kind for a target of that name, if one is shipped."""
    for folder in sorted(SHIPPED.glob(f"*/{kind}")):
        whole = all((folder / name).is_file() for name in (CONFIG, WEIGHTS))
        if whole and about(folder).get("target") == target.name:
            return Weights(folder, f"{folder.parent.name}/{kind}", _hash(folder / WEIGHTS))
    return None


@cache
def _hash(path: Path) -> str:
    return f"sha256:{file_hash(path)}"
