"""ZeroGPU without a GPU: runs go through a forked process that is fed and read as `spaces` does it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
import torch
from lender import lending
from stage import FORM, PAIRING, SCRIPT, Actor, Loader, headline, is_ready, last, pieces, run, timeless, words

import app
from specviz.errors import Cancelled, UserError
from specviz.presets import load_pairings
from specviz.recordings import load_recordings
from specviz.trace import Trace
from specviz.ui import form, handlers, instead, zero
from specviz.ui.form import Form
from specviz.ui.handlers import Explorer
from specviz.ui.loading import Models
from specviz.ui.screens import SKIP, Screen
from specviz.ui.work import Here, NoGPU

ROOT = Path(__file__).parents[2]
RECORDINGS = load_recordings()
ANN = SimpleNamespace(session_hash="ann")
FEW = 10  # verify passes: the stop is looked for every 50 ms, which is one of them if the machine is not busy


def never() -> bool:
    return False


class Counted(Actor):
    """Its verify passes are counted in memory that forked processes share."""

    def __init__(self, *settings: Any, **more: Any) -> None:
        self.shared = multiprocessing.RawValue("i", 0)
        super().__init__(*settings, **more)

    def verify(self, *draft: Any) -> Any:
        self.shared.value += 1
        return super().verify(*draft)


@pytest.fixture
def lender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Actor], Explorer]]:
    """lender(actor): the page's handlers, with a forked process in place of ZeroGPU's."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Abacus")
    monkeypatch.setattr(zero, "on_gpu", lending(zero._work))
    monkeypatch.setattr(zero, "_models", {})
    monkeypatch.setattr(zero, "_paces", {})

    def explorer(actor: Actor | None = None) -> Explorer:
        zero._models[PAIRING, "", zero.USUAL] = Loader(actor or Actor(SCRIPT)).loaded
        models = Models(zero.there, device="cpu", dtype=zero.USUAL, offline=True)
        return Explorer(load_pairings(), models, RECORDINGS, zero.Lent)

    yield explorer
    assert multiprocessing.active_children() == [], "a process was left behind"


def work(asked: Form = FORM) -> tuple[zero.Lent, Here]:
    """The same run for both."""
    ask = form.read(asked, load_pairings())
    prepared = ask.prepared(zero._models[PAIRING, "", zero.USUAL], ())
    return zero.Lent(prepared, ask, ()), Here(prepared)


# --- the same run, elsewhere


@pytest.mark.parametrize("change", [{}, {"temperature": 1.0, "seed": 3}, {"drafter": "Early exit", "gamma": 2}])
def test_a_lent_gpu_decodes_the_same_steps(lender, change):
    lender(Actor(None))
    lent, here = work(FORM._replace(**change))
    there, expected = (Trace(here.run, tuple(each.decode(never))) for each in (lent, here))
    assert timeless(there) == timeless(expected) and len(there.steps) > 3


def test_a_lent_gpu_makes_the_same_single_steps_whatever_was_drawn_before(lender):
    lender(Actor(None))
    both = work(FORM._replace(temperature=1.0, drafter="Early exit"))
    states = []
    for each in both:
        rng, done = handlers.state_of(torch.Generator().manual_seed(7)), ()
        for _ in range(4):
            ((step, rng),) = each.step(done, rng, never)
            done = (*done, step)
        states.append((rng, timeless(Trace(both[1].run, done))))
    assert states[0] == states[1]


def test_a_whole_run_is_shown_as_a_live_one_of_the_gpu_that_was_lent(lender):
    screens = run(lender())
    shown = pieces(last(screens, "tokens"))
    assert "".join(text for text, kind in shown if kind != "rejected") == SCRIPT[:24]
    header = json.loads(str(last(screens, "tokens")).splitlines()[1])["run"]
    assert header["device"] == "Abacus, lent by ZeroGPU" and header["threads"] is None
    assert "over 3 repeats" in headline(screens) and "where the time goes" in words(screens)
    assert is_ready(screens[-1])


def test_step_by_step_goes_on_in_another_process_each_time(lender):
    stage, stepping = lender(), None
    for number in (1, 2, 3):
        stage.arrive_to_step(ANN)
        stepping = last(list(stage.step(ANN, stepping, (), *FORM)), "stepping")
        assert [step.index for step in stepping.steps] == list(range(number))


def test_nobody_waits_for_a_turn_where_every_call_has_a_gpu_to_itself(lender):
    stage = lender(Actor(SCRIPT, delay=0.01))
    first, second = (stage.explore(FORM._replace(measure=False), threading.Event()) for _ in range(2))
    until(first, "tokens", '"index":0')
    until(second, "tokens", '"index":0')
    assert "Waiting" not in words([*first, *second])


