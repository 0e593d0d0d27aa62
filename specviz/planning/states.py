"""What a trained head takes of memory beside its file: states of the target, and rows of its LM head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FUSED = 3  # layers of the target whose states an EAGLE-3 head reads, unless its configuration names them


def states_read(kind: str, config: Mapping[str, Any]) -> int:
    """Of how many of the target's layers a head for this drafter reads the states. config: its config.json."""
    parts = kind.split("+")
    if "eagle" in parts:
        inner = config.get("eagle_config")
        named = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
        named = named or config.get("eagle_aux_hidden_state_layer_ids")
        if isinstance(named, list):
            return len(named)
        return FUSED if config.get("draft_vocab_size") is not None else 1  # EAGLE-1 and 2 have all tokens
    return int(bool({"medusa", "mtp"} & {*parts}))


def lent_bytes(config: Mapping[str, Any]) -> int:
    """Size, in 16 bits, of the rows of the target's LM head that a head of ours copies, for the tokens that it drafts.

    Heads of others bring theirs in their file. config: its config.json.
    """
    tokens, width = config.get("draft_vocab_size"), config.get("hidden_size")
    if "specviz" not in config or not isinstance(tokens, int) or not isinstance(width, int):
        return 0
    return 2 * tokens * width
