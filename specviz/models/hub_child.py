"""The program that `hub.download` runs: it brings files of one commit into the Hub's cache.

It is a program of its own, without torch or the rest of the app, because only a process can be stopped at any moment.
Being killed costs it at most a megabyte of each file: the Hub client by itself would begin gigabytes anew.
"""

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # not marked as exported

AT_ONCE = 4  # files
CHUNK = 2**20  # bytes between two writes


def main(repo: str, commit: str, names: Sequence[str]) -> None:
    """Bring the files; prints one line to stderr and exits 1 if one of them can't be had."""
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: bring(repo, commit, name), names))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


def bring(repo: str, commit: str, name: str) -> None:
    """Download a file to the end of what there is of it, and let the Hub client put it into its cache."""
    url = hf_hub_url(repo, name, revision=commit)
    facts = get_hf_file_metadata(url)
    # Larger ones come over Xet's own protocol only, which the Hub client speaks.
    if facts.etag and facts.size is not None and facts.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        cache = Path(constants.HF_HUB_CACHE)
        folder = repo_folder_name(repo_id=repo, repo_type="model")
        blob = cache / folder / "blobs" / facts.etag
        lock = cache / ".locks" / folder / f"{facts.etag}.lock"  # the one that the Hub client takes
        for path in (blob, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not blob.exists():
                download(url, blob, facts.size)
    hf_hub_download(repo, name, revision=commit)


def download(url: str, blob: Path, size: int) -> None:
    part = blob.with_name(f"{blob.name}.incomplete")
    with open(part, "ab") as file:
        if file.tell() > size:
            file.truncate(0)
        http_get(url, file, resume_size=file.tell(), headers=build_hf_headers(), expected_size=size)
    part.replace(blob)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
