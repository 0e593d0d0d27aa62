"""What the tensors of a layout are called in its files and inside a head."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

SAME = tuple((name, name) for name in ("fc.", "norm.", "lm_head.", "embed_tokens."))
_FOREIGN = ("", "foreign.")  # what the layout does not know: no head has such a parameter, so it is found unexpected


@dataclass(frozen=True, slots=True)
class Names:
    """Pairs of prefixes, in the file and inside; the first that fits holds."""

    pairs: tuple[tuple[str, str], ...]

    def inside(self, name: str) -> str:
        return _replaced(name, (*self.pairs, _FOREIGN))

    def in_file(self, name: str) -> str:
        return _replaced(name, ((inside, outside) for outside, inside in (*self.pairs, _FOREIGN)))

    def of_head(self, names: Iterable[str]) -> list[str]:
        """Those of a file's names that belong to the layout."""
        return [name for name in names if name.startswith(tuple(outside for outside, _ in self.pairs))]


def _replaced(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for prefix, other in pairs:
        if name.startswith(prefix):
            return other + name[len(prefix) :]
    return name


def numbered(names: Collection[str], prefix: str) -> set[int]:
    """The numbers that follow the prefix, as in "layers.0.": {0}. Ones of more than nine digits count no layers."""
    heads = (name[len(prefix) :].partition(".")[0] for name in names if name.startswith(prefix))
    return {int(head) for head in heads if head.isdecimal() and len(head) <= 9}
