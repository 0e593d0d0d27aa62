"""Looking repositories up and downloading them, by the real client from a Hub on this machine."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import fake_hub
import huggingface_hub.constants
import psutil
import pytest

from specviz.errors import Cancelled, UserError
from specviz.models import fetch, hub
from specviz.models.hub import cached, download, look_up, parse

TINY = parse("someone/tiny")
LARGE = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 2**14}  # 4 MiB
WEIGHTS = ["model.safetensors"]


@pytest.fixture
def fake(monkeypatch, tmp_path):
    with fake_hub.running() as running:
        fake_hub.use(monkeypatch, running.endpoint, tmp_path / "home")
        yield running


def silent(text: str, fraction: float | None) -> None:
    pass


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if str(hub.CHILD) in child.cmdline()]


def refused(source=TINY) -> str:
    with pytest.raises(UserError) as caught:
        look_up(source, silent)
    text = str(caught.value)
    assert "\n" not in text and ". " not in text and text.endswith(".") and "so " in text
    return text


# --- looking up


def test_a_repository_is_listed_with_sizes_and_without_its_folders(fake):
    commit = fake.add("someone/tiny", {**LARGE, "original/model.safetensors": b"too deep"})
    assert cached(TINY) is None
    found = look_up(TINY, silent)
    assert (found.repo, found.commit) == ("someone/tiny", commit)
    assert found.files == {"config.json": 2, "model.safetensors": 2**22}
    assert found.missing(WEIGHTS) == 2**22 and found.missing(["config.json"]) == 2
    assert look_up(parse(f"someone/tiny@{commit}"), silent) == found


def test_a_repository_that_is_not_there(fake, monkeypatch):
    assert "has no public model someone/tiny, so check the spelling or, if it is private, log in" in refused()
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    assert "has no model someone/tiny that you may see" in refused()
    monkeypatch.setenv("HF_TOKEN", "expired")
    assert "The Hub refuses the login for someone/tiny (" in refused()


def test_a_revision_that_is_not_there(fake):
    fake.add("someone/tiny", LARGE)
    assert "someone/tiny has no revision 'v7'" in refused(parse("someone/tiny@v7"))


def test_a_gated_repository_says_what_to_do(fake, monkeypatch, tmp_path):
    fake.add("someone/tiny", LARGE, gated=True)
    page = f"{fake.endpoint}/someone/tiny"
    remedy = f"so open {page} and accept its terms, log in with `hf auth login` or HF_TOKEN, and try again."
    assert refused() == f"someone/tiny is gated, {remedy}"
    monkeypatch.setenv("HF_TOKEN", "hf_somebody_else")
    assert refused() == f"someone/tiny is gated and the account that is logged in has no access, {remedy}"
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    found = look_up(TINY, silent)
    download(found, WEIGHTS, silent)
    assert (found.folder / "model.safetensors").read_bytes() == LARGE["model.safetensors"]
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "home" / "token").write_text(fake_hub.TOKEN)  # where `hf auth login` puts it
    download(look_up(TINY, silent), ["config.json"], silent)
    assert fake.leaked == []  # the storage server never saw the login


def test_a_repository_without_files(fake):
    fake.add("someone/tiny", {}, gated=True)
    assert look_up(TINY, silent).files == {}


def test_a_hub_that_is_not_there(fake, monkeypatch, tmp_path):
    fake.down = True
    assert f"{fake.endpoint} can't be reached" in refused() and "503" in refused()
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path / "home")
    assert f"{fake_hub.DEAD} can't be reached (" in refused()


def test_a_hub_that_never_answers_is_given_up_within_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        fake_hub.use(monkeypatch, f"http://127.0.0.1:{silent_server.getsockname()[1]}", tmp_path)
        started = time.monotonic()
        assert "can't be reached" in refused()
        assert time.monotonic() - started < 3


def test_the_cache_is_read_without_a_network(monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path)
    folder = fake_hub.cache(tmp_path, "someone/tiny", LARGE)
    for source in (TINY, parse(f"someone/tiny@{folder.name}")):
        found = cached(source)
        assert found is not None and (found.folder, found.files) == (folder, {n: len(c) for n, c in LARGE.items()})
        assert found.missing(WEIGHTS) == 0
    assert cached(parse("someone/tiny@v7")) is None
    (tmp_path / "hub/models--someone--tiny/refs/v8").write_text("../../elsewhere")
    assert cached(parse("someone/tiny@v8")) is None


# --- downloading


def test_a_download_tells_how_far_it_is(fake, monkeypatch):
    monkeypatch.setattr(fetch, "POLL_SECONDS", 0.02)
    fake.pause = 0.005
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)
    fractions: list[float] = []
    download(found, WEIGHTS, lambda text, fraction: fractions.append(fraction or 0.0))
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    assert any(0 < fraction < 1 for fraction in fractions)
    assert (found.folder / "model.safetensors").read_bytes() == LARGE["model.safetensors"]
    assert not (found.folder / "config.json").exists()
    fake.requests.clear()
    download(found, WEIGHTS, lambda text, fraction: pytest.fail("there is nothing left to do"))
    assert fake.requests == []


@pytest.mark.parametrize("stop", [Cancelled, KeyboardInterrupt, OSError])
def test_a_cancelled_download_goes_on_where_it_was(fake, monkeypatch, stop):
    monkeypatch.setattr(fetch, "POLL_SECONDS", 0.02)
    fake.pause = 0.01
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)

    def cancel(text: str, fraction: float | None) -> None:
        if fraction:
            assert len(children()) == 1
            raise stop("enough")

    with pytest.raises(stop, match="enough"):
        download(found, WEIGHTS, cancel)
    assert children() == [] and not (found.folder / "model.safetensors").exists()
    left = found.missing(WEIGHTS)
    assert 0 < left < 2**22
    fake.pause = 0
    download(found, WEIGHTS, silent)
    assert (found.folder / "model.safetensors").read_bytes() == LARGE["model.safetensors"]
    starts = [start for method, path, start in fake.requests if path == "/someone/tiny/model.safetensors"]
    assert starts == [0, 2**22 - left]


def test_a_download_that_breaks_off_says_so(fake):
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)
    del fake.repos["someone/tiny"].files["model.safetensors"]
    with pytest.raises(
        UserError, match=r"^The download of someone/tiny broke off \(RemoteEntryNotFoundError.*try again"
    ):
        download(found, WEIGHTS, silent)


def test_a_download_that_stalls_is_given_up(fake, monkeypatch):
    monkeypatch.setattr(fetch, "STALL_SECONDS", 1.5)
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)
    fake.pause = 60
    with pytest.raises(UserError, match=r"broke off \(nothing arrived for"):
        download(found, WEIGHTS, silent)
    assert children() == []


def test_a_full_disk_is_noticed_beforehand(fake, monkeypatch):
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**22 - 1))
    fake.requests.clear()
    with pytest.raises(UserError, match=r"^someone/tiny takes another 4 MB but only 4 MB is free, so free some space"):
        download(found, WEIGHTS, silent)
    assert fake.requests == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**22))
    download(found, WEIGHTS, silent)


def test_a_disk_that_fills_up_meanwhile(fake, monkeypatch, tmp_path):
    program = tmp_path / "child.py"
    program.write_text("import sys; sys.exit('OSError: [Errno 28] No space left on device')")
    monkeypatch.setattr(hub, "CHILD", program)
    fake.add("someone/tiny", LARGE)
    with pytest.raises(UserError, match=r"^The disk filled up while someone/tiny was downloaded, so free some space"):
        download(look_up(TINY, silent), WEIGHTS, silent)


def test_a_cache_that_can_not_be_written_to(fake, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "hub").write_text("in the way")
    fake.add("someone/tiny", LARGE)
    with pytest.raises(UserError, match=r"^The cache .* can't be written to, so set HF_HOME to another folder"):
        download(look_up(TINY, silent), WEIGHTS, silent)


def test_a_relative_cache_is_the_same_for_the_child(fake, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "relative")
    fake.add("someone/tiny", LARGE)
    found = look_up(TINY, silent)
    download(found, ["config.json"], silent)
    assert (Path("relative") / "models--someone--tiny" / "snapshots" / found.commit / "config.json").exists()
