"""A stand-in for the model: it says what the test wants, as fast as the test wants, without weights."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fakes import byte_tokenizer, tiny_model
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specviz import runs
from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings
from specviz.loaded import Loaded
from specviz.models.target import Target
from specviz.presets import ModelSource, Pairing, load_pairings
from specviz.prompts import Turn
from specviz.trace import Trace
from specviz.ui.form import Form
from specviz.ui.handlers import Explorer
from specviz.ui.loading import Models
from specviz.ui.screens import SKIP, Screen

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}\n"
PAIRING = "smollm2-135m"
NGRAM = {"ngram_min": 1, "ngram_max": 3, "pick": "recent"}  # as the page has it at first
HOSTILE = ("<b>", "</script>", "${1+1}", "{{value}}", "<img src=x onerror=alert(1)>", "\u202eabc", "\\u003c", "\u200b")


def tokenizer_with(*tokens: str) -> PreTrainedTokenizerFast:
    """One token per byte, a chat template, and these tokens besides."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.add_tokens(list(tokens))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Actor(Target):
    """A tiny random model. With a script it says just that; with a delay every verify pass takes so long."""

    def __init__(self, script: str | None = None, delay: float = 0.0, tokens: tuple[str, ...] = ()) -> None:
        tokenizer = tokenizer_with(*tokens)
        super().__init__(tiny_model(vocab_size=len(tokenizer), max_position_embeddings=4096), tokenizer, "tiny actor")
        self.play(script, delay)

    def play(self, script: str | None, delay: float = 0.0) -> None:
        """Say this from now on, then stop; None is whatever comes to mind."""
        assert self.tokenizer is not None
        self.script = None if script is None else [*self.tokenizer.encode(script), self.tokenizer.eos_token_id]
        self.delay, self.passes = delay, 0
        self._prompt: list[int] | None = None  # as it was read, all but its last token

    def prefill(self, tokens: list[int], *rest: Any) -> Tensor | None:
        """A prompt read again with the beginning of the script after it, as Step does it, goes on from there.

        Nothing at all is read to empty the cache, before a run.
        """
        read = len(self._prompt or [])
        said = tokens[read + 1 :]
        if tokens and (tokens[:read] != self._prompt or said != (self.script or [])[: len(said)]):
            self._prompt = tokens
        return super().prefill(tokens, *rest)

    def verify(self, last: int, draft: Draft) -> tuple[Tensor, Tensor | None]:
        time.sleep(self.delay)
        self.passes += 1
        place = len(self.cache) - len(self._prompt or [])
        logits, hidden = super().verify(last, draft)
        if self.script is not None:
            said = self.script[place : place + len(logits)]
            for row, token in enumerate(said + [self.script[-1]] * (len(logits) - len(said))):
                logits[row] = -20.0
                logits[row, token] = 20.0
        return logits, hidden


class Loader:
    """In place of `loaded.load`: always this target. `before` is called first, with the progress callback."""

    def __init__(self, target: Target, before: Callable[..., None] = lambda progress: None) -> None:
        self.loaded = Loaded(load_pairings()[PAIRING], target, ())
        self.before = before
        self.calls = 0

    def __call__(self, pairing: Pairing, drafts: ModelSource | None, *, progress: object, **_: object) -> Loaded:
        self.calls += 1
        self.before(progress)
        return replace(self.loaded, pairing=pairing, drafts=drafts)


def made(
    loaded: Loaded,
    prompt: str,
    kind: str = "ngram",
    drafter: dict[str, Any] | None = None,
    *,
    raw: bool = False,
    history: Sequence[Turn] = (),
    **settings: Any,
) -> Trace:
    """The run that the page should make, made directly; settings: of the engine."""
    prepared = runs.prepare(
        loaded,
        kind,
        NGRAM if drafter is None else drafter,
        prompt,
        Settings(**{"gamma": 5, "max_new_tokens": 64, **settings}),
        raw_prompt=raw,
        history=history,
    )
    return Trace(prepared.run, tuple(prepared.steps()))


def timeless(trace: Trace) -> Trace:
    """Without what differs from one time to the next, and from one thread of the server to another."""
    steps = (replace(step, seconds=None, prefill_s=None) for step in trace.steps)
    return Trace(replace(trace.run, date="", threads=None), tuple(steps))


FORM = Form(
    prompt="to be or not to be",
    drafter="N-gram lookup",
    gamma=4,
    ngram_min=1,
    ngram_max=3,
    pick="recent",
    exit_layer=2,
    shape="chain",
    nodes=8,
    branches=4,
    later_nodes=8,
    later_branches=4,
    second_gamma=4,
    policy="fixed",
    confidence=0.4,
    later_confidence=0.4,
    rule="token",
    temperature=0,
    top_k=0,
    top_p=1,
    min_p=0,
    penalty=1,
    seed=0,
    max_new_tokens=24,
    stops="",
    template="chat",
    pairing="smollm2-135m",
    precision="default",
    measure=True,
)
SCRIPT = "to be or not to be, that is the question: to be or not"


def explorer(actor: Actor | None = None, before=lambda progress: None) -> tuple[Explorer, Loader]:
    loader = Loader(actor or Actor(SCRIPT), before)
    return Explorer(load_pairings(), Models(loader, device="auto", dtype="auto", offline=False)), loader


def run(stage: Explorer, form: Form = FORM, stop: threading.Event | None = None) -> list[Screen]:
    return list(stage.explore(form, stop or threading.Event()))


def last(screens: list[Screen], name: str) -> object:
    """The last value that an output was given."""
    return next(value for screen in reversed(screens) if (value := getattr(screen, name)) is not SKIP)


def pieces(text: object) -> list[tuple[str, str]]:
    """(text, kind) of a trace view's value: what each committed token adds, and what was rejected."""
    shown = []
    for step in [json.loads(line) for line in str(text).splitlines()[2:]]:
        kinds = ["accepted"] * len(step["path"]) + ([step["last"]["kind"]] if step["last"] else [])
        shown += zip(step["text"], kinds, strict=True)
        shown += [(node["text"], "rejected") for node in step["nodes"] if node["outcome"] == "rejected"]
    return shown


def headline(screens: list[Screen]) -> str:
    return "".join(text for text, _ in json.loads(str(last(screens, "verdict")))["headline"])


def words(screens: list[Screen]) -> str:
    """Everything that the verdict said on the way."""
    return "\n".join(str(screen.verdict) for screen in screens if screen.verdict is not SKIP)


def is_ready(screen: Screen) -> bool:
    return screen.run is not SKIP and screen.run["interactive"] and not screen.stop["interactive"]


def is_free(loader: Loader) -> bool:
    return not loader.loaded.lock.locked()
