"""The tab that takes a pairing to production: each engine's command, and what it does otherwise than a run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gradio as gr

from specviz.drafter_settings import MOST_BRANCHES, MOST_NODES, TREES, Whole, asks_for_tree
from specviz.errors import UserError
from specviz.presets import DrafterPreset, Pairing
from specviz.serving import ENGINES, Launch, launches
from specviz.serving.deployment import BOUNDS, USUAL_BRANCHES, USUAL_NODES
from specviz.serving.plans import changed, of_preset
from specviz.ui.checks import number, whole
from specviz.ui.explore import AT_ONCE
from specviz.ui.form import MAX_GAMMA, MAX_TEMPERATURE
from specviz.ui.serving_cards import Card, card, looks
from specviz.ui.tables import note, problem

USUAL_GAMMA = 4  # where a preset names none
MOST_GPUS = 64
ABOUT = (
    "What the engines are told, so that they decode with this target, this drafter and these settings. Every option "
    "was looked up in the version that is named; what could not be found out is marked as unverified. The servers' "
    "commands were not run here; the script for transformers was, on small models."
)


class Settings(NamedTuple):
    """The controls of the left column, and their values."""

    pairing: Any
    drafter: Any
    gamma: Any
    tree: Any
    nodes: Any
    branches: Any
    rule: Any
    temperature: Any
    context: Any
    tensor_parallel: Any


def serving_tab(pairings: Mapping[str, Pairing]) -> None:
    """`pairings`: those that are offered, by id."""
    pairing = next(iter(pairings.values()))
    first = _settings(pairing, _first(pairing))
    found = {launch.engine: launch for launch in _launches(pairings, first)}
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            settings, shape, size = _controls(pairings, first)
        with gr.Column(elem_classes="sv-run", min_width=0):
            gr.HTML(note(ABOUT), apply_default_css=False)
            trouble = gr.HTML("", apply_default_css=False, visible=False, elem_id="launch-trouble")
            cards = [card(found[engine]) for engine in ENGINES]
    outputs = [trouble, *(component for each in cards for component in each)]

    def choose_pairing(id: str) -> list[Any]:
        chosen = pairings[id]
        preset = _first(chosen)
        titles = [each.title for each in chosen.drafters]
        return [gr.update(choices=titles, value=preset.title), *_brought(chosen, preset)]

    def choose_drafter(id: str, title: str) -> list[Any]:
        return _brought(pairings[id], _preset(pairings[id], title))

    def show(*values: Any) -> list[Any]:
        return list(answer(pairings, Settings(*values)))

    brought = [settings.gamma, settings.tree, settings.nodes, settings.branches, shape, size]
    again = {"fn": show, "inputs": list(settings), "outputs": outputs, **AT_ONCE}
    settings.pairing.change(choose_pairing, settings.pairing, [settings.drafter, *brought], **AT_ONCE).then(**again)
    settings.drafter.input(choose_drafter, [settings.pairing, settings.drafter], brought, **AT_ONCE).then(**again)
    settings.tree.input(lambda tree: gr.update(visible=tree), settings.tree, size, **AT_ONCE)
    gr.on([settings.gamma.release, settings.temperature.release, settings.tree.input, settings.rule.input], **again)
    numbers = settings.nodes, settings.branches, settings.context, settings.tensor_parallel
    gr.on([control.input for control in numbers], trigger_mode="always_last", **again)


def answer(pairings: Mapping[str, Pairing], settings: Settings) -> Iterator[Any]:
    """Updates of the problem, if there is one, and of every card; what is wrong leaves the cards as they are."""
    try:
        found = _launches(pairings, settings)
    except UserError as error:
        yield gr.update(value=problem(str(error)), visible=True)
        yield from (gr.skip() for _ in range(len(ENGINES) * len(Card._fields)))
        return
    yield gr.update(value="", visible=False)
    for launch in found:
        yield from (gr.update(**look) for look in looks(launch))


def _launches(pairings: Mapping[str, Pairing], asked: Settings) -> tuple[Launch, ...]:
    """Raises UserError for values out of bounds."""
    pairing = pairings[asked.pairing]
    preset = _preset(pairing, asked.drafter)
    shape: dict[str, Any] = {}
    if _branches_out(preset):
        shape["tree"] = bool(asked.tree)
        if asked.tree:
            shape["nodes"] = whole("The number of nodes", asked.nodes, 1, MOST_NODES)
            shape["branches"] = whole("The number of branches", asked.branches, 1, MOST_BRANCHES)
    plan = of_preset(pairing, preset, whole("The draft length", asked.gamma, 0, MAX_GAMMA), shape)
    context = BOUNDS["context"]
    assert isinstance(context, Whole)
    more = {
        "rule": asked.rule,
        "temperature": number("The temperature", asked.temperature, 0, MAX_TEMPERATURE),
        "context": whole("The context", asked.context, 0, context.most) or None,
        "tensor_parallel": whole("The number of GPUs", asked.tensor_parallel, 1, MOST_GPUS),
    }
    return launches(changed(plan, more))


def _first(pairing: Pairing) -> DrafterPreset:
    """The drafter that is chosen at first: one that drafts, if there is any."""
    return next((preset for preset in pairing.drafters if preset.kind != "plain"), pairing.drafters[0])


def _preset(pairing: Pairing, title: str) -> DrafterPreset:
    return next((preset for preset in pairing.drafters if preset.title == title), _first(pairing))


def _branches_out(preset: DrafterPreset) -> bool:
    """Whether the drafter can draft trees; of combinations, each part has a setting of its own, which stays."""
    return preset.kind in TREES


def _settings(pairing: Pairing, preset: DrafterPreset) -> Settings:
    """What the controls start from."""
    usual = preset.defaults
    return Settings(
        pairing.id,
        preset.title,
        usual.get("gamma", USUAL_GAMMA),
        asks_for_tree(usual),
        usual.get("nodes", USUAL_NODES),
        usual.get("branches", USUAL_BRANCHES),
        "token",
        0.0,
        0,
        1,
    )


def _brought(pairing: Pairing, preset: DrafterPreset) -> list[Any]:
    """What a drafter sets: gamma, tree, nodes, branches, and whether its shape, and a tree's size, can be chosen."""
    start = _settings(pairing, preset)
    values = (start.gamma, start.tree, start.nodes, start.branches)
    shown = (_branches_out(preset), start.tree)
    return [*(gr.update(value=value) for value in values), *(gr.update(visible=each) for each in shown)]


