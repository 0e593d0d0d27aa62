"""Where a run ends: stop tokens, stop strings and the token budget, cut at one point for ids, text and trace alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.models.text import TextStream
from specviz.trace import CutReason


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of a step's tokens."""

    committed: tuple[int, ...]
    text: tuple[str, ...]  # per committed token
    reason: CutReason | None  # why the run ends here; None if it goes on


class Ending:
    """Follows a run's tokens and says where it ends.

    The earliest reason wins. The token that brings it is kept: a stop token as the last id, a stop string in the text
    up to the end of the token that completes it, so that ids and text always say the same.
    """

    def __init__(
        self, stream: TextStream, budget: int, stop_tokens: frozenset[int], stop_strings: Sequence[str]
    ) -> None:
        self.stream, self.room = stream, budget
        self.stop_tokens, self.stop_strings = stop_tokens, tuple(stop_strings)
        self._overlap = max((len(string) for string in stop_strings), default=1) - 1
        self._tail = ""  # text that may hold the beginning of a stop string

    def cut(self, tokens: Sequence[int]) -> Cut:
        """Keep these tokens up to and including the one that ends the run."""
        committed: list[int] = []
        text: list[str] = []
        reason: CutReason | None = None
        for token in tokens:
            committed.append(token)
            text.append(self.stream.push(token))
            self.room -= 1
            reason = self._reason(token, text[-1])
            if reason:
                text[-1] += self.stream.flush()
                break
        return Cut(tuple(committed), tuple(text), reason)

    def _reason(self, token: int, piece: str) -> CutReason | None:
        if token in self.stop_tokens:
            return "stop_token"
        window = self._tail + piece
        if any(string in window for string in self.stop_strings):
            return "stop_string"
        self._tail = window[-self._overlap :] if self._overlap else ""
        return "length" if self.room == 0 else None
