"""Trained weights for a drafter (a head): what its small files tell before the rest is downloaded.

A head has no tokenizer, and is no model that transformers could build, so little of what a language model needs is
asked of it. Old ones are pickles; they are read as plain tensors only (see `drafters/heads/files.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers import PretrainedConfig

from specviz.errors import UserError
from specviz.models import hub
from specviz.models.checkpoint import CONFIG, INDEX, WEIGHTS, check_sound, read_json, small_files, weight_files
from specviz.models.fetch import Progress
from specviz.models.hub import Repository
from specviz.presets import ModelSource, takes_head
from specviz.refusals import brief

PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt")  # as EAGLE and Medusa publish them


@dataclass(frozen=True, slots=True)
class ExaminedHead:
    """A head that can be had. The fields are those of `examine.Examined` of the same names; `config` is config.json."""

    source: ModelSource
    folder: Path
    weights: dict[str, int]
    repository: Repository | None
    config: dict[str, Any]

    @property
    def weight_bytes(self) -> int:
        """Size of all weight files. Of a head that is part of a model: of that model's."""
        return sum(self.weights.values())


def stored_bytes(folder: Path) -> int:
    """Size of the files that hold a head's weights; what else lies beside them is not read, and not counted."""
    return sum(head_files(str(folder), _files(folder), folder).values())


def share(weight_bytes: int, is_inside: bool, target_config: PretrainedConfig) -> int:
    """What a head takes of its files' size; one that is inside its target's checkpoint counts as one of its layers."""
    if not is_inside:
        return weight_bytes
    return weight_bytes // int(target_config.get_text_config(decoder=True).num_hidden_layers)


def cached_layers(kind: str, config: Mapping[str, Any]) -> int:
    """How many layers of a head for this drafter keep keys and values of their own. config: the head's config.json."""
    parts = kind.split("+")
    if "draft-model" in parts and type(layers := config.get("num_hidden_layers")) is int:
        return max(0, layers)
    return int(bool({"eagle", "mtp"} & {*parts}))


def examine_head(source: ModelSource, *, offline: bool, progress: Progress) -> ExaminedHead:
    """Which files the head has and where; the small ones are fetched.

    Raises UserError, one sentence, for everything that stands against it.
    """
    if source.path is not None:
        files, folder, repository = _files(source.path), source.path, None
        what = str(folder)
    else:
        assert source.hub is not None
        repository = _repository(source, offline, progress)
        files, folder, what = repository.files, repository.folder, repository.repo
    weights = head_files(what, files, folder)
    here = [name for name in weights if name.endswith(".safetensors") and (folder / name).exists()]
    check_sound(what, folder, here)
    return ExaminedHead(source, folder, weights, repository, read_json(what, folder / CONFIG))


def head_files(what: str, files: Mapping[str, int], folder: Path) -> dict[str, int]:
    """The weight files of a head, with their sizes: safetensors if there are any, else a pickle by a known name.

    Raises UserError if there are none, or if it is open which.
    """
    if CONFIG not in files:
        raise UserError(f"{what} has no {CONFIG}, so give the folder or repository of a trained drafter.")
    if WEIGHTS in files or INDEX in files:
        return weight_files(what, files, folder)
    found = [name for name in files if name.endswith(".safetensors")] or [name for name in PICKLES if name in files]
    if not found:
        raise UserError(
            f"{what} has neither safetensors weights nor {' or '.join(PICKLES)}, so give a trained drafter that has."
        )
    if len(found) > 1:
        raise UserError(
            f"{what} has several weight files ({', '.join(map(brief, sorted(found)[:5]))}) and no {INDEX}, so give a "
            "folder or repository with only one."
        )
    return {found[0]: files[found[0]]}


def drafter_source(source: ModelSource, kind: str, *, offline: bool, progress: Progress) -> ModelSource:
    """The same, marked as a head if that is what a drafter of this kind takes from it.

    A draft model can be either: one with a reduced vocabulary names its size in config.json, and a language model
    never does. Everything else goes by the kind alone.
    """
    head = takes_head(kind)
    if not head and "draft-model" in kind.split("+"):
        head = "draft_vocab_size" in _config(source, offline, progress)
    return replace(source, head=head)


def _config(source: ModelSource, offline: bool, progress: Progress) -> dict[str, Any]:
    if source.path is not None:
        return read_json(source.name, source.path / CONFIG) if (source.path / CONFIG).is_file() else {}
    assert source.hub is not None
    found = hub.cached(source.hub)
    if found is None or CONFIG not in found.files:
        if offline or constants.is_offline_mode():
            return {}  # whoever examines it says that it is not here
        found = hub.look_up(source.hub, progress)
        if CONFIG not in found.files:
            return {}
        hub.download(found, [CONFIG], progress)
    return read_json(found.repo, found.folder / CONFIG)


def _files(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"The folder {folder} {state}, so give a folder that holds a trained drafter.")
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


def _repository(source: ModelSource, offline: bool, progress: Progress) -> Repository:
    assert source.hub is not None
    found = hub.cached(source.hub)
    if found is not None and is_head_here(found):
        return found
    if offline or constants.is_offline_mode():
        raise UserError(
            f"{source.hub.repo} is not complete in the Hub's cache {constants.HF_HUB_CACHE} and offline mode forbids "
            "fetching it, so fetch it once with a connection or give a folder that holds it."
        )
    found = hub.look_up(source.hub, progress)
    hub.download(found, small_files(found.files), progress)
    return found


def is_head_here(found: Repository) -> bool:
    """Whether the Hub's cache holds all files of the head."""
    try:
        return bool(head_files(found.repo, found.files, found.folder))
    except UserError:
        return False
