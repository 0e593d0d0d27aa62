"""Numbers as they came from a form: within their limits, or refused in one sentence."""

from __future__ import annotations

from typing import Any

from specviz.errors import UserError


def whole(name: str, value: Any, low: int, high: int) -> int:
    found = number(name, value, low, high, "a whole number")
    if found != int(found):
        raise UserError(f"{name} is {value:g}; give a whole number from {low:,} to {high:,}.")
    return int(found)


def number(name: str, value: Any, low: float, high: float, kind: str = "a number") -> float:
    if value is None or value == "":
        raise UserError(f"{name} is missing; give {kind} from {low:,} to {high:,}.")
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not low <= value <= high:  # nor is it where the value is no number
        raise UserError(f"{name} is {_said(value)}; give {kind} from {low:,} to {high:,}.")
    return float(value)


def _said(value: Any) -> str:
    """The value as it was typed, at most."""
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to write out the largest
        return "far out of range"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)[:40]
