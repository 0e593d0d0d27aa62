"""From token ids to text, token by token, without ever showing half a character."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

INCOMPLETE = "\ufffd"  # what a decoder shows for bytes that are no character (yet)
LONGEST_WAIT = 8  # tokens; bytes that are no character are then shown as they are, but for the last few


class TextStream:
    """Detokenises a growing sequence. The pieces, joined, are the decoded text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, prompt: list[int]) -> None:
        """prompt: its end gives the first new token its context (some tokenizers drop a leading space)."""
        self.tokenizer = tokenizer
        self.ids = prompt[-4:]
        self.shown = len(self.ids)  # ids before this one have been shown
        self.anchor = 0  # decoding starts here, so that the cost per token stays the same

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is incomplete."""
        self.ids.append(token)
        if self.tokenizer is None:
            return f"⟨{token}⟩"
        end = len(self.ids)
        if self._decode(self.anchor, end).endswith(INCOMPLETE):
            if end - self.shown < LONGEST_WAIT:
                return ""
            end = self._boundary()
        piece = self._between(end)
        self.anchor, self.shown = self.shown, end
        return piece

    def flush(self) -> str:
        """What is still held back, at the end of a run."""
        if self.tokenizer is None or self.shown == len(self.ids):
            return ""
        return self._between(len(self.ids))

    def _between(self, end: int) -> str:
        """What the ids up to `end` add to those shown; a character that the prompt began is shown whole."""
        before, after = self._decode(self.anchor, self.shown), self._decode(self.anchor, end)
        if not after.startswith(before):
            before = before.rstrip(INCOMPLETE)
        return after[len(before) :]

    def _boundary(self) -> int:
        """The last place that cuts no character, not even one still to be completed: that has 3 bytes at most."""
        end = len(self.ids)
        text = self._decode(self.anchor, end)
        for place in range(end - 3, end - 7, -1):
            if self._decode(self.anchor, place) + self._decode(place, end) == text:
                return place
        return end

    def _decode(self, start: int, end: int) -> str:
        return decode(self.tokenizer, self.ids[start:end])


def decode(tokenizer: Any, ids: list[int]) -> str:
    """All tokens as text, special ones too, nothing tidied."""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class TokenText:
    """The text of single tokens, for display. Bytes that are no character alone are named: ⟨F0 9F⟩."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._text(token)
        return self._known[token]

    def _text(self, token: int) -> str:
        if self.tokenizer is None:
            return f"⟨{token}⟩"
        name = self.tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return f"⟨{token}⟩"  # a padding row of the vocabulary
        if name.startswith("▁"):  # SentencePiece writes spaces so; decoded alone, a leading one is lost
            return str(name).replace("▁", " ")
        text = decode(self.tokenizer, [token])
        if INCOMPLETE not in text:
            return text
        if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):  # how SentencePiece spells a byte
            return f"⟨{byte[1]}⟩"
        codes = [_byte_of().get(letter) for letter in name]
        if None in codes:
            return str(name)
        return "⟨" + " ".join(f"{code:02X}" for code in codes if code is not None) + "⟩"


@cache
def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies spell bytes with stand-in letters; this reads them back."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}
