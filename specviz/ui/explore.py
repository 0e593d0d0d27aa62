"""The Explore tab: ask on the left, the run on the right. What is shown where, and what calls what."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr

from specviz.metrics import DEFINITIONS
from specviz.presets import DrafterPreset
from specviz.ui import drafting, fields, screens
from specviz.ui.chart import chart
from specviz.ui.controls import Controls, Kept, Talk, preset_of
from specviz.ui.drafting import Starts
from specviz.ui.fields import Fields
from specviz.ui.javascript import feed, view
from specviz.ui.offer import choices
from specviz.ui.own import Brought, OwnFields, OwnModels
from specviz.ui.screens import Screen

MODEL_EVENTS = "model"  # all events that use a model share this queue and its one limit
VISITORS_AT_ONCE = 48  # they wait for the model in turns of our own, which can say how long it takes
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", **PRIVATE}
ON_MODEL: dict[str, Any] = {
    "show_progress": "hidden",
    "concurrency_id": MODEL_EVENTS,
    "concurrency_limit": VISITORS_AT_ONCE,
    **PRIVATE,
}
WATCHING: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": VISITORS_AT_ONCE, **PRIVATE}
# Few at a time, so that those who decode are left their processor.
LOOKING: dict[str, Any] = {"show_progress": "hidden", "concurrency_id": "memory", "concurrency_limit": 2, **PRIVATE}
CHARTS = {
    "histogram": DEFINITIONS["histogram"] + " Passes without a draft are left out.",
    "survival": f"Bars, survival. {DEFINITIONS['survival']} Markers, conditional. {DEFINITIONS['conditional']}",
    "time_share": "Milliseconds per token of two further runs, plain and speculative, that were synchronised to tell "
    "the phases apart: drafting, the target's verify passes, and deciding (accepting, rejecting, rolling back). c is "
    "the cost of drafting a token over that of a plain step. Drafting pays while c is below (acceptance length - v) / "
    "mean draft length, v being the cost of a verify pass over a plain step. No speed-up comes from these runs, for "
    "synchronising slows them.",
}
# Said by the browser itself, so before any answer of the server; the run's end sets it back.
STOPPING = "() => ({__type__: 'update', value: 'Stopping…', interactive: false})"


class Asking(NamedTuple):
    """The first card of the left column."""

    prompt: gr.Textbox
    examples: dict[str, gr.Button]  # by the example's id
    kept: Kept
    talk: Talk
    run: gr.Button
    step: gr.Button
    stop: gr.Button
    pairing: gr.Dropdown
    drafter: gr.Radio
    note: gr.Markdown


def explore_tab(controls: Controls, status: gr.HTML) -> None:
    """`status`: where the page says how far the model is."""
    example = next(iter(controls.examples.values()))
    pairing = next(iter(controls.pairings.values()))
    preset = preset_of(pairing, example)
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            asking = _ask(controls, example.prompt, preset, [each.title for each in pairing.drafters])
        with gr.Column(elem_classes="sv-settings", min_width=0):
            made = fields.settings(
                controls, example, preset, asking.prompt, asking.pairing, asking.drafter, asking.note
            )
        with gr.Column(elem_classes="sv-run", min_width=0):
            outputs = _run_view(controls, asking, made.memory)
    _wire_settings(controls, made)
    if made.own is not None:
        _wire_own(controls, asking, made, made.own, status)
    _wire_examples(controls, asking, made, outputs)
    _wire_run(controls, asking, made, outputs, status)
    _wire_model(controls, asking, made, status)


def _ask(controls: Controls, first_prompt: str, preset: DrafterPreset, drafters: list[str]) -> Asking:
    history = gr.State(())
    prompt = gr.Textbox(first_prompt, label="Prompt", lines=3, max_lines=7, elem_id="prompt")
    kept = gr.State(("", ()))
    with gr.Row(elem_classes="sv-chips", elem_id="examples"):
        chips = {id: _chip(each.title) for id, each in controls.examples.items()}
    with gr.Row(elem_classes="sv-chips"):
        bring_back = _chip("↶ Bring back my prompt", visible=False, elem_id="bring-back")
        follow_up = _chip("Follow up on this answer", visible=bool(controls.recordings), elem_id="follow-up")
        start_over = _chip("End the conversation", visible=False, elem_id="start-over")
    with gr.Row(elem_classes="sv-buttons"):
        run = gr.Button("Run", variant="primary", min_width=0, elem_id="run")
        step = gr.Button("Step", min_width=0, elem_id="step")
        stop = gr.Button("Stop", interactive=False, min_width=0, elem_id="stop")
    earlier = view("result_view.js", "", elem_id="conversation", elem_classes="sv-earlier")
    pairing = gr.Dropdown(
        choices(controls.pairings, controls.explorer.models),
        value=next(iter(controls.pairings)),
        label="Pairing",
        info="The target, and the drafters that fit it.",
        elem_id="pairing",
    )
    drafter = gr.Radio(drafters, value=preset.title, label="Drafter", elem_id="drafter")
    note = gr.Markdown(preset.note, elem_classes="sv-note-small")
    talk = Talk(history, earlier, follow_up, start_over)
    return Asking(prompt, chips, Kept(kept, bring_back), talk, run, step, stop, pairing, drafter, note)


def _chip(text: str, **settings: Any) -> gr.Button:
    return gr.Button(text, size="sm", min_width=0, elem_classes="sv-chip", **settings)


def _run_view(controls: Controls, asking: Asking, memory: gr.HTML) -> Screen:
    """The right column. It opens with the first example's recorded run."""
    shown = first_screen(controls)
    verdict = view("result_view.js", shown.verdict, elem_id="verdict")
    view("trace_view.js", shown.tokens, elem_id="tokens")
    tokens = feed("tokens")
    race = view("race_view.js", shown.race, elem_id="race", elem_classes="sv-card")
    with gr.Row(elem_classes="sv-charts"):
        charts = {
            name: chart(getattr(shown, name), elem_id=name, definition=definition)
            for name, definition in CHARTS.items()
        }
    details = view("result_view.js", shown.details, elem_id="details", elem_classes="sv-card")
    return Screen(
        tokens=tokens,
        verdict=verdict,
        race=race,
        **charts,
        details=details,
        memory=memory,
        run=asking.run,
        step=asking.step,
        stop=asking.stop,
        follow_up=asking.talk.follow_up,
        stepping=gr.State(None),
        exchange=gr.State(shown.exchange),
    )


