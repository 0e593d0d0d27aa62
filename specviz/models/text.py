"""From token ids to text, token by token, without ever showing half a character."""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

INCOMPLETE = "\ufffd"  # what a decoder shows for bytes that are no character (yet)
LONGEST_WAIT = 8  # tokens; bytes that are no character after so many are shown as they are


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
        before = self._decode(self.anchor, self.shown)
        after = self._decode(self.anchor, len(self.ids))
        if after.endswith(INCOMPLETE) and len(self.ids) - self.shown < LONGEST_WAIT:
            return ""
        self.anchor, self.shown = self.shown, len(self.ids)
        return after[len(before) :]

    def flush(self) -> str:
        """What is still held back, at the end of a run."""
        if self.tokenizer is None or self.shown == len(self.ids):
            return ""
        before = self._decode(self.anchor, self.shown)
        return self._decode(self.anchor, len(self.ids))[len(before) :]

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
        codes = [_byte_of().get(letter) for letter in name]
        if None in codes:
            return str(name)
        return "⟨" + " ".join(f"{code:02X}" for code in codes if code is not None) + "⟩"


@cache
def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies spell bytes with stand-in letters; this reads them back."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}
