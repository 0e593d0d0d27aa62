"""The controls of how drafts are made and tested: groups that are shown only for the drafters that have them."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr

from specviz.presets import DrafterPreset
from specviz.ui import form
from specviz.ui.drafting import groups
from specviz.ui.form import CHAIN, TREE, Form


class Made(NamedTuple):
    """Controls by their names in `Form`, and the groups that they stand in by their names in `Groups`."""

    values: dict[str, Any]
    groups: dict[str, Any]


def drafting_fields(first: Form, preset: DrafterPreset, gamma: int) -> Made:
    """What the drafter does, set as in `first`."""
    shown = groups(preset, first.shape)
    with _group(shown.ngram) as ngram:
        with gr.Row():
            ngram_min = gr.Number(first.ngram_min, label="Shortest match", min_width=90, elem_id="ngram-min")
            ngram_max = gr.Number(first.ngram_max, label="Longest match", min_width=90, elem_id="ngram-max")
        pick = gr.Radio(
            [("latest", "recent"), ("most frequent", "frequent")],
            value=first.pick,
            label="Of several matches, follow the",
            info="A match is an earlier place in the text with the same last tokens; the longest is looked for first.",
            elem_id="pick",
        )
    with _group(shown.exit) as exit_group:
        exit_layer = gr.Number(
            first.exit_layer,
            label="Exit after layer",
            info="Earlier drafts faster and guesses worse.",
            elem_id="exit-layer",
        )
    with _group(shown.shape) as shape_group:
        shape = gr.Radio(
            [CHAIN, TREE],
            value=first.shape,
            label="Draft shape",
            info="A tree tries several continuations in one verify pass; at most one of them is kept.",
            elem_id="shape",
        )
        with _group(shown.tree) as tree, gr.Row():
            nodes = gr.Number(min_width=90, elem_id="nodes", **_built(first.nodes))
            branches = gr.Number(min_width=90, elem_id="branches", **_built(first.branches))
            later_nodes = gr.Number(min_width=90, elem_id="later-nodes", **_built(first.later_nodes))
            later_branches = gr.Number(min_width=90, elem_id="later-branches", **_built(first.later_branches))
    gamma_slider = gr.Slider(
        0,
        form.MAX_GAMMA,
        gamma,
        step=1,
        label="Draft length (gamma)",
        info="Tokens proposed per verify pass, of a tree the depth. More can be accepted, and more are wasted.",
        buttons=[],
        elem_id="gamma",
    )
    with _group(shown.second) as second:
        second_gamma = gr.Slider(
            1,
            form.MAX_GAMMA,
            first.second_gamma,
            step=1,
            label="Draft length of the second drafter",
            info="It drafts where the first finds nothing; gamma is then the first one's.",
            buttons=[],
            elem_id="second-gamma",
        )
    values = {
        "gamma": gamma_slider,
        "ngram_min": ngram_min,
        "ngram_max": ngram_max,
        "pick": pick,
        "exit_layer": exit_layer,
        "shape": shape,
        "nodes": nodes,
        "branches": branches,
        "later_nodes": later_nodes,
        "later_branches": later_branches,
        "second_gamma": second_gamma,
    }
    return Made(values, {"ngram": ngram, "exit": exit_group, "shape": shape_group, "tree": tree, "second": second})


def rule_fields(first: Form, preset: DrafterPreset) -> Made:
    """What decides on the length of drafts, and on what is kept of them."""
    shown = groups(preset, first.shape)
    with gr.Accordion("Draft length and acceptance", open=False, elem_id="rules", **_built(shown.rules)) as rules:
        policy = gr.Radio(label="The draft length is", elem_id="policy", **_built(first.policy))
        confidence = _threshold("confidence", first.confidence)
        with _group(shown.later) as later:
            later_confidence = _threshold("later-confidence", first.later_confidence)
        rule = gr.Radio(label="Acceptance rule", elem_id="rule", **_built(first.rule))
    values = {"policy": policy, "confidence": confidence, "later_confidence": later_confidence, "rule": rule}
    return Made(values, {"rules": rules, "later": later})


def _threshold(elem_id: str, shown: dict[str, Any]) -> gr.Slider:
    info = "A draft ends after a token to which the drafter itself gives less."
    return gr.Slider(0, 1, step=0.05, info=info, buttons=[], elem_id=elem_id, **_built(shown))


def _group(shown: dict[str, Any]) -> gr.Column:
    return gr.Column(min_width=0, **_built(shown))


def _built(update: dict[str, Any]) -> dict[str, Any]:
    """An update of a control as what to build it with."""
    return {name: value for name, value in update.items() if name != "__type__"}
