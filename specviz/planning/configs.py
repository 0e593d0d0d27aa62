"""What is known of a model or head before it is downloaded: its configuration, or sizes that come with specviz."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from huggingface_hub import constants
from transformers import AutoConfig, PretrainedConfig

from specviz.drafters import shipped
from specviz.drafters.heads.files import about
from specviz.errors import UserError
from specviz.models import hub
from specviz.models.checkpoint import CONFIG, WEIGHTS, read_json
from specviz.models.config import config_of
from specviz.models.heads import cached_layers, head_files, share, stored_bytes
from specviz.models.sources import cache_dir, own_model
from specviz.planning.states import lent_bytes, states_read
from specviz.presets import ModelSource
from specviz.refusals import refused_as

SHIPPED = "by the sizes that come with specviz"
SHAPES = Path(__file__).with_name("shapes.yaml")


@dataclass(frozen=True, slots=True)
class Known:
    """A model's configuration and where it was found, in words."""

    name: str
    config: PretrainedConfig
    source: str
    limit: int | None  # tokens that it reads at most, if that is known


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What counts of a trained head: its bytes in 16 bits, its layers with a cache, and how many states it has kept."""

    name: str
    size: int
    layers: int
    states: int
    source: str


def known(source: ModelSource, *, offline: bool) -> Known:
    """The model's configuration: from this machine, else as it comes with specviz, else from the Hub.

    Raises UserError, one sentence, if it can't be had or describes no model that can work here.
    """
    with refused_as(f"The configuration of {source.name} can't be used", "so choose another model"):
        if source.path is not None:
            return _known(source.name, _read(source.path), f"{source.path}")
        folder = _folder_here(source)
        if folder is not None:
            return _known(source.name, config_of(source.name, folder), "on this machine")
        repo = source.hub.repo if source.hub else ""
        if shape := _shapes()["models"].get(repo):
            config = AutoConfig.for_model(shape["model_type"], **shape["config"])
            return Known(source.name, config, SHIPPED, shape.get("limit"))
        return _known(source.name, config_of(source.name, _fetched(source, offline)), "from the Hub")


def _known(name: str, config: PretrainedConfig, source: str) -> Known:
    """A model's own configuration names its limit. What a class of transformers takes by default is no model's."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return Known(name, config, source, int(limit) if limit else None)


def known_head(source: ModelSource, kind: str, target: PretrainedConfig, *, offline: bool) -> KnownHead:
    """What a head takes that is named for this kind of drafter; raises UserError as `known` does."""
    if source.path is not None:
        folder = source.path
        content = read_json(source.name, folder / CONFIG)
        return _head(source.name, kind, stored_bytes(folder), content, str(folder))
    assert source.hub is not None
    found = hub.cached(source.hub)
    if found is not None and CONFIG in found.files:
        files = head_files(found.repo, found.files, found.folder)
        content = read_json(source.name, found.folder / CONFIG)
        return _head(source.name, kind, sum(files.values()), content, "on this machine")
    repo = source.hub.repo
    if shape := _shapes()["heads"].get(repo):
        return _head(source.name, kind, shape["size"], shape["config"], SHIPPED)
    if size := _shapes()["models"].get(repo, {}).get("size"):  # the head is part of its target's checkpoint
        return _head(source.name, kind, share(size, True, target), {}, f"its share of {repo}")
    _refuse_offline(source.name, offline)
    found = hub.look_up(source.hub, _silent)
    hub.download(found, [CONFIG], _silent)
    files = head_files(found.repo, found.files, found.folder)
    return _head(source.name, kind, sum(files.values()), read_json(source.name, found.folder / CONFIG), "from the Hub")


def shipped_head(kind: str, target_name: str) -> KnownHead | None:
    """The trained drafter of that kind that comes with specviz for a target of that name, if there is one."""
    folder = _shipped_folder(kind, target_name)
    if folder is None:
        return None
    return _head(
        f"{folder.parent.name}/{kind}", kind, stored_bytes(folder), read_json(kind, folder / CONFIG), "shipped"
    )


def named(text: str) -> ModelSource:
    """The model that a user means: as `own_model`, or the path of a configuration file."""
    path = Path(text).expanduser()
    if path.is_file():
        return ModelSource(path.stem, path.parent.name if path.name == CONFIG else path.name, "unknown", path=path)
    return own_model(text)


def _head(name: str, kind: str, size: int, content: Mapping[str, Any], source: str) -> KnownHead:
    size += lent_bytes(content)
    return KnownHead(name, size, cached_layers(kind, content), states_read(kind, content), source)


def _shipped_folder(kind: str, target_name: str) -> Path | None:
    folders = (file.parent for file in sorted(shipped.SHIPPED.glob(f"*/{kind}/{WEIGHTS}")))
    return next((folder for folder in folders if about(folder).get("target") == target_name), None)


def _read(path: Path) -> PretrainedConfig:
    """Of a folder, or of a configuration file by any name."""
    if path.is_dir():
        return config_of(str(path), path)
    with TemporaryDirectory() as place:
        shutil.copy(path, Path(place) / CONFIG)
        return config_of(str(path), Path(place))


def _folder_here(source: ModelSource) -> Path | None:
    """Where its config.json lies on this machine, if it does."""
    if source.wheel is not None:
        folder = cache_dir() / "models" / source.id
        if (folder / CONFIG).is_file():
            return folder
    found = None if source.hub is None else hub.cached(source.hub)
    return found.folder if found is not None and CONFIG in found.files else None


def _fetched(source: ModelSource, offline: bool) -> Path:
    """The folder in the Hub's cache into which its config.json was fetched."""
    _refuse_offline(source.name, offline)
    assert source.hub is not None
    found = hub.look_up(source.hub, _silent)
    if CONFIG not in found.files:
        raise UserError(f"{found.repo} has no {CONFIG}, so choose another model.")
    hub.download(found, [CONFIG], _silent)
    return found.folder


def _refuse_offline(name: str, offline: bool) -> None:
    if offline or constants.is_offline_mode():
        raise UserError(
            f"The configuration of {name} is not on this machine and offline mode forbids fetching it, so fetch it "
            "once with a connection, or give its config.json."
        )


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    """The file's entries by repository."""
    content = yaml.safe_load(SHAPES.read_text(encoding="utf-8"))
    return {part: {entry["repo"]: entry for entry in content[part]} for part in ("models", "heads")}


def _silent(text: str, fraction: float | None) -> None:
    """Progress that nobody follows."""
