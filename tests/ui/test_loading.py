"""Models in the background: shared, given up, and let go of when another needs their memory."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import chat_target, tiny_target

from specviz import loaded, memory
from specviz.errors import Cancelled, NotEnoughMemory, UserError
from specviz.loaded import Loaded
from specviz.presets import DrafterPreset, ModelSource, Pairing, load_pairings
from specviz.ui.loading import Models

PAIRING = load_pairings()["smollm2-135m"]
SMALL = ModelSource("small", "Small", "none")
OTHER = replace(PAIRING, id="other", drafters=(DrafterPreset("draft-model", "Small", {}, "", SMALL),))


class Shelf:
    """A loader with room for so many models at a time, told apart by their targets' objects."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.asked: list[tuple[str, str, str, int]] = []  # pairing, drafter, format, models there
        self.go = threading.Event()
        self.go.set()

    def __call__(self, pairing, drafts, *, device, dtype, offline, progress, having):
        self.asked.append((pairing.id, drafts.id if drafts else "", dtype, len(having)))
        if not self.go.wait(10):
            raise TimeoutError
        progress("loading the model", None)
        if len(having) >= self.room:
            raise NotEnoughMemory("This run needs about 2 GB of memory but 1 GB is free.")
        return Loaded(pairing, tiny_target(), drafts=drafts)


def models(shelf: Shelf) -> Models:
    return Models(shelf, device="cpu", dtype="float32", offline=False)


def load(made: Models, pairing, drafts=None, dtype=None) -> Loaded:
    loading = made.load(pairing, drafts, dtype)
    assert loading.wait(10)
    return loading.result()


def test_a_model_is_known_by_its_pairing_its_drafter_and_its_format():
    shelf = Shelf()
    made = models(shelf)
    first = load(made, PAIRING)
    assert made.there(PAIRING) is first and made.there(PAIRING, dtype="float32") is first
    assert made.there(PAIRING, SMALL) is None and made.there(PAIRING, dtype="bfloat16") is None
    assert made.there(OTHER) is None
    second = load(made, OTHER, SMALL)
    assert made.there(OTHER, SMALL) is second and made.there(OTHER) is None
    assert shelf.asked == [("smollm2-135m", "", "float32", 0), ("other", "small", "float32", 1)]


def test_visitors_who_ask_for_the_same_model_share_its_loading():
    shelf = Shelf()
    shelf.go.clear()
    made = models(shelf)
    assert made.load(PAIRING) is made.load(PAIRING)
    assert made.load(PAIRING) is not made.load(OTHER, SMALL)
    shelf.go.set()
    assert load(made, PAIRING) is not load(made, OTHER, SMALL)
    assert [asked[0] for asked in shelf.asked[:2]] == ["smollm2-135m", "other"]


def test_loading_can_be_given_up_and_begun_again():
    shelf = Shelf()
    shelf.go.clear()
    made = models(shelf)
    loading = made.load(PAIRING)
    made.cancel()
    again = made.load(PAIRING)
    assert again is not loading, "who asks after that is not given up with it"
    shelf.go.set()
    assert loading.wait(10)
    with pytest.raises(Cancelled):
        loading.result()
    assert again.wait(10) and again.result() is made.there(PAIRING)


def test_who_turns_away_as_the_last_gives_it_up():
    shelf = Shelf()
    shelf.go.clear()
    made = models(shelf)
    loading = made.load(PAIRING)
    with pytest.raises(KeyError), loading.awaited(gives_up=True):
        with pytest.raises(IndexError), loading.awaited(gives_up=True):
            raise IndexError  # the other one still waits
        loading.say("loading the model", None)
        raise KeyError
    with pytest.raises(Cancelled):
        loading.say("loading the model", None)
    shelf.go.set()
    assert loading.wait(10)
    again = made.load(PAIRING)
    with pytest.raises(KeyError), loading.awaited(gives_up=False):
        raise KeyError
    assert again.wait(10) and again.result() is made.there(PAIRING)
    with again.awaited(gives_up=True):
        pass  # it was there before anybody turned away
    again.say("", None)


def test_what_is_there_gives_way_to_what_does_not_fit_beside_it():
    shelf = Shelf(room=1)
    made = models(shelf)
    first = load(made, PAIRING)
    second = load(made, OTHER)
    assert made.there(PAIRING) is None and made.there(OTHER) is second
    assert [asked[3] for asked in shelf.asked] == [0, 1, 0], "tried beside it first, then without"
    assert load(made, PAIRING) is not first


def saved(folder: Path, seed: int) -> Pairing:
    """A pairing of a folder."""
    target = chat_target(seed)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    source = ModelSource(folder.name, folder.name, "none", path=folder)
    return replace(PAIRING, id=folder.name, target=source, drafters=(DrafterPreset("plain", "None", {}, ""),))


def test_what_gives_way_really_leaves_memory_before_the_other_is_loaded(monkeypatch, tmp_path):
    made = Models(loaded.load, device="cpu", dtype="float32", offline=True)
    first, second = saved(tmp_path / "first", 1), saved(tmp_path / "second", 2)
    model = weakref.ref(load(made, first).target.model)
    free = memory.available_bytes
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0 if model() is not None else free(device))
    assert made.held_bytes > 0
    loading = made.load(second)
    assert loading.wait(20) and loading.result().pairing is second
    assert model() is None and made.there(first) is None


def test_a_refusal_keeps_no_model_alive(monkeypatch, tmp_path):
    made = Models(loaded.load, device="cpu", dtype="float32", offline=True)
    first, second = saved(tmp_path / "first", 1), saved(tmp_path / "second", 2)
    model = weakref.ref(load(made, first).target.model)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0)
    loading = made.load(second)
    assert loading.wait(20)
    with pytest.raises(NotEnoughMemory, match="needs about"):
        loading.result()
    assert model() is None and made.held_bytes == 0


def test_a_model_in_use_gives_way_only_after_its_turn():
    shelf = Shelf(room=1)
    made = models(shelf)
    with load(made, PAIRING).lock:
        loading = made.load(OTHER)
        assert not loading.wait(0.3) and len(shelf.asked) == 2
    assert loading.wait(10) and loading.result() is made.there(OTHER)


def test_what_fits_nowhere_is_refused_with_the_numbers():
    made = models(Shelf(room=0))
    with pytest.raises(UserError, match="needs about 2 GB of memory but 1 GB is free"):
        load(made, PAIRING)
    assert made.there(PAIRING) is None