# --- stopping


def until(screens: Iterator[Screen], output: str, text: str) -> Screen:
    return next(screen for screen in screens if text in str(getattr(screen, output)))


def test_stop_ends_the_other_process_within_a_few_steps(lender):
    actor = Counted(None, delay=0.05)
    stage, stop = lender(actor), threading.Event()
    screens = stage.explore(FORM._replace(max_new_tokens=200, gamma=1), stop)
    until(screens, "tokens", '"index":2')
    stop.set()
    passes = actor.shared.value
    rest = list(screens)
    assert headline(rest).startswith("Stopped after ") and is_ready(rest[-1])
    assert actor.shared.value <= passes + FEW


def test_stop_is_noticed_while_measuring_although_nothing_is_yielded_then(lender):
    actor = Counted(None, delay=0.05)
    stage, stop = lender(actor), threading.Event()
    screens = stage.explore(FORM._replace(max_new_tokens=40, gamma=1), stop)
    until(screens, "verdict", "warming up (1 of 2)")
    stop.set()
    passes = actor.shared.value
    rest = list(screens)
    assert "measuring was stopped before the first repeat" in headline(rest)
    assert actor.shared.value <= passes + FEW


@pytest.mark.parametrize("what", ["decode", "measure"])
def test_closing_the_iterator_ends_the_other_process(lender, what):
    actor = Counted(None, delay=0.05)
    lender(actor)
    lent, _ = work(FORM._replace(max_new_tokens=40, gamma=1))
    items = lent.decode(never) if what == "decode" else lent.measure(3, never)
    next(items)
    passes = actor.shared.value
    items.close()
    assert actor.shared.value <= passes + FEW and multiprocessing.active_children() == []


def test_a_run_that_outlasts_what_it_asked_for_ends_by_itself(lender, monkeypatch):
    monkeypatch.setattr(zero, "LEAST_SECONDS", 0)
    monkeypatch.setattr(zero, "MOST_SECONDS", 0)
    screens = run(lender())
    assert headline(screens).startswith("Stopped before the first token")
    monkeypatch.setattr(zero, "MOST_SECONDS", 1)
    screens = run(lender(Actor(None, delay=0.1)), FORM._replace(max_new_tokens=200, gamma=1))
    assert headline(screens).startswith("Out of time after ")


# --- where there is no GPU

QUOTA = "Your ZeroGPU quota does not cover this run"
BUSY = "No GPU came free on ZeroGPU in time"
GONE = "ZeroGPU took its GPU back"
DEAF = "ZeroGPU does not answer as it should"
# As release 0.51.3 of `spaces` raises them: title, message.
REFUSALS = [
    ("ZeroGPU quota exceeded", "Space app has reached its GPU limit. Try re-running outside of examples", QUOTA),
    ("ZeroGPU quota exceeded", "You have exceeded your free ZeroGPU quota (60s requested vs. 3s left).", QUOTA),
    ("ZeroGPU pending credits exceeded", "You have too many ZeroGPU credits allocated to running tasks.", QUOTA),
    ("ZeroGPU illegal duration", "The requested GPU duration (90s) is larger than the maximum allowed", QUOTA),
    ("ZeroGPU quota exceeded", "No GPU was available after 60s. Try re-running outside of examples", BUSY),
    ("ZeroGPU queue timeout", "No GPU was available after 60s. Retry later", BUSY),
    ("ZeroGPU client error", "No GPU was available", BUSY),
    ("ZeroGPU worker error", "GPU task aborted", GONE),
    ("ZeroGPU client error", "Expired ZeroGPU proxy token", "ZeroGPU lends no GPU now"),
]


def refusing(error: Exception) -> Callable[[zero.Job], Iterator[Any]]:
    def lent(job: zero.Job) -> Iterator[Any]:
        raise error
        yield

    return lent


@pytest.mark.parametrize(("title", "message", "sentence"), REFUSALS)
def test_a_refusal_is_one_sentence_and_a_recorded_run(lender, monkeypatch, title, message, sentence):
    stage = lender()
    monkeypatch.setattr(zero, "on_gpu", refusing(gr.Error(message, title=title, print_exception=False)))
    screens = run(stage)
    card = json.loads(str(screens[-1].verdict))
    assert headline(screens).startswith(sentence) and headline(screens).count(". ") == 0
    assert card["source"]["kind"] == "recorded" and "What follows is recorded" in card["status"]
    assert json.loads(str(screens[-1].tokens).splitlines()[1])["run"]["mode"] == "recorded"
    assert is_ready(screens[-1])


