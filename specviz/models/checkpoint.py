"""What a folder or repository in the transformers format has to hold, told from the names and sizes of its files.

`what` is how errors call the model.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specviz.errors import UserError
from specviz.models.kinds import is_dflash
from specviz.refusals import brief

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SMALL = 100_000_000  # bytes; the largest tokenizers have a third of that
MOST_JSON = 2_000_000  # bytes of a configuration; an index of the weights may be as long as any small file
_SMALL_FILE = re.compile(r".*\.(json|txt|jinja|model|tiktoken)|README\.md")
_TOKENIZER_FILE = re.compile(r"(tokenizer|vocab|spiece|sentencepiece|tekken).*|.*\.tiktoken")
_PICKLE = re.compile(r".*\.(bin|pt|pth|ckpt|pkl)")


def small_files(files: Mapping[str, int]) -> list[str]:
    """The files that describe a model: configuration, tokenizer, chat template, index of the weights, card."""
    return [name for name, size in files.items() if _SMALL_FILE.fullmatch(name) and size <= SMALL]


def check_names(what: str, names: Collection[str]) -> None:
    """Raise UserError if these files can't be those of a model that is read here."""
    weights = [name for name in names if name.endswith(".safetensors") or name == INDEX]
    own = [name for name in weights if not name.startswith("adapter_")]
    gguf = [name for name in names if name.endswith(".gguf")]
    pickles = [name for name in names if _PICKLE.fullmatch(name)]
    if "adapter_config.json" in names and not own:
        raise UserError(f"{what} is only an adapter (PEFT), so merge it with its base model and give the result.")
    if gguf and not own:
        raise UserError(
            f"{what} has its weights only as GGUF, so give the model with safetensors that it was made from."
        )
    if CONFIG not in names:
        raise UserError(f"{what} has no {CONFIG}, so give a model that is saved in the transformers format.")
    if pickles and not own:
        raise UserError(
            f"{what} has its weights only as pickles ({pickles[0]}), which can run code when they are read, so give a "
            "version with safetensors."
        )
    if not own:
        raise UserError(f"{what} has no safetensors weights, so give a model that has.")


def has_tokenizer(names: Collection[str]) -> bool:
    """Whether any of these files is a tokenizer's."""
    return any(_TOKENIZER_FILE.fullmatch(name) for name in names)


def check_tokenizer(what: str, names: Collection[str], folder: Path) -> None:
    """Raise UserError if the model in the folder needs a tokenizer and none is among these files.

    A DFlash model needs none: it drafts its target's tokens.
    """
    kind = str(read_json(what, folder / CONFIG).get("model_type"))
    if not has_tokenizer(names) and not is_dflash(kind):
        raise UserError(f"{what} has no tokenizer, so give a version with one, or save its base model's beside it.")


def weight_files(what: str, files: Mapping[str, int], folder: Path) -> dict[str, int]:
    """The files that transformers loads the weights from, with their sizes; other versions beside them are left out.

    folder: where configuration and index lie. Raises UserError if the weights go by other names, or not all are there.
    """
    first = str(read_json(what, folder / CONFIG).get("transformers_weights"))
    found = [name for name in (first, WEIGHTS, INDEX) if name in files]
    if not found:
        raise UserError(
            f"{what} has safetensors files but neither {WEIGHTS} nor {INDEX}, so give a version that is saved in the "
            "transformers format."
        )
    if not found[0].endswith(".index.json"):
        return {found[0]: files[found[0]]}
    parts = read_json(what, folder / found[0]).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise UserError(f"{found[0]} of {what} names no weight files, so give a complete version.")
    named = {str(name) for name in parts.values()}
    if lacking := sorted(named - files.keys()):
        raise UserError(
            f"{what} lacks {len(lacking)} of the weight files that its index names (first {brief(lacking[0])!r}), so "
            "give a complete version."
        )
    return {name: files[name] for name in sorted(named)}


def is_complete(files: Mapping[str, int], folder: Path) -> bool:
    """Whether configuration, tokenizer and weights are all among these files."""
    try:
        check_names("", files)
        check_tokenizer("", files, folder)
        return bool(weight_files("", files, folder))
    except UserError:
        return False


def check_sound(what: str, folder: Path, names: Collection[str]) -> None:
    """Raise UserError if a weight file is not as long as its header says; nothing else of it is read, or mapped."""
    for name in names:
        try:
            length = _length(folder / name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            length = -1
        if length != (folder / name).stat().st_size:
            raise UserError(f"{name} of {what} is damaged or incomplete, so delete {folder / name} and fetch it again.")


def _length(path: Path) -> int:
    """How many bytes a file of safetensors must have, by its header: https://huggingface.co/docs/safetensors."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > SMALL:
            raise ValueError("no header is so long")
        header = json.loads(file.read(size))
    ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    return 8 + size + max(ends, default=0)


def read_json(what: str, path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; raises UserError if it holds none, and reads no further than such files are long."""
    most = SMALL if path.name.endswith(".index.json") else MOST_JSON
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
        if len(raw) > most:
            raise ValueError(f"it has more than {most:,} bytes")
        content = json.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path.name} of {what} can't be read ({error}), so give a complete version.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} of {what} holds no mapping, so give a complete version.")
    return content
