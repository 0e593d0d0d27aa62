"""An estimate beside what a process of its own really took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.errors import UserError
from specviz.memory import Budget

ROOT = Path(__file__).resolve().parents[2]
NEW_TOKENS = 16  # decoded after the prompt, which fills the rest of the context
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One decode. `expected`, `measured`: bytes beyond what the process had before it loaded anything."""

    context: int
    need: Budget
    measured: int | None

    @property
    def expected(self) -> int:
        return self.need.expected

    @property
    def difference(self) -> float | None:
        """(expected - measured) / measured."""
        return None if not self.measured else (self.expected - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Report:
    """What a process took, in bytes.

    `before`: with all libraries imported and a tiny model run once. `loading`: how far it grew while it loaded, where
    the system tells. `held`: by how much more it had when that was over. `idle`: checkpoint pages that stay mapped and
    unused, which the system takes back when it needs them; they are not in `held` and `measured`.
    """

    before: int
    loading: int | None
    held: int
    idle: int
    runs: tuple[Measured, ...]


def measure(
    pairing: str,
    drafter: str,
    settings: Mapping[str, Any],
    contexts: Sequence[int],
    *,
    gamma: int,
    dtype: str = "auto",
    device: str = "auto",
    offline: bool = False,
    new_tokens: int = NEW_TOKENS,
) -> Report:
    """Load the pairing in a fresh process and decode once for each context, an after another.

    Raises UserError with what the process said if it could not.
    """
    request = {
        "pairing": pairing,
        "drafter": drafter,
        "settings": dict(settings),
        "contexts": list(contexts),
        "gamma": gamma,
        "dtype": dtype,
        "device": device,
        "offline": offline,
        "new_tokens": new_tokens,
    }
    # Freed memory goes back at once, so that what is measured is what is held and not what the C library keeps of it.
    environment = {**os.environ, **GIVES_BACK}
    made = subprocess.run(
        [sys.executable, "-m", "specviz.planning.child"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    if made.returncode:
        reason = (made.stderr.strip().splitlines() or ["it was ended by the system"])[-1]
        raise UserError(f"Nothing could be measured ({reason}), so correct that and try again.")
    found = json.loads(made.stdout)
    runs = tuple(Measured(each["context"], Budget(**each["need"]), each["measured"]) for each in found["runs"])
    return Report(found["before"], found["loading"], found["held"], found["idle"], runs)
