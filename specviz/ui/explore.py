"""The Explore tab: ask on the left, the run on the right."""

from __future__ import annotations

import json
from typing import NamedTuple

import gradio as gr

from specviz.presets import DrafterPreset, Pairing
from specviz.ui import form, screens
from specviz.ui.examples import EXAMPLES, FIRST
from specviz.ui.form import Form
from specviz.ui.handlers import REPEATS, Explorer
from specviz.ui.javascript import view
from specviz.ui.screens import Screen

MODEL_EVENTS = "model"  # all events that use a model share this queue and its one limit
VISITORS_AT_ONCE = 16  # they wait for the model's lock in turns, and see that they wait
# Said by the browser itself, so before any answer of the server; the run's end sets it back.
STOPPING = "() => ({__type__: 'update', value: 'Stopping…', interactive: false})"
FALLBACK = {"ngram_min": 1, "ngram_max": 3, "exit_layer": 8, "gamma": 4}  # where a preset names no default


class Groups(NamedTuple):
    """Parts of the settings that come and go with the drafter."""

    note: gr.Markdown
    ngram: gr.Column
    exit: gr.Column


def explore_tab(explorer: Explorer) -> None:
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            prompt, run, stop = _ask()
        with gr.Column(elem_classes="sv-settings", min_width=0):
            controls, groups = _settings(explorer.pairings, prompt)
        with gr.Column(elem_classes="sv-run", min_width=0):
            outputs = _run_view(run, stop)
    _wire_settings(explorer.pairings, controls, groups)
    _wire_run(explorer, controls, outputs)


def _ask() -> tuple[gr.Textbox, gr.Button, gr.Button]:
    prompt = gr.Textbox(EXAMPLES[FIRST], label="Prompt", lines=3, max_lines=7, elem_id="prompt")
    with gr.Row(elem_classes="sv-examples"):
        for name, text in EXAMPLES.items():
            example = gr.Button(name, size="sm", min_width=0, elem_classes="sv-example")
            example.click(None, None, prompt, js=f"() => {json.dumps(text)}", api_visibility="private")
    with gr.Row(elem_classes="sv-buttons"):
        run = gr.Button("Run", variant="primary", min_width=0, elem_id="run")
        stop = gr.Button("Stop", interactive=False, min_width=0, elem_id="stop")
    return prompt, run, stop


def _settings(pairings: dict[str, Pairing], prompt: gr.Textbox) -> tuple[Form, Groups]:
    first = next(iter(pairings.values()))
    preset = _first_drafter(first)
    kinds = form.parts(preset)
    offered = [(pairing.title, pairing.id) for pairing in pairings.values()]
    pairing = gr.Dropdown(offered, value=first.id, label="Pairing", elem_id="pairing")
    drafter = gr.Radio([p.title for p in first.drafters], value=preset.title, label="Drafter", elem_id="drafter")
    note = gr.Markdown(preset.note, elem_classes="sv-drafter-note")
    with gr.Column(visible="ngram" in kinds, min_width=0) as ngram:
        with gr.Row():
            ngram_min = gr.Number(_default(preset, "ngram_min"), label="Shortest match", min_width=90)
            ngram_max = gr.Number(_default(preset, "ngram_max"), label="Longest match", min_width=90)
        pick = gr.Radio(list(form.PICKS), value="recent", label="Of several matches, follow the most")
    with gr.Column(visible="early-exit" in kinds, min_width=0) as exit_group:
        exit_layer = gr.Number(_default(preset, "exit_layer"), label="Exit after layer")
    length = _default(preset, "gamma")
    gamma = gr.Slider(0, form.MAX_GAMMA, length, step=1, label="Draft length (gamma)", elem_id="gamma")
    temperature = gr.Slider(0, form.MAX_TEMPERATURE, 0, step=0.1, label="Temperature (0: greedy)", elem_id="heat")
    budget = gr.Slider(1, form.MAX_TOKENS, 64, step=1, label="New tokens at most", elem_id="budget")
    seed = gr.Number(0, label="Seed", elem_id="seed")
    info = f"{REPEATS} times in turns with plain decoding, after the run"
    measure = gr.Checkbox(True, label="Measure the speed-up", info=info, elem_id="measure")
    controls = Form(
        pairing, drafter, ngram_min, ngram_max, pick, exit_layer, gamma, temperature, budget, seed, prompt, measure
    )
    return controls, Groups(note, ngram, exit_group)


def _run_view(run: gr.Button, stop: gr.Button) -> Screen:
    verdict = view("result_view.js", screens.empty(), elem_id="verdict")
    tokens = view("token_view.js", "", elem_id="tokens", elem_classes="sv-card")
    chart = gr.Plot(visible=False, show_label=False, elem_id="chart", elem_classes="sv-card", buttons=[])
    details = view("result_view.js", "", elem_id="details", elem_classes="sv-card")
    return Screen(tokens, verdict, details, chart, run, stop)


def _wire_settings(pairings: dict[str, Pairing], controls: Form, groups: Groups) -> None:
    """Each drafter brings its note, its settings and its defaults."""
    shown = [*groups, controls.ngram_min, controls.ngram_max, controls.exit_layer, controls.gamma]

    def choose(pairing_id: str, title: str) -> list[object]:
        return _drafter_updates(form.drafter_preset(pairings[pairing_id], title))

    def choose_pairing(pairing_id: str) -> list[object]:
        pairing = pairings[pairing_id]
        preset = _first_drafter(pairing)
        return [gr.Radio([p.title for p in pairing.drafters], value=preset.title), *_drafter_updates(preset)]

    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    controls.drafter.input(choose, [controls.pairing, controls.drafter], shown, **quiet)
    # Not `input`: a list that is only passed by keyboard sends that too, and would undo the choice of the drafter.
    controls.pairing.select(choose_pairing, controls.pairing, [controls.drafter, *shown], **quiet)


def _wire_run(explorer: Explorer, controls: Form, outputs: Screen) -> None:
    """Run: note the visitor's run at once, then do it. Stop only says so; the run ends by itself, within a step."""
    at_once = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    asked = outputs.run.click(explorer.arrive, None, list(outputs), **at_once)
    done = asked.then(
        explorer.run,
        list(controls),
        list(outputs),
        show_progress="hidden",
        concurrency_id=MODEL_EVENTS,
        concurrency_limit=VISITORS_AT_ONCE,
        api_visibility="private",
    )
    done.failure(explorer.failed, None, list(outputs), **at_once)
    said = outputs.stop.click(None, None, outputs.stop, js=STOPPING, api_visibility="private")
    said.then(explorer.stop, None, list(outputs), **at_once)


def _first_drafter(pairing: Pairing) -> DrafterPreset:
    """The first that drafts at all."""
    return next((preset for preset in pairing.drafters if preset.kind != "plain"), pairing.drafters[0])


def _default(preset: DrafterPreset, name: str) -> int:
    return int(preset.defaults.get(name, FALLBACK[name]))


def _drafter_updates(preset: DrafterPreset) -> list[object]:
    kinds = form.parts(preset)
    return [
        gr.Markdown(preset.note),
        gr.Column(visible="ngram" in kinds),
        gr.Column(visible="early-exit" in kinds),
        _default(preset, "ngram_min"),
        _default(preset, "ngram_max"),
        _default(preset, "exit_layer"),
        gr.Slider(value=_default(preset, "gamma"), interactive=preset.kind != "plain"),
    ]