def first_screen(controls: Controls) -> Screen:
    """What the page shows before anything has run."""
    if not controls.recordings:
        none: dict[str, Any] = {"histogram": None, "survival": None, "time_share": None}
        return Screen(tokens="", verdict=screens.empty(), race="", details="", exchange=(), **none)
    recording = next(iter(controls.recordings.values()))
    return controls.recorded(recording, next(iter(controls.pairings.values())))


def _wire_settings(controls: Controls, made: Fields) -> None:
    """Each drafter brings its note, its settings and its defaults; what can't go together is not offered."""
    values = made.form
    brought = [*made.groups, *(getattr(values, name) for name in Starts._fields)]
    values.drafter.input(controls.choose_drafter, [values.pairing, values.drafter, values.rule], brought, **AT_ONCE)
    # Not `input`, which a list that is only passed by keyboard sends too, and not `select`, which the keyboard doesn't.
    outputs = [made.about, values.drafter, values.template, *brought]
    values.pairing.change(controls.choose_pairing, [values.pairing, values.rule], outputs, **AT_ONCE)
    shapes = [values.shape, values.rule]
    values.shape.input(drafting.choose_shape, shapes, [made.groups.tree, values.rule], **AT_ONCE)
    thresholds = [values.confidence, values.later_confidence]
    values.policy.input(drafting.choose_policy, values.policy, thresholds, **AT_ONCE)


