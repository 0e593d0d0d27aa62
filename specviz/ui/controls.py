"""What the controls do to each other: drafters bring settings, examples fill the form, answers can be followed up."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gradio as gr

from specviz import runs
from specviz.errors import UserError
from specviz.presets import DrafterPreset, Pairing
from specviz.recordings import Example, Recording
from specviz.ui import form, screens
from specviz.ui.form import Form
from specviz.ui.handlers import Explorer, History, session
from specviz.ui.offer import obstacle, with_what_is_loaded
from specviz.ui.screens import SKIP, Screen

Value = Any  # what a Gradio component takes
log = logging.getLogger(__name__)

FALLBACK = {"ngram_min": 1, "ngram_max": 3, "exit_layer": 8, "gamma": 4}  # where a preset names no default
LOOK_UP_SECONDS = 0.3
STILL_THERE = "The recorded runs can be read without it, and Run tries again."


class Drafting(NamedTuple):
    """Outputs that follow the drafter: its note, the groups of its settings, and their values."""

    note: Value
    ngram: Value
    exit: Value
    ngram_min: Value = SKIP
    ngram_max: Value = SKIP
    exit_layer: Value = SKIP
    gamma: Value = SKIP


class Talk(NamedTuple):
    """Outputs that follow the conversation: its turns (state), how they are shown, and the buttons around it."""

    history: Value
    shown: Value
    follow_up: Value
    start_over: Value


class Kept(NamedTuple):
    """A prompt and its conversation that an example replaced (state), and the button that brings them back."""

    replaced: Value = SKIP
    button: Value = SKIP


@dataclass(frozen=True, slots=True)
class Controls:
    """The handlers of everything around a run."""

    explorer: Explorer
    examples: Mapping[str, Example]
    recordings: Mapping[str, Recording]

    @property
    def pairings(self) -> Mapping[str, Pairing]:
        return self.explorer.pairings

    def choose_drafter(self, pairing_id: str, title: str) -> Drafting:
        return drafting(form.drafter_preset(self.pairings[pairing_id], title))

    def choose_pairing(self, pairing_id: str) -> list[Value]:
        """Why it can't run here if so, its drafters, and what follows the first of them."""
        pairing = self.pairings[pairing_id]
        preset = first_drafter(pairing)
        why = obstacle(pairing, self.explorer.models.device)
        drafters = gr.update(choices=[p.title for p in pairing.drafters], value=preset.title)
        return [gr.update(value=why, visible=bool(why)), drafters, *drafting(preset)]

    def show_example(self, id: str, prompt: str, history: History, pairing_id: str, request: gr.Request) -> list[Value]:
        """Fill the form (the drafter's notes with it), end the conversation, and show the recorded run.

        While a run of the visitor's own is under way that stays in view, and only the form changes.
        """
        example = self.examples[id]
        preset = preset_of(self.pairings[pairing_id], example.drafter)
        kept = Kept((prompt, history), gr.update(visible=True)) if self._is_own(prompt, history) else Kept()
        screen = Screen()
        if id in self.recordings and not self.explorer.visits.is_running(session(request)):
            screen = screens.recorded(self.recordings[id], preset.title)
        groups = drafting(preset)
        return [*kept, groups.note, groups.ngram, groups.exit, *filled(example, preset), *talk(()), *screen]

    def _is_own(self, prompt: Any, history: History) -> bool:
        """Whether there is something of the visitor's own to keep, of a size that the page takes."""
        if not isinstance(prompt, str) or len(prompt) > form.MAX_PROMPT:
            return False
        is_typed = bool(prompt.strip()) and all(prompt != example.prompt for example in self.examples.values())
        return is_typed or bool(history)

    def bring_back(self, replaced: tuple[str, History], prompt: str, history: History) -> list[Value]:
        """What the example replaced; what stands there now is kept in its place, if it is the visitor's own."""
        own = self._is_own(prompt, history)
        kept = Kept((prompt, history) if own else SKIP, gr.update(visible=own))
        return [*kept, replaced[0], *talk(replaced[1])]

    def follow_up(self, exchange: History) -> list[Value]:
        """An empty prompt, which goes on from the conversation so far."""
        return ["", *talk(exchange)] if exchange else [SKIP] * 5

    def start_over(self) -> Talk:
        return talk(())

    def watch(self, pairing_id: str, precision: str) -> Iterator[str]:
        """Load the model while the visitor reads, and say how far it is."""
        models, pairing = self.explorer.models, self.pairings.get(pairing_id)
        if pairing is None:
            return
        dtype = form.EXACT if precision == form.EXACT else None
        if models.there(pairing_id, dtype) is None and (why := obstacle(pairing, models.device)):
            yield screens.status("failed", why, detail=STILL_THERE)
            return
        try:
            loaded = models.there(pairing_id, dtype)
            if loaded is None:
                loading = models.load(pairing_id, dtype)
                while not loading.wait(LOOK_UP_SECONDS):
                    yield screens.status("loading", loading.doing, loading.fraction)
                loaded = loading.result()
        except UserError as error:
            yield screens.status("failed", str(error), detail=STILL_THERE)
        except Exception:
            log.exception("loading failed")
            yield screens.status("failed", "The model can't be loaded; the server's log says why.", detail=STILL_THERE)
        else:
            number_format = str(loaded.target.dtype).removeprefix("torch.")
            yield screens.status("ready", f"{loaded.target.name} is ready · {number_format}")

    def check_memory(self, history: History, *values: Value) -> str:
        """The memory bar for the form as it stands; nothing before the model is there, or where the form is wrong."""
        try:
            ask = form.read(Form(*values), self.pairings)
            loaded = self.explorer.models.there(ask.pairing.id, ask.dtype)
            if loaded is None:
                return ""
            return screens.budget(with_what_is_loaded(runs.budget(ask.prepared(loaded, history))))
        except UserError:
            return ""  # Run says what is wrong with the form


