"""What an acceptance length depends on besides the draft length: what differs from what a golden file states.

A golden file states it in its comments and in its curves' names. What only one side knows is not compared.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from specviz.golden.curves import Curve, Golden

# By the names that golden files' comments have for them, as `temperature`; and `model`, `drafter` and `method`.
Facts = dict[str, str]
JOINED = " + "  # between target and drafter in the names of our own curves
_SAMPLING = re.compile(r"(\w+) (-?[\d.]+)")  # as in "temperature 0.6, top_p 0.95"


class Difference(NamedTuple):
    """A condition that is another one in the golden file than where it was measured."""

    what: str
    golden: str
    measured: str

    def __str__(self) -> str:
        return f"{self.what}: {self.golden} in the golden file, {self.measured} in what was measured"


def differences(file: Golden, curve: Curve, measured: Facts) -> list[Difference]:
    """Conditions that both know and that are not the same. `measured`: those of the measurement."""
    stated = _stated(file, curve)
    return [
        Difference(what, stated[what], value)
        for what, value in measured.items()
        if what in stated and not _is_same(what, stated[what], value)
    ]


def _stated(file: Golden, curve: Curve) -> Facts:
    """What the file says of the curve; sampling may be stated for each mode apart."""
    target, _, drafter = curve.model.partition(JOINED)
    named = {"model": target, "drafter": drafter, "method": file.method or ""}
    sampling = dict(_SAMPLING.findall(file.provenance.get(f"{curve.mode} sampling", "")))
    return {**file.provenance, **sampling, **{what: name for what, name in named.items() if name}}


def _is_same(what: str, golden: str, measured: str) -> bool:
    if what == "dataset":  # a part of it is what the curve's mode names
        return {*measured.split(", ")} <= {*golden.split(", ")}
    if what == "method":  # "eagle3" is a kind of "eagle"
        return measured.lower() in golden.lower()
    try:
        return float(golden) == float(measured)
    except ValueError:
        return golden.casefold() == measured.casefold()
