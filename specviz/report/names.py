"""Texts of unknown origin, such as the ids of a user's prompts, as they can be shown."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cs")  # control characters, and half a surrogate pair
TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # of writing direction


def visible(text: str) -> str:
    """The text on one line; what has no shape of its own, or would change how the text around it reads, as its code."""
    return "".join(f"\\u{ord(sign):04x}" if _is_hidden(sign) else sign for sign in " ".join(text.split()))


def visible_code(line: str) -> str:
    """The same for a line of code, which keeps the spaces that it begins with."""
    return line[: len(line) - len(line.lstrip(" "))] + visible(line)


def _is_hidden(sign: str) -> bool:
    return unicodedata.category(sign) in HIDDEN or sign in TURNING


def plural(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