def _wire_own(controls: Controls, asking: Asking, made: Fields, fields: OwnFields, status: gr.HTML) -> None:
    """Check what was named, and load it. The choice of the pairing that it makes is followed as any other."""
    own = OwnModels(controls)
    form_in = [asking.talk.history, *made.form]
    outputs = Brought(fields.card, fields.check, fields.cancel, fields.made, made.form.pairing)
    waiting: dict[str, Any] = {"show_progress": "hidden", **PRIVATE}
    asked = [fields.target, fields.drafter, made.form.precision]
    loading = [status, fields.card, fields.check, fields.cancel]
    for event in (fields.check.click, fields.target.submit, fields.drafter.submit):
        begun = event(own.begin, None, [fields.card, fields.check, fields.cancel], **AT_ONCE)
        checked = begun.then(own.check, asked, [*outputs], concurrency_id="own", concurrency_limit=1, **waiting)
        loaded = checked.then(own.load, [fields.made, made.form.precision], loading, **waiting)
        loaded.then(controls.check_memory, form_in, made.memory, **LOOKING)
    fields.cancel.click(own.cancel, None, None, **AT_ONCE)
    page = gr.context.Context.root_block
    assert isinstance(page, gr.Blocks)
    page.load(own.listed, None, made.form.pairing, **AT_ONCE)


def _wire_examples(controls: Controls, asking: Asking, made: Fields, outputs: Screen) -> None:
    """An example fills the form and shows its recorded run; what it replaced can be had back."""
    changed = [*asking.kept, *made.groups, *made.form, *asking.talk, *outputs]
    history = asking.talk.history
    inputs = [asking.prompt, history, made.form.pairing]
    for id, chip in asking.examples.items():
        shown = chip.click(_with_id(controls, id), inputs, changed, **AT_ONCE)
        shown.then(controls.check_memory, [history, *made.form], made.memory, **LOOKING)
    kept, talk = asking.kept, asking.talk
    back = [*kept, asking.prompt, *talk]
    kept.button.click(controls.bring_back, [kept.replaced, asking.prompt, history], back, **AT_ONCE)
    followed = talk.follow_up.click(controls.follow_up, outputs.exchange, [asking.prompt, *talk], **AT_ONCE)
    followed.then(None, None, None, js="() => document.querySelector('#prompt textarea').focus()", **PRIVATE)
    talk.start_over.click(controls.start_over, None, [*talk], **AT_ONCE)


def _with_id(controls: Controls, id: str) -> Any:
    def show(prompt: str, history: Any, pairing: str, request: gr.Request) -> list[Any]:
        return controls.show_example(id, prompt, history, pairing, request)

    return show


def _wire_run(controls: Controls, asking: Asking, made: Fields, outputs: Screen, status: gr.HTML) -> None:
    """Run: note the visitor's run at once, then do it. Stop only says so; the run ends by itself, within a step."""
    explorer, history = controls.explorer, asking.talk.history
    works = (
        (asking.run, explorer.arrive, explorer.run, [history]),
        (asking.step, explorer.arrive_to_step, explorer.step, [outputs.stepping, history]),
    )
    for button, arrive, work, states in works:
        asked = button.click(arrive, None, list(outputs), **AT_ONCE)
        done = asked.then(work, [*states, *made.form], list(outputs), **ON_MODEL)
        done.failure(explorer.failed, None, list(outputs), **AT_ONCE)
        done.then(controls.state, model_of(made), status, **AT_ONCE)  # the run may have loaded it
    said = asking.stop.click(None, None, asking.stop, js=STOPPING, **PRIVATE)
    said.then(explorer.stop, None, list(outputs), **AT_ONCE)


def model_of(made: Fields) -> list[gr.Component]:
    """The controls that say which model is wanted."""
    return [made.form.pairing, made.form.drafter, made.form.precision]


def _wire_model(controls: Controls, asking: Asking, made: Fields, status: gr.HTML) -> None:
    """Load the model while the visitor reads; then say what the form as it stands needs of memory."""
    form_in = [asking.talk.history, *made.form]
    page = gr.context.Context.root_block
    assert isinstance(page, gr.Blocks)
    for event in (page.load, made.form.precision.input, made.form.pairing.change, made.form.drafter.input):
        watched = event(controls.watch, model_of(made), status, **WATCHING)
        watched.then(controls.check_memory, form_in, made.memory, **LOOKING)
    lengths = made.form.gamma.release, made.form.max_new_tokens.release
    for event in (*lengths, made.form.shape.input, made.form.nodes.input, made.form.later_nodes.input):
        event(controls.check_memory, form_in, made.memory, **LOOKING)
