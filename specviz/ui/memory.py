"""The Memory tab: what a pair takes, by part, against this machine or another one; nothing is loaded for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gradio as gr
import torch

from specviz.drafters import usual_gamma
from specviz.errors import UserError
from specviz.figures import memory_parts
from specviz.figures.memory_parts import MemoryParts, MemoryPartsInfo
from specviz.memory import human
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.pack import packs
from specviz.models.placement import free_memory
from specviz.planning import drafts
from specviz.planning.configs import Known, known
from specviz.planning.options import KV_DTYPES, QUANTISATIONS
from specviz.planning.planner import Drafting, Parts, Plan, Spec, plan
from specviz.planning.room import room
from specviz.presets import DrafterPreset, Pairing
from specviz.ui import tables
from specviz.ui.chart import chart
from specviz.ui.controls import Controls, first_drafter
from specviz.ui.tables import note, problem, table

HERE, OTHER = "This machine", "Another amount"
# Sizes as their makers name them.
KNOWN_DEVICES = {
    "T4 · 16 GB": 16,
    "L4 or RTX 4090 · 24 GB": 24,
    "RTX 5090 · 32 GB": 32,
    "A100 or H100 · 80 GB": 80,
    "H200 · 141 GB": 141,
    "Jetson AGX Orin · 64 GB shared": 64,
    "DGX Spark · 128 GB shared": 128,
}
DTYPES = {"as this server runs": None, "16 bits": torch.bfloat16, "float32": torch.float32}
SAME = "as the weights"
MOST_CONTEXT, MOST_BATCH, MOST_GB = 1_000_000, 4_096, 100_000
LABELS = {"weights": "weights", "kv": "KV cache", "runtime": "libraries"}  # other parts go by their own names
AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
UPDATING: dict[str, Any] = {
    "show_progress": "hidden",
    "concurrency_id": "memory plan",
    "concurrency_limit": 2,
    "trigger_mode": "always_last",
    "api_visibility": "private",
}


class Asked(NamedTuple):
    """Values of the tab's controls, in their order; the page sends whatever it likes."""

    pairing: Any
    drafter: Any
    dtype: Any
    quantisation: Any
    kv_dtype: Any
    context: Any
    batch: Any
    gamma: Any
    caches: Any
    budget: Any
    gigabytes: Any


class Shown(NamedTuple):
    """What is made of them."""

    verdict: Any
    figure: Any
    parts: Any
    facts: Any


def memory_tab(controls: Controls) -> None:
    """Everything inside the tab."""
    pairings, device = controls.pairings, controls.explorer.models.device
    first = next(iter(pairings.values()))
    asked_first = opening(first)
    show = shower(pairings, device)
    opened = show(*asked_first)
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            fields = _fields(pairings, asked_first)
        with gr.Column(elem_classes="sv-run", min_width=0):
            verdict = gr.HTML(opened.verdict, apply_default_css=False, elem_id="memory-verdict")
            figure = chart(opened.figure, elem_id="memory-parts", definition=memory_parts.DEFINITION)
            parts = gr.HTML(opened.parts, apply_default_css=False, elem_id="memory-table", elem_classes="sv-card")
            facts = gr.HTML(opened.facts, apply_default_css=False, elem_id="memory-facts", elem_classes="sv-card")
    _wire(pairings, show, fields, Shown(verdict, figure, parts, facts))


def _wire(pairings: Mapping[str, Pairing], show: Callable[..., Shown], fields: Asked, shown: Shown) -> None:
    """A pairing brings its drafters, a drafter its draft; whatever is changed, the plan is made anew.

    Not by `change`, which a draft that was brought sends too, while the drafter is still the one before.
    """
    inputs, outputs = [*fields], [*shown]
    brought = fields.pairing.change(chooser(pairings), fields.pairing, [fields.drafter, fields.gamma], **AT_ONCE)
    brought.then(show, inputs, outputs, **UPDATING)
    chosen = [fields.pairing, fields.drafter]
    fields.drafter.input(gamma_chooser(pairings), chosen, fields.gamma, **AT_ONCE).then(
        show, inputs, outputs, **UPDATING
    )
    others = [getattr(fields, name) for name in Asked._fields if name not in ("pairing", "drafter")]
    gr.on([field.input for field in others], show, inputs, outputs, **UPDATING)
    fields.budget.change(typed, fields.budget, fields.gigabytes, **AT_ONCE)


