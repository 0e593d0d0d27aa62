"""The settings of a run: what each control is, where it starts, and what it does, said where it stands."""

from __future__ import annotations

from typing import NamedTuple

import gradio as gr

from specviz.models.devices import pick_device, pick_dtype
from specviz.presets import DrafterPreset
from specviz.recordings import Example
from specviz.ui import form
from specviz.ui.controls import Controls, filled
from specviz.ui.drafting import Groups
from specviz.ui.drafting_fields import drafting_fields, rule_fields
from specviz.ui.form import Form
from specviz.ui.handlers import REPEATS
from specviz.ui.javascript import view
from specviz.ui.own import OwnFields, own_fields


class Fields(NamedTuple):
    """The controls of the form, and what else stands among them."""

    form: Form
    groups: Groups
    about: gr.HTML
    own: OwnFields | None  # only where the user may bring models
    memory: gr.HTML


def settings(
    controls: Controls,
    example: Example,
    preset: DrafterPreset,
    prompt: gr.Textbox,
    pairing: gr.Dropdown,
    drafter: gr.Radio,
    note: gr.Markdown,
) -> Fields:
    """The second card of the left column, set as the example has it; the other four stand in the first."""
    first = filled(example, preset)
    models = controls.explorer.models
    usual = str(pick_dtype(models.dtype, pick_device(models.device))).removeprefix("torch.")
    drafter_fields = drafting_fields(first, preset, example.gamma)
    temperature = gr.Slider(
        0,
        form.MAX_TEMPERATURE,
        first.temperature,
        step=0.1,
        label="Temperature",
        info="0 is greedy: always the likeliest token. Above it tokens are drawn.",
        buttons=[],
        elem_id="heat",
    )
    max_new_tokens = gr.Slider(
        1,
        form.MAX_TOKENS,
        example.max_new_tokens,
        step=1,
        label="New tokens at most",
        buttons=[],
        elem_id="budget",
    )
    measure = gr.Checkbox(
        True,
        label="Race plain decoding",
        info=f"After the run, {REPEATS} times in turns: gives the speed-up, and where the time goes.",
        elem_id="measure",
    )
    rules = rule_fields(first, preset)
    with gr.Accordion("Sampling", open=False, elem_id="sampling"):
        seed = gr.Number(first.seed, label="Seed", info="The same seed draws the same tokens.", elem_id="seed")
        top_k = gr.Number(
            first.top_k, label="Top-k", info="Keep only the k likeliest tokens; 0 is off.", elem_id="top-k"
        )
        top_p = gr.Slider(
            0.05,
            1,
            first.top_p,
            step=0.05,
            label="Top-p",
            info="Keep the fewest tokens that have this much probability together; 1 is off.",
            buttons=[],
            elem_id="top-p",
        )
        min_p = gr.Slider(
            0,
            1,
            first.min_p,
            step=0.05,
            label="Min-p",
            info="Drop tokens with less than this share of the likeliest one's probability; 0 is off.",
            buttons=[],
            elem_id="min-p",
        )
        penalty = gr.Slider(
            form.MIN_PENALTY,
            form.MAX_PENALTY,
            first.penalty,
            step=0.05,
            label="Repetition penalty",
            info="Above 1, tokens that have occurred become less likely. Applied to drafter and target alike.",
            buttons=[],
            elem_id="penalty",
        )
    with gr.Accordion("Prompt format and stopping", open=False, elem_id="stopping"):
        template = gr.Radio(
            [("chat", form.CHAT), ("raw text", form.RAW)],
            value=form.CHAT,
            label="The prompt is",
            info="Chat wraps it in the model's template; raw text is continued as it stands.",
            elem_id="template",
        )
        stops = gr.Textbox(
            "",
            label="Stop strings",
            info=f"One per line, at most {form.MAX_STOPS}; \\n stands for a new line. The run ends where one appears.",
            lines=2,
            max_lines=4,
            elem_id="stops",
        )
    with gr.Accordion("Models and precision", open=False, elem_id="models"):
        first_pairing = next(iter(controls.pairings.values()))
        about = view("result_view.js", controls.about(first_pairing), elem_id="about-pairing", elem_classes="sv-about")
        own = own_fields() if controls.own_models else None
        precision = gr.Radio(
            [(f"{usual}: as the server runs", form.DEFAULT), ("float32: exact", form.EXACT)],
            value=form.DEFAULT,
            label="Number format",
            info="In 16-bit formats rounding can flip a near tie, so that greedy output parts from plain decoding.",
            elem_id="precision",
        )
    memory = view("memory_view.js", "", elem_id="memory")
    values = Form(
        prompt=prompt,
        drafter=drafter,
        **drafter_fields.values,
        **rules.values,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        penalty=penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stops=stops,
        template=template,
        pairing=pairing,
        precision=precision,
        measure=measure,
    )
    groups = Groups(note=note, **drafter_fields.groups, **rules.groups)
    return Fields(values, groups, about, own, memory)
