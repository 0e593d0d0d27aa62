"""The files of a drafter's weights: a config.json and tensors, read with limits and filled in strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from specviz import memory
from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG, INDEX, WEIGHTS, check_sound, read_json, weight_files
from specviz.models.target import Target
from specviz.refusals import brief, refused_as

OURS = "specviz"  # the entry of config.json in which our own training describes what it made
PICKLES = (".bin", ".pt")
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")  # pickles that trainers leave beside the weights
MOST_TENSORS = 1_000_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose config and tensor names are known; the tensors themselves are read when they are asked for.

    shapes: by the tensors' names. sources: the file that holds each. where: what errors call it.
    """

    where: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    sources: dict[str, Path]

    def read(self, names: Collection[str]) -> dict[str, Tensor]:
        """These tensors, on the CPU and in the file's dtypes. Raises UserError if they can't be read or held."""
        with refused_as(f"The weights of {self.where} can't be read", "so fetch them again"), ExitStack() as stack:
            files = {path: _opened(path, stack) for path in {self.sources[name] for name in names}}
            room = memory.available_bytes(torch.device("cpu"))
            if (size := sum(files[self.sources[name]].size(name) for name in names)) > room:
                raise UserError(
                    f"The weights of {self.where} take {memory.human(size)} and {memory.human(room)} of memory are "
                    "free, so choose a smaller drafter."
                )
            return {name: files[self.sources[name]].tensor(name) for name in names}


def open_checkpoint(folder: Path) -> Checkpoint:
    """The config and the tensors' names and shapes. Raises UserError if the folder holds no weights."""
    where, content = str(folder), config(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    sources: dict[str, Path] = {}
    with refused_as(f"The weights in {where} can't be read", "so fetch them again"):
        for path in _weight_paths(folder):
            with ExitStack() as stack:
                file = _opened(path, stack)
                for name in file.names:
                    shapes[name] = file.shape(name)
                    sources[name] = path
    if not shapes or len(shapes) > MOST_TENSORS:
        raise UserError(f"The weights in {where} hold {len(shapes):,} tensors, so they are no drafter's; give another.")
    return Checkpoint(where, content, shapes, sources)


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder's weights by name, on the CPU and in the file's dtypes.

    Safetensors, in one file or several; a pickle (.bin, .pt) only where there are none, and only as plain tensors.
    Raises UserError if there are none, if they are damaged, or if they would not fit in memory.
    """
    found = open_checkpoint(folder)
    return found.read(found.shapes)


def config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises UserError if there is none."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}, so it holds no drafter; give the folder of one.")
    return read_json(str(folder), folder / CONFIG)


def about(folder: Path) -> dict[str, Any]:
    """What our own training says about the drafter, the "specviz" entry of config.json; empty for others' drafters."""
    found = config(folder).get(OURS, {})
    if not isinstance(found, dict):
        raise UserError(f'The "{OURS}" entry of {folder / CONFIG} is no mapping, so give a drafter that is complete.')
    return found


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str, called: Callable[[str], str] = lambda name: name
) -> None:
    """Make the tensors the module's parameters and buffers: all of them, no others, in their own dtypes.

    where: how errors call the file; called: what a parameter is called there. Raises UserError, as `check_shapes`.
    """
    check_shapes(module, tensors, where, called)
    module.load_state_dict(dict(tensors), strict=True, assign=True)