def _controls(pairings: Mapping[str, Pairing], first: Settings) -> tuple[Settings, gr.Column, gr.Row]:
    """The controls, the group that is shown for drafters of trees, and the one in it that is shown for trees."""
    preset = _preset(pairings[first.pairing], first.drafter)
    titles = [each.title for each in pairings[first.pairing].drafters]
    offered = [(each.title, id) for id, each in pairings.items()]
    pairing = gr.Dropdown(offered, value=first.pairing, label="Pairing", elem_id="launch-pairing")
    drafter = gr.Radio(titles, value=first.drafter, label="Drafter", elem_id="launch-drafter")
    gamma = gr.Slider(
        0, MAX_GAMMA, first.gamma, step=1, label="Draft length (gamma)", buttons=[], elem_id="launch-gamma"
    )
    with gr.Column(min_width=0, visible=_branches_out(preset)) as shape:
        tree = gr.Checkbox(first.tree, label="Draft a tree", elem_id="launch-tree")
        with gr.Row(visible=first.tree) as size:
            nodes = gr.Number(first.nodes, label="Nodes", precision=0, min_width=90, elem_id="launch-nodes")
            branches = gr.Number(first.branches, label="Branches", precision=0, min_width=90, elem_id="launch-branches")
    rule = gr.Radio(
        [("each token", "token"), ("block", "block")], value=first.rule, label="Tested by", elem_id="launch-rule"
    )
    temperature = gr.Slider(
        0,
        MAX_TEMPERATURE,
        first.temperature,
        step=0.1,
        label="Temperature",
        info="Goes into the request; above 0 it also decides how drafts are made and tested.",
        buttons=[],
        elem_id="launch-heat",
    )
    context = gr.Number(
        first.context,
        label="Context",
        info="Tokens of prompt and answer together; 0 leaves it to the engine.",
        precision=0,
        elem_id="launch-context",
    )
    tensor_parallel = gr.Number(
        first.tensor_parallel,
        label="GPUs",
        info="Over which each layer is split.",
        precision=0,
        elem_id="launch-gpus",
    )
    controls = pairing, drafter, gamma, tree, nodes, branches, rule, temperature, context, tensor_parallel
    return Settings(*controls), shape, size
