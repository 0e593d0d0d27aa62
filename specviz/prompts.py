"""From what is typed, after what was said before, to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.errors import UserError
from specviz.models.target import Target
from specviz.refusals import refused_as

MAX_PROMPT_CHARS = 200_000  # refused before it is tokenised


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said before in a conversation."""

    user: str
    assistant: str


def encode(target: Target, prompt: str, *, raw: bool = False, history: Sequence[Turn] = ()) -> list[int]:
    """Token ids of a prompt: a user turn in the chat template, after the turns before it, or the bare text of all.

    Nothing is added to either.
    """
    if not (prompt if raw else prompt.strip()):
        raise UserError("The prompt is empty; type something.")
    text = conversation(prompt, raw=raw, history=history)
    check_text(text, "The conversation" if history else "The prompt")
    if len(text) > MAX_PROMPT_CHARS:
        what = "conversation" if history else "prompt"
        raise UserError(f"The {what} has {len(text)} characters; the limit is {MAX_PROMPT_CHARS}, so shorten it.")
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise UserError(f"{target.name} has no tokenizer, so it can't read text.")
    if raw:
        return list(tokenizer.encode(text, add_special_tokens=False))
    if not tokenizer.chat_template:
        raise UserError(f"{target.name} has no chat template; use the raw prompt.")
    messages = [{"role": role, "content": said} for role, said in _messages(prompt, history)]
    with refused_as(f"The chat template of {target.name} can't be used", "so use the raw prompt"):
        return list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        )


def conversation(prompt: str, *, raw: bool = False, history: Sequence[Turn] = ()) -> str:
    """A prompt and the turns before it as one text: what the target reads if raw, else each turn under its role."""
    if not history:
        return prompt
    messages = _messages(prompt, history)
    if raw:
        return "".join(said for _, said in messages)
    return "\n\n".join(f"{role.capitalize()}: {said}" for role, said in messages)


def _messages(prompt: str, history: Sequence[Turn]) -> list[tuple[str, str]]:
    """Role and text of every message, the prompt last."""
    before = [said for turn in history for said in (("user", turn.user), ("assistant", turn.assistant))]
    return [*before, ("user", prompt)]


def check_text(text: str, what: str) -> None:
    """Refuse what is no text: bytes that some decoder let through as half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} holds bytes that are not UTF-8; write it in UTF-8.") from None
