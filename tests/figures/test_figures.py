"""What holds for every figure."""

import importlib
import json
import pkgutil
import subprocess
import sys
from types import ModuleType
from typing import Any

import plotly.graph_objects as go
import pytest
from drafts import compared, drafted
from traces import step, trace

from specviz import figures
from specviz.figures import histogram, style, survival, time_share
from specviz.trace import Trace

MODULES = [importlib.import_module(f"specviz.figures.{found.name}") for found in pkgutil.iter_modules(figures.__path__)]
DRAWN = [histogram, survival, time_share]
TRACES = {
    "empty": trace(),
    "no draft": trace("", "", gamma=0),
    "one step": trace("aaaa"),
    "tree and cut": trace(step("rauraau", parents=(-1, -1, 0, 1, 1, 4, 2)), "", step("aacc", cut="stop_token")),
    "deep": trace("a" * 40, gamma=64),
    "long": drafted(8, steps=500, undrafted=20),
}
COLOURS = {"#0072B2", "#009E73", "#7e7e7e", "rgba(0,114,178,0.4)", "rgba(0,158,115,0.4)", "rgba(126,126,126,0.4)"}
COLOURS |= {"rgba(0,0,0,0)", "rgba(128,128,128,0.25)"}


def draw(module: ModuleType, run: Trace) -> go.Figure:
    return module.plot(module.info(compared(), run) if module is time_share else module.info(run))


def test_these_are_all_figures():
    assert {module for module in MODULES if hasattr(module, "info")} == set(DRAWN)


@pytest.mark.parametrize("module", DRAWN, ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", TRACES)
def test_every_figure_draws_every_trace(module: ModuleType, name: str):
    drawn = json.loads(draw(module, TRACES[name]).to_json())
    layout = drawn["layout"]
    assert layout["title"]["text"] == module.TITLE
    assert layout["height"] == 230 and "width" not in layout
    assert layout["xaxis"]["fixedrange"] and layout["yaxis"]["fixedrange"] and layout["dragmode"] is False
    assert {trace["type"] for trace in drawn["data"]} <= {"bar", "scatter"}  # both known to plotly.js 3.3
    assert set(colours(drawn)) <= COLOURS  # of no theme: mid-grey, tints, nothing opaque behind them
    assert all(trace.get("hovertext") or trace["hoverinfo"] == "skip" for trace in drawn["data"])


def colours(value: Any) -> list[str]:
    """All colours in a figure."""
    if isinstance(value, list):
        return [colour for item in value for colour in colours(item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key.endswith("color") and isinstance(item, str)]
    return own + [colour for item in value.values() for colour in colours(item)]


@pytest.mark.parametrize("module", [histogram, survival])
def test_without_a_draft_a_figure_says_so(module: ModuleType):
    def words(run: Trace) -> tuple[int, str]:
        drawn = draw(module, run)
        return len(drawn.data), drawn.layout.annotations[0].text

    assert words(trace()) == (0, "No verify pass yet.")
    assert words(trace("", gamma=4)) == (0, "Nothing was drafted in 1 pass.")
    assert words(trace("", "", gamma=0)) == (0, "Nothing was drafted in 2 passes.")


@pytest.mark.parametrize("colour", [style.BLUE, style.GREEN, style.GREY])
def test_lines_and_text_stand_out_on_light_and_on_dark(colour: str):
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    least = 3.6 if colour == style.GREY else 3  # grey is text where there is no page to colour it
    for background in ("#ffffff", "#fbfbf9", "#1c1f25", "#14161a"):
        low, high = sorted([luminance(colour), luminance(background)])
        assert (high + 0.05) / (low + 0.05) > least, background


@pytest.mark.parametrize(("last", "distance"), [(1, 1), (10, 1), (11, 2), (16, 2), (20, 2), (21, 4), (64, 8)])
def test_a_long_axis_names_only_some_columns(last: int, distance: int):
    figure = style.figure("")
    style.columns(figure, "position", 1, last)
    axis = figure.layout.xaxis
    assert (axis.tick0, axis.dtick, axis.range, axis.title.text) == (0, distance, (0.5, last + 0.5), "position")


def test_figures_and_replay_need_no_torch():
    names = ["specviz.metrics", "specviz.replay", *(module.__name__ for module in MODULES)]
    code = f"import {', '.join(names)}, sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