@pytest.mark.parametrize("error", [httpx.ConnectError("no route"), RuntimeError("ZeroGPU API /schedule error: 500")])
def test_what_lends_gpus_may_be_out_of_reach(lender, monkeypatch, error):
    stage = lender()
    monkeypatch.setattr(zero, "on_gpu", refusing(error))
    assert headline(run(stage)).startswith(DEAF)


def test_an_error_of_our_own_in_the_other_process_is_no_refusal(lender, monkeypatch, caplog):
    stage = lender()
    monkeypatch.setattr(zero._models[PAIRING, "", zero.USUAL].target, "verify", lambda *_: 1 / 0)
    assert headline(run(stage)) == handlers.UNEXPECTED
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [UserError("The prompt is odd, so change it."), Cancelled()])
def test_an_error_that_the_user_can_mend_comes_back_whole(lender, monkeypatch, error):
    def fail(*_: Any) -> None:
        raise error

    stage = lender()
    monkeypatch.setattr(zero._models[PAIRING, "", zero.USUAL].target, "prefill", fail)
    expected = str(error) or "Stopped before the first token"
    assert headline(run(stage)) == expected


def test_a_step_that_gets_no_gpu_shows_a_recorded_run_too(lender, monkeypatch):
    stage = lender()
    monkeypatch.setattr(zero, "on_gpu", refusing(gr.Error("x", title="ZeroGPU quota exceeded")))
    screens = list(stage.one_step(FORM, threading.Event(), None))
    assert headline(screens).startswith(QUOTA) and screens[-1].stepping is None


def test_a_gpu_that_is_taken_away_leaves_the_text_so_far(lender):
    stage = lender(Actor(None, delay=0.02))
    screens = stage.explore(FORM._replace(max_new_tokens=200, gamma=1), threading.Event())
    until(screens, "tokens", '"index":2')
    (process,) = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGKILL)
    rest = list(screens)
    assert headline(rest).startswith(GONE) and is_ready(rest[-1])
    assert all(screen.tokens is SKIP or '"mode":"live"' in screen.tokens for screen in rest)


def test_a_run_whose_measuring_gets_no_gpu_is_kept_and_says_why(lender, monkeypatch):
    stage, lent = lender(), zero.on_gpu
    refused = refusing(gr.Error("x", title="ZeroGPU quota exceeded"))
    monkeypatch.setattr(zero, "on_gpu", lambda job: (refused if job.what == "measure" else lent)(job))
    screens = run(stage)
    assert headline(screens).endswith("; speed-up not measured") and is_ready(screens[-1])
    assert f"The speed-up was not measured. {QUOTA}" in str(last(screens, "details"))


def ask(**change: Any) -> form.Ask:
    return form.read(FORM._replace(**change), load_pairings())


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"prompt": RECORDINGS["code"].example.prompt}, "code"),  # prompt and drafter
        ({"prompt": "another", "drafter": "Early exit"}, "translation"),  # the drafter alone
        ({"prompt": RECORDINGS["story"].example.prompt, "drafter": "Early exit"}, "story"),
        ({"prompt": RECORDINGS["code"].example.prompt, "drafter": "No drafter"}, "code"),  # no such drafter
        ({"prompt": "another", "drafter": "No drafter"}, "editing"),  # neither: the first
    ],
)
def test_the_nearest_recorded_run_is_chosen(change, id):
    assert instead.nearest(ask(**change), RECORDINGS) is RECORDINGS[id]


def test_without_recordings_the_sentence_alone_is_shown():
    assert instead.nearest(ask(), {}) is None
    with pytest.raises(NoGPU, match="why"):
        instead.of(ask(), {}, NoGPU("why"))


# --- how long a GPU is asked for


@pytest.fixture
def asked(lender, monkeypatch) -> list[int]:
    """The seconds that each call asks for; none of them gets anything."""
    seconds: list[int] = []
    monkeypatch.setattr(zero, "on_gpu", lambda job: iter(seconds.append(job.seconds) or ()))
    lender()
    return seconds


