"""Every figure's values, and that it draws."""

import importlib
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from traces import step, trace

from specviz import figures
from specviz.figures import histogram, style

MODULES = [importlib.import_module(f"specviz.figures.{found.name}") for found in pkgutil.iter_modules(figures.__path__)]
OF_A_TRACE = [module for module in MODULES if hasattr(module, "info")]
TRACES = {
    "empty": trace(),
    "no draft": trace("", "", gamma=0),
    "one step": trace("aaaa"),
    "tree and cut": trace(step("rauraau", parents=(-1, -1, 0, 1, 1, 4, 2)), "", step("aacc", cut="stop_token")),
    "deep": trace("a" * 40, gamma=64),
}


@pytest.mark.parametrize("module", OF_A_TRACE, ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", TRACES)
def test_every_figure_draws_every_trace(module: ModuleType, name: str):
    drawn = json.loads(module.plot(module.info(TRACES[name])).to_json())
    layout = drawn["layout"]
    assert layout["title"]["text"] and layout["height"] == style.HEIGHT
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert {bar["type"] for bar in drawn["data"]} <= {"bar", "scatter", "heatmap"}  # all known to plotly.js 3.3
    if name == "empty":
        assert drawn["data"] == []
        assert layout["annotations"][0]["text"].endswith(".")


def test_histogram_values():
    info = histogram.info(trace("aaaa", "aaru", "ruuu", ""))
    assert info == histogram.HistogramInfo((1, 0, 1, 0, 1), drafted_steps=3, undrafted_steps=1, gamma=4, mean=2.0)
    assert histogram.info(trace(gamma=1)) == histogram.HistogramInfo((0, 0), 0, 0, 1, None)


def test_histogram_bars_and_words():
    drawn = json.loads(histogram.plot(histogram.info(trace("aaaa", "aaru", "ruuu", "ruuu", ""))).to_json())
    (bars,), layout = drawn["data"], drawn["layout"]
    assert (bars["x"], bars["y"], bars["text"]) == ([0, 1, 2, 3, 4], [2, 0, 1, 0, 1], ["2", "0", "1", "0", "1"])
    assert bars["customdata"] == ["50.0%", "0.0%", "25.0%", "0.0%", "25.0%"]
    assert bars["marker"]["color"] == "#0072B2"
    assert layout["xaxis"]["title"]["text"] == "accepted draft tokens"
    assert layout["yaxis"]["title"]["text"] == "verify passes"
    words = "mean 1.50 over 4 verify passes with a draft<br>1 without a draft left out"
    assert layout["title"]["subtitle"]["text"] == words


def test_histogram_says_why_it_is_empty():
    plain = histogram.plot(histogram.info(trace("", gamma=4)))
    assert plain.layout.annotations[0].text == "None of 1 verify pass had a draft."
    assert plain.layout.title.text == histogram.TITLE
    nothing = histogram.plot(histogram.info(trace()))
    assert nothing.layout.annotations[0].text == "No verify pass yet."


def test_text_is_readable_on_light_and_on_dark():
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for background in ("#ffffff", "#fbfbf9", "#1f2937", "#1c1f25", "#14161a"):
        low, high = sorted([luminance(style.GREY), luminance(background)])
        assert (high + 0.05) / (low + 0.05) > 3.6, background


def test_numbers_figures_and_replay_need_no_torch():
    names = ["specviz.metrics", "specviz.replay", *(module.__name__ for module in MODULES)]
    code = f"import {', '.join(names)}, sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_long_histogram_labels_only_what_there_is():
    (bars,) = histogram.plot(histogram.info(trace("a" * 40, gamma=64))).data
    assert len(bars.x) == 65 and [text for text in bars.text if text] == ["1"]
