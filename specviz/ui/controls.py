"""What the controls do to each other: drafters bring settings, examples fill the form, answers can be followed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gradio as gr

from specviz.errors import Cancelled, UserError
from specviz.loaded import Loaded
from specviz.presets import DrafterPreset, ModelSource, Pairing, nearest
from specviz.recordings import Example, Recording
from specviz.ui import drafting, form, screens
from specviz.ui.drafting import default
from specviz.ui.form import Form
from specviz.ui.handlers import Explorer, History, session
from specviz.ui.offer import comes_at_once, facts, obstacle
from specviz.ui.screens import SKIP, Screen

Value = Any  # what a Gradio component takes

LOOK_UP_SECONDS = 0.3
READABLE = "The recorded runs can be read all the same."
STILL_THERE = "The recorded runs can be read without it, and Run tries again."


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
    own_models: bool = False  # whether the user may bring models of their own

    @property
    def pairings(self) -> dict[str, Pairing]:
        return self.explorer.pairings

    def choose_drafter(self, pairing_id: str, title: str, rule: str) -> list[Value]:
        """The groups of its settings, and where they start. rule: the acceptance rule chosen so far."""
        preset = next((each for each in self.pairings[pairing_id].drafters if each.title == title), None)
        if preset is None:  # of a pairing that was chosen before
            return [SKIP] * (len(drafting.Groups._fields) + len(drafting.Starts._fields))
        shape = drafting.first_shape(preset, preset.defaults)
        return [*drafting.groups(preset, shape), *drafting.starts(preset, rule)]

    def choose_pairing(self, pairing_id: str, rule: str) -> list[Value]:
        """What to know of it, its drafters, how it reads prompts, and what follows the first of its drafters."""
        pairing = self.pairings[pairing_id]
        preset = first_drafter(pairing)
        drafters = gr.update(choices=[p.title for p in pairing.drafters], value=preset.title)
        template = form.CHAT if pairing.chat else form.RAW
        return [self.about(pairing), drafters, template, *self.choose_drafter(pairing_id, preset.title, rule)]

    def about(self, pairing: Pairing) -> str:
        """The pairing's card."""
        why = obstacle(pairing, self.explorer.models).sentence
        return screens.about(facts(pairing), (why, "error") if why else None)

    def show_example(self, id: str, prompt: str, history: History, pairing_id: str, request: gr.Request) -> list[Value]:
        """Fill the form (the drafter's notes with it), end the conversation, and show the recorded run.

        While a run of the visitor's own is under way that stays in view, and only the form changes.
        """
        example = self.examples[id]
        preset = preset_of(self.pairings[pairing_id], example)
        kept = Kept((prompt, history), gr.update(visible=True)) if self._is_own(prompt, history) else Kept()
        screen = Screen()
        if id in self.recordings and not self.explorer.visits.is_running(session(request)):
            screen = self.recorded(self.recordings[id], self.pairings[pairing_id])
        groups = drafting.groups(preset, drafting.first_shape(preset, example.drafter_settings))
        return [*kept, *groups, *filled(example, preset), *talk(()), *screen]

    def recorded(self, recording: Recording, chosen: Pairing) -> Screen:
        """A recorded run under its own drafter's name, and a word on its target where that is not the chosen one."""
        run = recording.trace.run
        pairing = next((each for each in self.pairings.values() if each.target.name == run.target), chosen)
        preset = nearest(pairing, run.drafter, run.drafter_settings)
        title = preset.title if preset else run.drafter
        if pairing.target == chosen.target:
            return screens.recorded(recording, title)
        return screens.recorded(recording, title, f"Recorded with {run.target}; Run uses {chosen.target.name}.")

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

    def watch(self, pairing_id: str, drafter: str, precision: str) -> Iterator[str]:
        """Load the model while the visitor reads, and say how far it is. What is large waits for Run."""
        if pairing_id not in self.pairings:
            return
        models, (pairing, drafts, dtype) = self.explorer.models, self._wanted(pairing_id, drafter, precision)
        if models.there(pairing, drafts, dtype) is None:
            if why := obstacle(pairing, models).sentence:
                yield screens.status("failed", why, detail=READABLE)
                return
            if not comes_at_once(pairing, drafts):
                yield screens.status("waiting", f"Run downloads {pairing.title} first.")
                return
        yield from self.load(pairing, drafts, dtype)

    def state(self, pairing_id: str, drafter: str, precision: str) -> Value:
        """That the model is there, if it is: a run may have loaded it."""
        if pairing_id not in self.pairings:
            return SKIP
        loaded = self.explorer.models.there(*self._wanted(pairing_id, drafter, precision))
        return SKIP if loaded is None else ready(loaded)

    def _wanted(self, pairing_id: str, drafter: str, precision: str) -> tuple[Pairing, ModelSource | None, str | None]:
        """Which models the controls ask for, and in what number format if not the server's own."""
        pairing = self.pairings[pairing_id]
        preset = next((each for each in pairing.drafters if each.title == drafter), first_drafter(pairing))
        return pairing, preset.model, form.EXACT if precision == form.EXACT else None

    def load(self, pairing: Pairing, drafts: ModelSource | None, dtype: str | None) -> Iterator[str]:
        """Load the models, unless they are there, and say how far that is."""
        models = self.explorer.models
        try:
            loaded = models.there(pairing, drafts, dtype)
            if loaded is None:
                loading = models.load(pairing, drafts, dtype)
                with loading.awaited(gives_up=False):
                    while not loading.wait(LOOK_UP_SECONDS):
                        yield screens.status("loading", loading.doing, loading.fraction)
                loaded = loading.result()
        except Cancelled:
            yield screens.status("waiting", "Loading was cancelled; what has come so far is kept.")
        except UserError as error:
            yield screens.status("failed", str(error), detail=STILL_THERE)
        except Exception:  # which is in the log
            yield screens.status("failed", "The model can't be loaded; the server's log says why.", detail=STILL_THERE)
        else:
            yield ready(loaded)

    def check_memory(self, history: History, *values: Value) -> str:
        """The memory bar for the form as it stands; nothing before the model is there, or where the form is wrong."""
        try:
            ask = form.read(Form(*values), self.pairings)
            loaded = self.explorer.models.there(ask.pairing, ask.preset.model, ask.dtype)
            if loaded is None:
                return ""
            return screens.budget(ask.needs(loaded, history))
        except UserError:
            return ""  # Run says what is wrong with the form