def check_shapes(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str, called: Callable[[str], str] = lambda name: name
) -> None:
    """Raise UserError that names which of the module's tensors are missing, unexpected or of another shape.

    So are those whose values are no numbers with a fraction where the module's are: whole, complex or packed ones.
    """
    wanted = module.state_dict()
    missing = [called(name) for name in wanted if name not in tensors]
    unexpected = [called(name) for name in tensors if name not in wanted]
    shaped = [
        f"{called(name)} is {list(tensors[name].shape)} and should be {list(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    kinds = [
        f"{called(name)} is {brief(tensors[name].dtype)}"
        for name in wanted
        if name in tensors and tensors[name].is_floating_point() != wanted[name].is_floating_point()
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": shaped, "of another type": kinds}
    if said := "; ".join(f"{problem}: {_listed(names)}" for problem, names in problems.items() if names):
        raise UserError(
            f"The tensors of {where} do not fit what its {CONFIG} describes ({said}), so give a version that is "
            "complete and unchanged."
        )


def describe_target(target: Target) -> dict[str, Any]:
    """The entries of "specviz" that tell for which target a drafter was made; `check_target` reads them."""
    return {
        "target": target.name,
        "target_weights": target.weights,
        "target_hidden_size": int(target.config.hidden_size),
        "target_vocab_size": target.vocab_size,
        "target_tokenizer": tokenizer_hash(target.tokenizer),
    }


def check_target(about: Mapping[str, Any], target: Target) -> str | None:
    """What to tell the user about a drafter that was made for other weights of this target; None if nothing.

    about: the "specviz" entry of its config; what that does not say is not checked.
    Raises UserError if it was made for another target: other width, vocabulary, tokenizer, or name and weights.
    """
    ours = describe_target(target)
    made_for = brief(about.get("target", "another target"))
    kinds = {
        "target_hidden_size": "hidden size",
        "target_vocab_size": "vocabulary size",
        "target_tokenizer": "tokenizer",
    }
    for key, kind in kinds.items():
        theirs = about.get(key)
        if theirs is not None and ours[key] is not None and theirs != ours[key]:
            detail = "" if key == "target_tokenizer" else f" ({brief(theirs)}, here {ours[key]})"
            raise UserError(
                f"This drafter was made for {made_for}, whose {kind} is another than that of {target.name}{detail}; "
                "choose one that was made for this target."
            )
    weights = about.get("target_weights")
    if not weights or not target.weights or weights == target.weights:
        return None
    if made_for != target.name and "target" in about:
        raise UserError(
            f"This drafter was made for {made_for}, not for {target.name}; choose one that was made for this target."
        )
    return f"This drafter was made for other weights of {target.name}; it may be accepted a little less often."


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """sha256 over every token and its id; None without a tokenizer."""
    if tokenizer is None:
        return None
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256("\n".join(f"{index} {token!r}" for token, index in entries).encode()).hexdigest()


class _Safetensors:
    """A file of safetensors: names, shapes and single tensors, without reading the rest."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._file: Any = stack.enter_context(safe_open(path, framework="pt"))
        self.names = list(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def size(self, name: str) -> int:
        """Bytes in memory; 8 per value at most, so an upper bound."""
        return int(torch.Size(self.shape(name)).numel()) * _BYTES.get(self._file.get_slice(name).get_dtype(), 8)

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found


_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


class _Pickle:
    """The same of a pickle of plain tensors; what else it holds makes it unreadable. The tensors stay in the file."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
        if not isinstance(content, Mapping) or not all(map(_is_plain, content.values())):
            raise ValueError(f"{path.name} holds something else than plain tensors by name")
        self._tensors: dict[str, Tensor] = {str(name): value for name, value in content.items()}
        self.names = list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def size(self, name: str) -> int:
        return int(self._tensors[name].nbytes)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name].clone()


def _is_plain(value: object) -> bool:
    """Whether it is a tensor whose values stand one beside the other in memory."""
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.layout == torch.strided


def _opened(path: Path, stack: ExitStack) -> _Safetensors | _Pickle:
    return (_Pickle if path.suffix in PICKLES else _Safetensors)(path, stack)


def _weight_paths(folder: Path) -> list[Path]:
    """The files that hold the weights; raises UserError if there are none, or if it is open which."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    single = [name for name in files if name.endswith(".safetensors")]
    if WEIGHTS in files or INDEX in files:
        single = list(weight_files(str(folder), files, folder))
    elif not single:
        single = [name for name in files if name.endswith(PICKLES) and not name.startswith(NOT_WEIGHTS)]
    if not single:
        raise UserError(f"{folder} holds no weights (.safetensors, .bin or .pt), so give the folder of a drafter.")
    if len(single) > 1 and INDEX not in files:
        raise UserError(f"{folder} holds several weight files ({_listed(single)}) and no {INDEX}, so leave only one.")
    if single[0].endswith(".safetensors"):
        check_sound(str(folder), folder, single)
    room = memory.available_bytes(torch.device("cpu"))
    for name in single:
        if name.endswith(PICKLES) and files[name] > room:
            raise UserError(
                f"{name} of {folder} takes {memory.human(files[name])} and {memory.human(room)} of memory are free, so "
                "give it as safetensors, or a smaller drafter."
            )
    return [folder / name for name in single]


def _is_zip(path: Path) -> bool:
    """Whether torch wrote the pickle in its newer form, whose tensors can stay in the file."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _listed(names: Collection[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(brief(name) for name in list(names)[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"