def test_seconds_follow_what_is_asked_for_and_how_fast_the_last_run_was(asked, monkeypatch):
    def seconds(pace: float, tokens: int, repeats: int | None = None) -> int:
        monkeypatch.setitem(zero._paces, ((PAIRING, "", "auto"), FORM.drafter), pace)
        lent, _ = work(FORM._replace(max_new_tokens=tokens))
        list(lent.decode(never) if repeats is None else lent.measure(repeats, never))
        return asked.pop()

    assert seconds(0.1, 100) == 20  # 5 to start, 100 tokens of 0.1 s, and half as much again
    assert seconds(0.02, 100) == 10 and seconds(0.02, 1) == 10  # the least
    assert seconds(0.01, 100, repeats=3) == 20  # ten times the text
    assert seconds(1.0, 512) == 60  # the most


def test_a_step_asks_for_the_least(asked):
    list(work()[0].step((), b"", never))
    assert asked == [10]


def test_a_run_teaches_how_fast_the_next_one_will_be(lender):
    lender(Actor(None, delay=0.02))
    lent, _ = work(FORM._replace(gamma=0))
    took = sum(step.seconds for step in lent.decode(never))
    assert zero._paces == {((PAIRING, "", "auto"), FORM.drafter): pytest.approx(took / 24)}
    assert took / 24 >= 0.02


# --- what is loaded, and how it starts


def test_what_is_loaded_before_the_page_is_served_is_all_there_is(monkeypatch):
    pairings = {id: pairing for id, pairing in load_pairings().items() if id in ("smollm2-135m", "qwen3-8b")}
    calls = []
    monkeypatch.setattr(zero, "_models", {})
    monkeypatch.setattr(
        zero, "load_pairing", lambda *which, dtype, offline, having: calls.append((*which, dtype)) or len(calls)
    )
    assert zero.load(pairings) == pairings
    small, large = pairings.values()
    drafting = [preset.model for preset in large.drafters if preset.model]
    assert calls == [(small, None, "auto"), (small, None, "float32"), *((large, x, "auto") for x in (None, *drafting))]
    assert os.environ.pop("HF_DEACTIVATE_ASYNC_LOAD") == "1"
    there = {"device": "cuda", "offline": False, "progress": None, "having": ()}
    assert zero.there(small, None, dtype="float32", **there) == 2
    assert zero.there(large, drafting[0], dtype="auto", **there) == 4
    with pytest.raises(
        UserError, match=r"^Qwen3 8B is not loaded here in float32, so choose the other number format\.$"
    ):
        zero.there(large, None, dtype="float32", **there)


def test_on_zerogpu_the_app_loads_first_and_offers_what_it_has_loaded(monkeypatch):
    offered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(zero, "IS_ON", True)
    monkeypatch.setattr(zero, "load", lambda pairings, *, offline: pairings)
    monkeypatch.setattr(app, "build_demo", lambda loader, *, pairings, worker: (loader, list(pairings), worker))
    monkeypatch.setattr(app, "serve", lambda demo, *where: offered.append(demo))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    app.main()
    monkeypatch.setenv("SPECVIZ_PAIRINGS", "qwen3-8b, smollm2-135m")
    app.main()
    assert offered == [(zero.there, ids, zero.Lent) for ids in (["smollm2-135m"], ["qwen3-8b", "smollm2-135m"])]


def python(code: str, path: Path, **environment: str) -> str:
    """What a new process prints that finds this folder's packages first."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=where, cwd=path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_zerogpu_nothing_is_lent():
    assert not zero.IS_ON and zero.on_gpu is zero._work


def test_spaces_gets_a_generator_and_its_duration(tmp_path):
    (tmp_path / "spaces.py").write_text(
        "import inspect, torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "def GPU(task, *, duration):\n"
        "    assert inspect.isgeneratorfunction(task)\n"
        "    return 'lent for', duration\n",
        encoding="utf-8",
    )
    code = (
        "from types import SimpleNamespace\n"
        "from specviz.ui import zero\n"
        "words, duration = zero.on_gpu\n"
        "print(zero.IS_ON, words, duration(SimpleNamespace(seconds=23)))"
    )
    assert python(code, tmp_path, SPACES_ZERO_GPU="true") == "True lent for 23"


def test_a_process_that_has_used_several_threads_can_be_forked():
    code = """
import torch
from lender import lending
from specviz.ui import zero

def work():
    return float(torch.exp(torch.zeros(4_000_000)).sum())

class Ask:
    def prepared(self, loaded, history):
        return self

class Here:
    def __init__(self, prepared):
        pass

    def decode(self, should_stop):
        yield work()

torch.set_num_threads(2)
work()
zero.Here, zero._models["model"] = Here, None
print(next(lending(zero._work)(zero.Job("decode", (), "model", Ask(), (), 60, 0))))
"""
    assert python(code, Path(__file__).parent) == "4000000.0"