def first_drafter(pairing: Pairing) -> DrafterPreset:
    """The first that drafts at all."""
    return next((preset for preset in pairing.drafters if preset.kind != "plain"), pairing.drafters[0])


def preset_of(pairing: Pairing, kind: str) -> DrafterPreset:
    """The pairing's drafter of that kind, or its first where it has none."""
    return next((preset for preset in pairing.drafters if preset.kind == kind), first_drafter(pairing))


def default(preset: DrafterPreset, name: str) -> int:
    return int(preset.defaults.get(name, FALLBACK[name]))


def drafting(preset: DrafterPreset) -> Drafting:
    """What is shown of a drafter, and its defaults."""
    kinds = form.parts(preset)
    return Drafting(
        preset.note,
        gr.update(visible="ngram" in kinds),
        gr.update(visible="early-exit" in kinds),
        default(preset, "ngram_min"),
        default(preset, "ngram_max"),
        default(preset, "exit_layer"),
        gr.update(value=default(preset, "gamma"), interactive=preset.kind != "plain"),
    )


def filled(example: Example, preset: DrafterPreset) -> Form:
    """The example's prompt and settings; pairing, number format and measuring stay as they are."""
    drafter, sampler = example.drafter_settings, example.sampler
    return Form(
        prompt=example.prompt,
        drafter=preset.title,
        gamma=gr.update(value=example.gamma, interactive=preset.kind != "plain"),
        ngram_min=drafter.get("ngram_min", default(preset, "ngram_min")),
        ngram_max=drafter.get("ngram_max", default(preset, "ngram_max")),
        pick=drafter.get("pick", "recent"),
        exit_layer=drafter.get("exit_layer", default(preset, "exit_layer")),
        temperature=sampler.get("temperature", 0),
        top_k=sampler.get("top_k", 0),
        top_p=sampler.get("top_p", 1),
        min_p=sampler.get("min_p", 0),
        penalty=sampler.get("repetition_penalty", 1),
        seed=example.seed,
        max_new_tokens=example.max_new_tokens,
        stops="",
        template=form.CHAT,
        pairing=SKIP,
        precision=SKIP,
        measure=SKIP,
    )


def talk(history: History) -> Talk:
    """A conversation as the next run will have it before its prompt."""
    follow_up = gr.update(visible=False) if history else SKIP
    return Talk(history, screens.conversation(history), follow_up, gr.update(visible=bool(history)))
