"""What a run came to, in words and figures, by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specviz.measure import Comparison, Divergence
from specviz.models.text import TokenText
from specviz.trace import Run, Step
from specviz.ui import report, screens, wire
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
        ((1.3, 1.4, 1.5), ", 1.40× faster than plain decoding (1.30 to 1.50 over 3 repeats)"),
        ((0.5, 0.6, 0.7), ", yet 0.60×: slower than plain decoding (0.50 to 0.70 over 3 repeats)"),
        ((0.91, 0.95, 0.98), ", yet 0.95×: slower than plain decoding (0.91 to 0.98 over 3 repeats)"),
        ((1.02, 1.03, 1.04), ", 1.03× faster than plain decoding (1.02 to 1.04 over 3 repeats)"),
        ((1.004, 1.03, 1.04), ", 1.03×: no clear difference from plain decoding (1.00 to 1.04 over 3 repeats)"),
        ((0.9, 1.2, 1.3), ", 1.20×: no clear difference from plain decoding (0.90 to 1.30 over 3 repeats)"),
        ((1.0, 1.0, 1.0), ", 1.00×: no clear difference from plain decoding (1.00 to 1.00 over 3 repeats)"),
        ((1.7, 2, 3), "; the machine was too busy to tell the speed-up (1.70 to 3.00 over 3 repeats); run again"),
        ((1.5, 1.6), "; speed-up not measured"),
        ((), "; speed-up not measured"),
    ],
)
def test_the_verdict_says_faster_and_slower_alike(ratios, ending):
    record = Record(HEADER, [step(2)], compared(*ratios))
    assert sentence(record) == f"3.0 tokens per verify pass{ending}"
    tones = {tone for _, tone in report.verdict(record)}
    assert ("faster" in tones, "slower" in tones) == ("faster" in ending, "slower" in ending)


@pytest.mark.parametrize(
    ("ratios", "ending"),
    [
        (None, "; measuring was stopped before the first repeat was complete"),
        ((), "; measuring was stopped before the first repeat was complete"),
        ((1.9,), "; measuring was stopped after 1 of 3 repeats"),
    ],
)
def test_too_few_repeats_prove_nothing(ratios, ending):
    comparison = None if ratios is None else compared(*ratios)
    record = Record(HEADER, [step(2)], comparison, stopped=True, done=True)
    assert sentence(record) == f"3.0 tokens per verify pass{ending}"
    assert {tone for _, tone in report.verdict(record)} == {"", "muted"}
    assert report.tiles(record)[-1]["value"] == "n/a"


def test_the_speed_up_is_open_until_measuring_has_ended():
    record = Record(HEADER, [step(2)], compared(1.9, 1.9))
    assert report.tiles(record)[-1] | {"definition": ""} == {"value": "–", "name": "speed-up", "definition": ""}
    record.comparison, record.done = compared(1.9, 1.8, 1.7), True
    assert report.tiles(record)[-1]["value"] == "1.80×"
    assert report.tiles(record)[-1]["name"] == "speed-up (plain: 1 tokens/s)"
    record.comparison = compared(1.9, 1.8, 1.0)
    assert report.tiles(record)[-1]["value"] == "n/a"  # too noisy to tell


def test_a_result_says_what_it_belongs_to():
    prompt = "Repeat this text\nand correct its spelling, " + "word by word " * 9
    record = Record(replace(HEADER, prompt_text=prompt), [step(2)], drafter="N-gram lookup")
    shown = dict(report.lines(record))
    assert shown["Prompt"] == "“Repeat this text and correct its spelling, word by word word…” (2 tokens)"
    assert shown["Run"] == (
        "tiny · N-gram lookup (ngram min 1) · gamma 4 · temperature 0 · seed 0 · CPU · 2 threads · bfloat16"
    )
    plain = Record(replace(HEADER, drafter="plain", drafter_settings={}), [step(0)], drafter="No drafter")
    assert dict(report.lines(plain))["Run"].startswith("tiny · No drafter · temperature 0")


def test_without_a_draft_there_is_no_chart():
    assert screens.chart(Record(HEADER, [step(0)])).visible is False


def test_slower_without_a_gain_in_tokens_is_no_surprise():
    record = Record(HEADER, [step(0)], compared(0.8, 0.8, 0.8))
    assert sentence(record).startswith("1.0 token per verify pass, 0.80×: slower than")


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
    for unknown in (None, replace(compared(), identical=None)):
        assert report.equality(Record(HEADER, [step(2)], unknown), text)[0] == (
            "Output: lossless by the acceptance rule, up to rounding in bfloat16; "
            "not compared with plain decoding in this run."
        )
    exact = Record(replace(HEADER, dtype="float32"), [step(2)])
    assert "rounding" not in report.equality(exact, text)[0]
    sampled = Record(replace(HEADER, sampler={"temperature": 0.7}), [step(2)], compared(1.0))
    assert "lossless by the acceptance rule, up to rounding in bfloat16. Sampled" in report.equality(sampled, text)[0]


def test_undefined_figures_are_not_available_rather_than_zero():
    values = [tile["value"] for tile in report.tiles(Record(HEADER, [step(0)]))]
    assert values[:2] == ["1.00", "n/a"]
    assert [tile["value"] for tile in report.tiles(None)] == ["–"] * 4


def test_nothing_that_leaves_the_server_can_open_a_tag():
    hostile = replace(HEADER, target="<b>", prompt_text="<script>")
    assert "<" not in wire.head("id", hostile)
    assert "<" not in wire.line(replace(step(0), text=("<img src=x>",)))
