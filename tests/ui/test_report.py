"""What a run came to, in words and figures, by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specviz.measure import Comparison, Divergence
from specviz.models.text import TokenText
from specviz.trace import Run, Step
from specviz.ui import report, wire
from specviz.ui.report import Record


def step(accepted: int, index: int = 0, cut: str | None = "length") -> Step:
    committed = tuple(range(accepted + 1))
    return Step(index, 5, accepted, accepted, (), (), None, committed, ("x",) * len(committed), cut, 0.1)


HEADER = Run(
    "tiny", "ngram", {"ngram_min": 1}, 4, {"temperature": 0.0}, 0, 64, (1, 2), "hi", True, "CPU", "bfloat16", 2, False
)


def compared(*ratios: float, divergence: Divergence | None = None) -> Comparison:
    return Comparison(3, tuple(ratios), (1.0,) * len(ratios), divergence is None, divergence)


def sentence(record: Record) -> str:
    return "".join(text for text, _ in report.verdict(record))


@pytest.mark.parametrize(
    ("ratios", "ending"),
    [
        ((1.3, 1.4, 1.5), ", 1.4× faster than plain decoding (1.3 to 1.5 over 3 repeats)"),
        ((0.5, 0.6, 0.7), ", yet 0.6×: slower than plain decoding (0.5 to 0.7 over 3 repeats)"),
        ((1.02, 1.03, 1.04), ", 1.03× faster than plain decoding (1.02 to 1.04 over 3 repeats)"),
        ((0.9, 1.2, 1.3), ", 1.2×: no clear difference from plain decoding (0.9 to 1.3 over 3 repeats)"),
        ((1.0, 1.0), ", 1.00×: no clear difference from plain decoding (1.00 to 1.00 over 2 repeats)"),
        ((0.04,), ", yet 0.04×: slower than plain decoding (0.04 to 0.04 over 1 repeat)"),
        ((), "; speed-up not measured"),
    ],
)
def test_the_verdict_says_faster_and_slower_alike(ratios, ending):
    record = Record(HEADER, [step(2)], compared(*ratios))
    assert sentence(record) == f"3.0 tokens per verify pass{ending}"


def test_slower_without_a_gain_in_tokens_is_no_surprise():
    record = Record(HEADER, [step(0)], compared(0.8))
    assert sentence(record).startswith("1.0 token per verify pass, 0.8×: slower than")


def test_the_verdict_of_a_stopped_run_counts_its_tokens():
    record = Record(HEADER, [step(2, cut=None)], stopped=True)
    assert sentence(record) == "Stopped after 3 tokens, 3.0 per verify pass"
    assert sentence(Record(HEADER, stopped=True)) == "Stopped after 0 tokens"


def test_equality_names_the_first_divergence_its_margin_and_a_near_tie():
    text = TokenText(None)
    tie = Record(HEADER, [step(2)], compared(1.0, divergence=Divergence(7, 11, 12, 0.0312, True)))
    assert report.equality(tie, text) == (
        "Output: parts from plain decoding at token 8: plain has “⟨11⟩”, this run “⟨12⟩”; "
        "the target's logits differ by 0.031, a near tie that rounding in bfloat16 decides.",
        "",
    )
    real = Record(HEADER, [step(2)], compared(1.0, divergence=Divergence(7, 11, 12, -2.0, False)))
    assert report.equality(real, text)[0].endswith("differ by 2, more than rounding in bfloat16 explains.")
    assert report.equality(real, text)[1] == "bad"
    short = Record(HEADER, [step(2)], compared(1.0, divergence=Divergence(7, None, 12, None, False)))
    assert "plain has the end of the text, this run “⟨12⟩”." in report.equality(short, text)[0]
    same = Record(HEADER, [step(2)], compared(1.0))
    assert report.equality(same, text) == ("Output: identical to plain decoding, all 3 tokens.", "good")
    unknown = Record(HEADER, [step(2)])
    assert report.equality(unknown, text)[0].endswith("not compared with plain decoding in this run.")
    sampled = Record(replace(HEADER, sampler={"temperature": 0.7}), [step(2)], compared(1.0))
    assert "lossless by the acceptance rule" in report.equality(sampled, text)[0]


def test_undefined_figures_are_not_available_rather_than_zero():
    values = [tile["value"] for tile in report.tiles(Record(HEADER, [step(0)]))]
    assert values[:2] == ["1.00", "n/a"]
    assert [tile["value"] for tile in report.tiles(None)] == ["–"] * 4


def test_nothing_that_leaves_the_server_can_open_a_tag():
    hostile = replace(HEADER, target="<b>", prompt_text="<script>")
    assert "<" not in wire.head("id", hostile)
    assert "<" not in wire.line(replace(step(0), text=("<img src=x>",)))
