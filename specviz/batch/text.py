"""What the sequences of a batch hold: real text, as a mixture of experts takes other ways through random tokens."""

from __future__ import annotations

from specviz.errors import UserError
from specviz.models.target import Target
from specviz.recordings import load_examples

OF_WHAT = "the prompts of the examples, over and over; each sequence begins at another place"


def text_of(target: Target) -> tuple[int, ...]:
    """The examples' prompts as token ids, one after another, without a chat template."""
    if target.tokenizer is None:
        raise UserError(f"{target.name} has no tokenizer, so there is no text to fill its caches with.")
    text = "\n\n".join(example.prompt for example in load_examples().values())
    return tuple(target.tokenizer.encode(text, add_special_tokens=False))
