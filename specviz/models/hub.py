"""Repositories on the Hugging Face Hub: what they hold, what of it is here, and bringing the rest.

Files go into the Hub client's own cache, where other programs find them too, so nothing is kept twice.
"""

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfApi, constants, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from specviz.errors import UserError
from specviz.memory import human
from specviz.models import fetch
from specviz.models.checkpoint import CONFIG
from specviz.models.fetch import HUB_SECONDS, Progress, Unavailable, first_line
from specviz.presets import HubSource

CHILD = Path(__file__).with_name("hub_child.py")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"\w[\w.-]*(/[\w.-]+)*")
_NOT_WRITABLE = ("Permission denied", "Read-only file system", "Not a directory", "File exists")
_LOGIN = "`hf auth login` or HF_TOKEN"


@dataclass(frozen=True, slots=True)
class Repository:
    """The files at the root of a repository at one commit, by name, with their sizes in bytes.

    `blobs`: the name under which the Hub's cache keeps a file's content; empty if it was the cache that was listed.
    """

    repo: str
    commit: str
    files: dict[str, int]
    blobs: dict[str, str]

    @property
    def folder(self) -> Path:
        """Where the Hub's cache shows the files that are here."""
        return _storage(self.repo) / "snapshots" / self.commit

    def missing(self, names: Collection[str]) -> int:
        """Bytes of these files that have not arrived yet; an interrupted download counts for what it brought."""
        return sum(self.files[name] - self._arrived(name) for name in names)

    def _arrived(self, name: str) -> int:
        if (self.folder / name).exists():
            return self.files[name]
        parts = (_storage(self.repo) / "blobs").glob(f"{self.blobs[name]}*") if name in self.blobs else ()
        return min(self.files[name], sum(map(_size, parts)))


def parse(text: str) -> HubSource:
    """The repository that a user means by "owner/name", "owner/name@revision" or a page's address on the Hub.

    Raises UserError for what can be none of these.
    """
    text = text.strip()
    repo, _, revision = text.partition("@")
    with contextlib.suppress(ValueError):  # no address at all
        address = urlsplit(text if "://" in text else f"https://{text}")
        if address.hostname in constants.HF_URL_HOSTS:
            # A model's page is /OWNER/NAME, with its files under /tree/REVISION, /blob/REVISION/FILE and the like.
            parts = address.path.strip("/").split("/")
            repo = "" if parts[0] in constants.REPO_TYPES_MAPPING else "/".join(parts[:2])
            revision = unquote(parts[3]) if len(parts) > 3 else ""
    hub = HubSource(repo, revision or constants.DEFAULT_REVISION, None)
    _check(hub, text)
    return hub


def cached(hub: HubSource) -> Repository | None:
    """What the Hub's cache holds of the repository at this revision, perhaps only a part; None: nothing."""
    _check(hub, hub.repo)
    commit = hub.revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = _ref(hub).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    found = Repository(hub.repo, commit, {}, {})
    if not _COMMIT.fullmatch(commit) or not found.folder.is_dir():
        return None
    found.files.update({path.name: path.stat().st_size for path in found.folder.iterdir() if path.is_file()})
    return found


def look_up(hub: HubSource, progress: Progress) -> Repository:
    """Ask the Hub which files the repository holds, and whether they may be had.

    Raises UserError, within seconds, if the repository or its revision does not exist, is gated, or if the Hub can't
    be reached.
    """
    _check(hub, hub.repo)
    progress(f"Asking the Hub for {hub.repo}", None)
    try:
        info = HfApi().model_info(hub.repo, revision=hub.revision, timeout=HUB_SECONDS, files_metadata=True)
        files = [file for file in info.siblings or [] if "/" not in file.rfilename]
        if info.gated and any(file.rfilename == CONFIG for file in files):  # the list is open to all, the files are not
            get_hf_file_metadata(hf_hub_url(hub.repo, CONFIG, revision=info.sha), timeout=HUB_SECONDS)
    except Exception as error:
        raise UserError(_refusal(hub, error)) from error
    found = Repository(
        hub.repo,
        str(info.sha),
        {file.rfilename: file.size or 0 for file in files},
        {file.rfilename: file.lfs.sha256 if file.lfs else str(file.blob_id) for file in files},
    )
    if hub.revision != found.commit:
        with contextlib.suppress(OSError):  # a cache that can't be written to is noticed when something is downloaded
            _ref(hub).parent.mkdir(parents=True, exist_ok=True)
            _ref(hub).write_text(found.commit, encoding="utf-8")
    return found


