"""A Hub on 127.0.0.1 that answers the real client, and tiny checkpoints to fill it with.

Weights are served as on the real one: by redirection to another server, which may not see the login.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
from fakes import byte_tokenizer, tiny_model

TOKEN = "hf_fake"
DEAD = "http://127.0.0.1:9"  # nothing listens on the discard port


@functools.cache
def checkpoint(architecture: str = "llama", seed: int = 0, shard: str = "1GB", **overrides: object) -> dict[str, bytes]:
    """The files of a tiny model that reads bytes, saved the way models on the Hub are. shard: largest weight file."""
    tokenizer = byte_tokenizer()
    with TemporaryDirectory() as folder:
        model = tiny_model(architecture, seed, **{"vocab_size": len(tokenizer), **overrides})
        model.save_pretrained(folder, max_shard_size=shard)
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def cache(home: Path, id: str, files: dict[str, bytes], revision: str = "main") -> Path:
    """Put files where the Hub client's cache would show them; the answer is the folder, named by its commit."""
    repository, commit = home / "hub" / f"models--{id.replace('/', '--')}", "1234567890" * 4
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / revision).write_text(commit)
    return write(repository / "snapshots" / commit, {name: files[name] for name in files if "/" not in name})


def with_config(files: dict[str, bytes], **changes: object) -> dict[str, bytes]:
    """The same files with entries of config.json changed."""
    return {**files, "config.json": json.dumps({**json.loads(files["config.json"]), **changes}).encode()}


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str
    gated: bool = False


@dataclass
class FakeHub:
    """repos: by id. requests: (method, path, first byte asked for) in order. pause: seconds before each 64 kB of
    weights. down: whether every answer is an error of the server's."""

    endpoint: str = ""
    storage: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)  # logins that the storage server saw
    pause: float = 0.0
    down: bool = False

    def add(self, id: str, files: dict[str, bytes], *, gated: bool = False) -> str:
        """Publish a repository; the answer is its commit."""
        digest = hashlib.sha1()
        for name in sorted(files):
            digest.update(name.encode() + files[name])
        self.repos[id] = Repo(dict(files), digest.hexdigest(), gated)
        return digest.hexdigest()

    def served(self, suffix: str = "") -> list[str]:
        """Paths of what was asked for with GET and ends like this."""
        return [path for method, path, _ in self.requests if method == "GET" and path.endswith(suffix)]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.hub.requests.append((self.command, path, start))
        parts = path.strip("/").split("/")
        if self.hub.down:
            self.answer(503)
        elif parts[:2] == ["api", "models"]:
            self.describe("/".join(parts[2:4]), parts[4:])
        elif parts[2:3] == ["resolve"]:
            self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.answer(404)

    do_HEAD = do_GET

    def describe(self, id: str, rest: list[str]) -> None:
        repo = self.hub.repos.get(id)
        if repo is None:  # the real one does not tell strangers whether it exists
            login = self.headers.get("Authorization")
            if login == "Bearer expired":
                self.answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
            else:
                self.answer(404 if login else 401, {"X-Error-Code": "RepoNotFound"} if login else {})
        elif rest[1:2] and rest[1] not in ("main", repo.commit):
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif rest[:1] == ["tree"]:
            entries = [{"type": "file", "path": name, **_facts(repo.files[name], name)} for name in repo.files]
            self.answer(200, {}, json.dumps([{**entry, "oid": entry["blobId"]} for entry in entries]).encode())
        else:
            siblings = [{"rfilename": name, **_facts(repo.files[name], name)} for name in repo.files]
            about = {"id": id, "sha": repo.commit, "gated": "manual" if repo.gated else False, "siblings": siblings}
            self.answer(200, {}, json.dumps(about).encode())

    def resolve(self, id: str, revision: str, name: str) -> None:
        repo = self.hub.repos[id]
        login = self.headers.get("Authorization")
        facts = {"X-Repo-Commit": repo.commit}
        if repo.gated and login != f"Bearer {TOKEN}":
            self.answer(403 if login else 401, {"X-Error-Code": "GatedRepo"})
        elif name not in repo.files:
            self.answer(404, {**facts, "X-Error-Code": "EntryNotFound"})
        elif name.endswith(".safetensors"):
            facts |= {"X-Linked-Size": str(len(repo.files[name])), "X-Linked-Etag": f'"{_sha256(repo.files[name])}"'}
            self.answer(302, {**facts, "Location": f"{self.hub.storage}/{id}/{name}"})
        else:
            self.answer(200, {**facts, "ETag": f'"{_facts(repo.files[name], name)["blobId"]}"'}, repo.files[name])

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class _Storage(_Handler):
    """Serves the weights, from any byte on."""

    def do_GET(self) -> None:
        owner, repo, name = unquote(self.path).strip("/").split("/")
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.hub.requests.append((self.command, self.path, start))
        self.hub.leaked += [self.headers["Authorization"]] if "Authorization" in self.headers else []
        content = self.hub.repos[f"{owner}/{repo}"].files[name]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        try:
            for first in range(start, len(content), 2**16):
                time.sleep(self.hub.pause)
                self.wfile.write(content[first : first + 2**16])
        except OSError:
            pass  # the client was stopped


def _facts(content: bytes, name: str) -> dict[str, object]:
    """Size and names of a file's content, as the Hub lists them; weights are in its large file storage."""
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sha256 = _sha256(content)
    lfs = {"lfs": {"size": len(content), "oid": sha256, "sha256": sha256, "pointerSize": 134}}
    return {"size": len(content), "blobId": blob, **(lfs if name.endswith(".safetensors") else {})}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def running() -> Iterator[FakeHub]:
    """A fake Hub that answers while the block lasts."""
    hub = FakeHub()
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), type(kind.__name__, (kind,), {"hub": hub}))
        for kind in (_Handler, _Storage)
    ]
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def use(monkeypatch, endpoint: str, home: Path) -> None:
    """Let the Hub client know this Hub only, with a cache of its own and nobody logged in."""
    chosen = {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
    }
    for name, value in chosen.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)  # read from the environment at import
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)  # for child processes
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