def typed(budget: Any) -> Any:
    """The field for an amount, where that is what is asked for."""
    return gr.update(visible=budget == OTHER)


def _fields(pairings: Mapping[str, Pairing], first: Asked) -> Asked:
    preset_titles = [preset.title for preset in pairings[first.pairing].drafters]
    return Asked(
        pairing=gr.Dropdown(
            [(each.title, id) for id, each in pairings.items()],
            value=first.pairing,
            label="Pairing",
            elem_id="plan-pairing",
        ),
        drafter=gr.Dropdown(preset_titles, value=first.drafter, label="Drafter", elem_id="plan-drafter"),
        dtype=gr.Radio(list(DTYPES), value=first.dtype, label="Number format"),
        quantisation=gr.Radio(list(QUANTISATIONS), value=first.quantisation, label="Quantised weights"),
        kv_dtype=gr.Dropdown([SAME, *KV_DTYPES], value=first.kv_dtype, label="Format of the KV cache"),
        context=gr.Number(
            first.context,
            label="Context, in tokens",
            info="Prompt and answer.",
            precision=0,
            elem_id="plan-context",
        ),
        batch=gr.Number(
            first.batch,
            label="Batch",
            info="Sequences at a time.",
            precision=0,
            elem_id="plan-batch",
        ),
        gamma=gr.Number(
            first.gamma,
            label="Draft tokens",
            info="Gamma, or the nodes of a tree.",
            precision=0,
            elem_id="plan-gamma",
        ),
        caches=gr.Radio(list(CACHES), value=first.caches, label="Caches"),
        budget=gr.Dropdown([HERE, *KNOWN_DEVICES, OTHER], value=first.budget, label="Budget", elem_id="plan-budget"),
        gigabytes=gr.Number(first.gigabytes, label="GB", visible=False, elem_id="plan-gigabytes"),
    )


CACHES = {"as specviz keeps them": False, "as serving engines do: exact rows, windows capped": True}


def opening(pairing: Pairing) -> Asked:
    """How the controls stand at first."""
    preset = first_drafter(pairing)
    return Asked(
        pairing.id,
        preset.title,
        next(iter(DTYPES)),
        "none",
        SAME,
        2048,
        1,
        drafted(preset),
        next(iter(CACHES)),
        HERE,
        24,
    )


def drafted(preset: DrafterPreset) -> int:
    """Tokens of a draft as the preset has it."""
    gamma = preset.defaults.get("gamma", 0 if preset.kind == "plain" else usual_gamma(preset.kind))
    return max(int(gamma), drafts.nodes(preset))


def chooser(pairings: Mapping[str, Pairing]) -> Callable[[Any], list[Any]]:
    """The drafters of a pairing and what the first of them drafts."""

    def choose(id: Any) -> list[Any]:
        if id not in pairings:
            return [gr.skip(), gr.skip()]
        preset = first_drafter(pairings[id])
        titles = [each.title for each in pairings[id].drafters]
        return [gr.update(choices=titles, value=preset.title), drafted(preset)]

    return choose


def gamma_chooser(pairings: Mapping[str, Pairing]) -> Callable[[Any, Any], Any]:
    def choose(id: Any, title: Any) -> Any:
        preset = _preset(pairings, id, title)
        return gr.skip() if preset is None else drafted(preset)

    return choose


def shower(pairings: Mapping[str, Pairing], device: str) -> Callable[..., Shown]:
    """What the tab shows for the values of its controls; whatever is wrong with them becomes one sentence."""

    def show(*values: Any) -> Shown:
        try:
            return shown(*planned(Asked(*values), pairings, device))
        except UserError as error:
            reason = memory_parts.plot(MemoryPartsInfo((), None, "Nothing to show for these settings."))
            return Shown(problem(str(error)), reason, "", "")

    return show