def download(repository: Repository, names: Collection[str], progress: Progress) -> None:
    """Bring these files into the Hub's cache; what has arrived before is continued.

    `progress` gets the fraction of all bytes that are here; an exception that it raises stops the download at once and
    propagates. Raises UserError if the download fails or stalls, or if the disk has too little room.
    """
    wanted = [name for name in names if not (repository.folder / name).exists()]
    if not wanted:
        return
    repo, cache = repository.repo, Path(constants.HF_HUB_CACHE).absolute()
    full = f"so free some space on the disk of {cache} or set HF_HOME to a folder elsewhere"
    place = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    if (needed := repository.missing(wanted)) > (free := shutil.disk_usage(place).free):
        raise UserError(f"{repo} takes another {human(needed)} but only {human(free)} is free, {full}.")
    try:
        _run_child(repository, wanted, cache, progress)
    except Unavailable as error:
        if any(reason in str(error) for reason in _NOT_WRITABLE):
            raise UserError(f"The cache {cache} can't be written to, so set HF_HOME to another folder.") from error
        raise UserError(f"The download of {repo} broke off ({error}), so try again to go on with it.") from error
    except OSError as error:
        if fetch.is_disk_full(error):
            raise UserError(f"The disk filled up while {repo} was downloaded, {full}.") from error
        raise
    progress(f"{repo} is here", 1.0)


def _run_child(repository: Repository, names: list[str], cache: Path, progress: Progress) -> None:
    """Let a process of its own do the downloading; raises Unavailable if it fails or stalls."""
    # Its working folder is another, and what holds for this process shall hold for it.
    environment = {
        "HF_ENDPOINT": constants.ENDPOINT,
        "HF_HUB_CACHE": str(cache),
        "HF_TOKEN_PATH": os.path.abspath(constants.HF_TOKEN_PATH),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    what = {"repo": repository.repo, "commit": repository.commit, "names": names}
    # -P: the program's own folder is not on its path, where modules of ours would hide others.
    command = [sys.executable, "-P", str(CHILD), json.dumps(what)]
    size = sum(repository.files[name] for name in names)
    with TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True) as work:
        status, log = fetch.run_downloader(
            command,
            Path(work) / "hub",
            size,
            repository.repo,
            progress,
            arrived=lambda: size - repository.missing(names),
            environment=environment,
        )
    if status != 0:
        raise Unavailable(first_line(log[-1] if log else "the download failed without a reason"))


def _check(hub: HubSource, text: str) -> None:
    """Raise UserError unless the names can be those of a repository and a revision: both become parts of paths."""
    try:
        _storage(hub.repo)
        fits = bool(_REVISION.fullmatch(hub.revision)) and ".." not in hub.revision
    except HFValidationError:
        fits = False
    if not fits:
        raise UserError(
            f"{text[:100]!r} is no model on the Hub and no folder here, so give OWNER/NAME, OWNER/NAME@REVISION, the "
            "address of the model's page or the path of a folder."
        )


def _refusal(hub: HubSource, error: Exception) -> str:
    """What is wrong and what to do, in one sentence."""
    repo, page, logged_in = hub.repo, f"{constants.ENDPOINT}/{hub.repo}", get_token() is not None
    if isinstance(error, GatedRepoError):
        state = "gated and the account that is logged in has no access" if logged_in else "gated"
        return f"{repo} is {state}, so open {page} and accept its terms, log in with {_LOGIN}, and try again."
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {hub.revision!r}, so choose one that {page} lists."
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    # The Hub answers 401 to strangers who ask for what does not exist, too.
    if status == 401 and not logged_in:
        return f"The Hub has no public model {repo}, so check the spelling or, if it is private, log in with {_LOGIN}."
    if isinstance(error, RepositoryNotFoundError):
        return f"The Hub has no model {repo} that you may see, so check the spelling and, if it is private, your login."
    if isinstance(error, DisabledRepoError):
        return f"The Hub has disabled {repo}, so choose another model."
    if status in (401, 403):
        return f"The Hub refuses the login for {repo} ({first_line(error)}), so renew it with {_LOGIN}."
    return (
        f"{repo} is not complete in the Hub's cache {constants.HF_HUB_CACHE} and {constants.ENDPOINT} can't be reached "
        f"({first_line(error)}), so check the connection and try again, or give a folder that holds the model."
    )


def _storage(repo: str) -> Path:
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")


def _ref(hub: HubSource) -> Path:
    """Where the cache notes which commit a branch or tag was at."""
    return _storage(hub.repo) / "refs" / hub.revision


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):  # the child renames files while we look
        return path.stat().st_size
    return 0