def ready(loaded: Loaded) -> str:
    """The state of models that are there."""
    number_format = str(loaded.target.dtype).removeprefix("torch.")
    drafts = loaded.assistant or loaded.head
    with_it = f" with {drafts.name}" if drafts else ""
    text = f"{loaded.target.name}{with_it} is ready · {number_format}"
    return screens.status("ready", text, detail=" ".join(loaded.notes))


def first_drafter(pairing: Pairing) -> DrafterPreset:
    """The first with a model of its own, for that is what makes the pair; else the first that drafts at all."""
    with_model = next((preset for preset in pairing.drafters if preset.model is not None), None)
    return with_model or next((preset for preset in pairing.drafters if preset.kind != "plain"), pairing.drafters[0])


def preset_of(pairing: Pairing, example: Example) -> DrafterPreset:
    """The pairing's drafter for the example, or its first where it has none of that kind."""
    return nearest(pairing, example.drafter, example.drafter_settings) or first_drafter(pairing)


def filled(example: Example, preset: DrafterPreset) -> Form:
    """The example's prompt and settings; pairing, number format and measuring stay as they are."""
    drafter, sampler = example.drafter_settings, example.sampler
    made = replace(preset, defaults={**preset.defaults, **drafter})
    shape, policy = drafting.first_shape(preset, drafter), drafting.first_policy(preset, drafter)
    return Form(
        prompt=example.prompt,
        drafter=preset.title,
        gamma=gr.update(value=example.gamma, interactive=preset.kind != "plain"),
        ngram_min=default(made, "ngram_min"),
        ngram_max=default(made, "ngram_max"),
        pick=drafter.get("pick", "recent"),
        exit_layer=default(made, "exit_layer"),
        shape=shape,
        nodes=drafting.by_part(made, "nodes"),
        branches=drafting.by_part(made, "branches"),
        later_nodes=drafting.by_part(made, "later_nodes"),
        later_branches=drafting.by_part(made, "later_branches"),
        second_gamma=default(made, "second_gamma"),
        policy=drafting.policies(preset, policy),
        confidence=drafting.threshold(policy, drafting.by_part(made, "confidence")),
        later_confidence=drafting.threshold(policy, drafting.by_part(made, "later_confidence")),
        rule=drafting.rules(shape, "token"),
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