def planned(asked: Asked, pairings: Mapping[str, Pairing], device: str) -> tuple[Plan, Known, Drafting]:
    """The plan; configurations are looked for on this machine only. Raises UserError for values out of bounds."""
    preset = _preset(pairings, asked.pairing, asked.drafter)
    if preset is None:
        raise UserError("There is no such pairing or drafter; choose one of the list.")
    context = _number(asked.context, "The context", 2, MOST_CONTEXT)
    batch = _number(asked.batch, "The batch", 1, MOST_BATCH)
    gamma = _number(asked.gamma, "The number of draft tokens", 0, 1024)
    target = known(pairings[asked.pairing].target, offline=True)
    drafting = drafts.of_preset(preset, target, offline=True)
    is_here, on = asked.budget == HERE, pick_device(device)
    available, counter = _budget(asked, on)
    on_cpu = is_here and on.type == "cpu"
    dtype = _among(DTYPES, asked.dtype, "number format") or (pick_dtype("auto", on) if is_here else torch.bfloat16)
    quantisation = _among({name: name for name in QUANTISATIONS}, asked.quantisation, "quantisation")
    spec = Spec(
        target.config,
        drafting,
        dtype.itemsize,
        quantisation=quantisation,
        kv_dtype_bytes=None if asked.kv_dtype == SAME else _among(KV_DTYPES, asked.kv_dtype, "cache format"),
        on_cpu=on_cpu,
        packed=on_cpu and quantisation == "none" and packs(on, dtype),
        windowed=_among(CACHES, asked.caches, "way to keep caches"),
    )
    return plan(spec, context, batch, gamma, available=available, counter=counter, limit=target.limit), target, drafting


def _budget(asked: Asked, on: torch.device) -> tuple[int, str]:
    if asked.budget == HERE:
        return sum(free_memory(on).values()), room(on).source
    if asked.budget in KNOWN_DEVICES:
        return KNOWN_DEVICES[asked.budget] * 10**9, "the device's size; its driver takes some of it"
    if asked.budget != OTHER:
        raise UserError("There is no such budget; choose one of the list.")
    size = asked.gigabytes
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= MOST_GB:
        raise UserError(f"The budget is no number of GB from 0 to {MOST_GB:,}; correct it.")
    return int(size * 10**9), "as you typed it"


def shown(made: Plan, target: Known, drafting: Drafting) -> Shown:
    """Verdict, chart and tables of a plan."""
    verdict = note(f"✓ {made.verdict}") if made.fits else problem(f"✗ {made.verdict}")
    columns = (("target", made.target), ("drafter", made.drafter), ("both", made.both))
    rows = [[LABELS.get(part, part), *(human(getattr(parts, part)) for _, parts in columns)] for part in Parts._fields]
    rows.append(["all", *(human(parts.total) for _, parts in columns)])
    ratio = "n/a" if made.kv_ratio is None else f"{made.kv_ratio:.2f}x"
    facts = [
        ("Target", f"{target.name}, {target.source}"),
        ("Drafter", drafting.name),
        ("KV cache per token", f"{made.kv_row_target:,} B target, {made.kv_row_drafter:,} B drafter"),
        ("Cache of both over the target's", ratio),
        ("Largest context at this batch", made.context_in_words),
        ("Largest batch at this context", made.batch_in_words),
        ("Budget", f"{human(made.available)}: {made.counter}"),
    ]
    remarks = "".join(map(note, (*made.notes, *made.hints)))
    return Shown(
        verdict,
        memory_parts.plot(figure_info(made)),
        table(["part", "target", "drafter", "both"], rows, caption="Memory by part, estimated"),
        tables.facts(facts) + remarks,
    )


def figure_info(made: Plan) -> MemoryPartsInfo:
    """The figure's values, in GB."""
    bars = tuple(
        MemoryParts(name, {LABELS.get(part, part): size / 1e9 for part, size in parts._asdict().items()})
        for name, parts in (("target", made.target), ("drafter", made.drafter), ("both", made.both))
    )
    return MemoryPartsInfo(bars, made.available / 1e9)


def _preset(pairings: Mapping[str, Pairing], id: Any, title: Any) -> DrafterPreset | None:
    pairing = pairings.get(id) if isinstance(id, str) else None
    return next((each for each in pairing.drafters if each.title == title), None) if pairing else None


def _number(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{what} is no number from {low:,} to {high:,}; correct it.")
    return int(value)


def _among(choices: Mapping[str, Any], value: Any, what: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"There is no such {what}; choose one of the list.")
    return choices[value]
