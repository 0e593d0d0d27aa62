"""A model's configuration as it counts here: without what its file may not decide, and with limits on its sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG, read_json

# Entries without effect here. The first six can make transformers download a kernel from the Hub and run it, already
# when a model is built without its weights; the others name code, and files to be read in this one's place.
IGNORED = {
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    *("auto_map", "configuration_files"),
}
# Above these, building a model takes long even without its weights. By what the entries' names end in.
LIMITS = {"layers": (re.compile(r"layers?$"), 1_000), "experts": (re.compile(r"experts$"), 4_096)}
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")


def config_of(what: str, folder: Path) -> PreTrainedConfig:
    """The configuration of the model in a folder, to be given to whatever builds or loads that model.

    what: how errors call the model. Raises UserError for sizes that no model has, and what transformers raises for a
    file that is wrong in another way.
    """
    raw = cleaned(read_json(what, folder / CONFIG))
    _check_limits(what, raw)
    # Through a file, because transformers looks up the class of a configuration for files only.
    with TemporaryDirectory() as place:
        (Path(place) / CONFIG).write_text(json.dumps(raw), encoding="utf-8")
        config: PreTrainedConfig = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    config.name_or_path = str(folder)
    _check_sizes(what, config.get_text_config(decoder=True))
    return config


def cleaned(value: Any) -> Any:
    """The same without the entries that are ignored, at any depth: a model's parts have configurations of their own."""
    if isinstance(value, dict):
        return {name: cleaned(entry) for name, entry in value.items() if name not in IGNORED}
    return [cleaned(entry) for entry in value] if isinstance(value, list) else value


def _check_limits(what: str, raw: dict[str, Any]) -> None:
    """Raise UserError if any part has more layers or experts than models have."""
    for name, value in _numbers(raw):
        for things, (pattern, limit) in LIMITS.items():
            if pattern.search(name) and value > limit:
                raise UserError(
                    f"{CONFIG} of {what} names more than {limit} {things} ({name}), so choose a smaller model."
                )


def _numbers(raw: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The entries that are numbers, at any depth."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield name, value


def _check_sizes(what: str, text: PreTrainedConfig) -> None:
    """Raise UserError if a size of the language model is not positive."""
    for name in SIZES:
        # Not by getattr, which refuses where the size differs between layers.
        value = vars(text).get(text.attribute_map.get(name, name))
        if isinstance(value, int) and value <= 0:
            raise UserError(
                f"{CONFIG} of {what} names {value} as {name}, so choose a version whose sizes are positive."
            )
