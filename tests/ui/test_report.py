"""What a run came to, in words and figures, by value."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specviz.comparison import Comparison, Divergence, Lap, Phases
from specviz.memory import Budget
from specviz.models.text import TokenText
from specviz.trace import Node, Run, Step
from specviz.ui import facts, race, report, screens
from specviz.ui.report import Record


def step(accepted: int, index: int = 0, cut: str | None = "length") -> Step:
    committed = tuple(range(accepted + 1))
    return Step(index, 5, accepted, accepted, (), (), None, committed, ("x",) * len(committed), cut, 0.1)


SAMPLER = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "logit_bias": {}}
HEADER = Run("tiny", "ngram", {"ngram_min": 1}, 4, SAMPLER, 0, 64, (1, 2), "hi", True, "CPU", "bfloat16", 2, False)


def lap(seconds: float) -> Lap:
    """Three tokens in three steps."""
    return Lap((seconds / 3, 2 * seconds / 3, seconds), (("a",), ("b",), ("c",)))


def compared(*ratios: float, divergence: Divergence | None = None, phases: Phases | None = None) -> Comparison:
    plain, fast = tuple(lap(3 * ratio) for ratio in ratios), tuple(lap(3.0) for _ in ratios)
    return Comparison(3, plain, fast, divergence is None, divergence, phases)


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
    assert report.tiles(record)[-1] == {"value": "–", "name": "speed-up", "definition": facts.SPEED}
    record.comparison, record.done = compared(1.9, 1.8, 1.7), True
    assert report.tiles(record)[-1]["value"] == "1.80×"
    assert report.tiles(record)[-1]["note"] == "plain: 1 tokens/s"
    record.comparison = compared(1.9, 1.8, 1.0)
    assert report.tiles(record)[-1]["value"] == "n/a"  # too noisy to tell


def test_a_result_says_what_it_belongs_to():
    prompt = "Repeat this text\nand correct its spelling, " + "word by word " * 9
    record = Record(replace(HEADER, prompt_text=prompt), [step(2)], drafter="N-gram lookup")
    shown = dict(facts.lines(record.trace, record.drafter))
    assert shown["Prompt"] == "“Repeat this text and correct its spelling, word by word word…” (2 tokens)"
    assert shown["Run"] == (
        "tiny · N-gram lookup (ngram min 1) · gamma 4 · temperature 0 · seed 0 · CPU · 2 threads · bfloat16"
    )
    plain = replace(HEADER, drafter="plain", drafter_settings={}, sampler=SAMPLER | {"temperature": 0.7, "top_p": 0.9})
    assert facts.facts(plain, "No drafter") == (
        "tiny · No drafter · temperature 0.7 · top-p 0.9 · seed 0 · CPU · 2 threads · bfloat16"
    )
    dated = replace(HEADER, date="2026-11-05T10:00:00+00:00")
    assert (
        facts.source(dated, "N-gram lookup")
        == "N-gram lookup · gamma 4 · tiny · CPU · 2 threads · bfloat16 · 5 Nov 2026"
    )
    talk = replace(HEADER, prompt_text="User: first\n\nAssistant: yes\n\nUser: second")
    assert dict(facts.lines(Record(talk, [step(2)]).trace, ""))["Prompt"].startswith("“second” (2 tokens")


def test_what_ended_a_run_early_is_said():
    record = Record(HEADER, [step(2, cut=None)], stopped=True)
    assert ["Ended", "stopped by you after 3 tokens"] in json.loads(screens.details(record))["lines"]
    record.out_of_time = True
    assert ["Ended", "ended by the time limit after 3 tokens"] in json.loads(screens.details(record))["lines"]
    assert sentence(record) == "Out of time after 3 tokens, 3.0 per verify pass"


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
    assert report.equality(tie, text) == {
        "tone": "near",
        "label": "differs at a near tie",
        "text": "from token 8, where plain decoding has “⟨11⟩” and this run “⟨12⟩”; the target's logits differ by "
        "0.031, which rounding in bfloat16 decides. The number format float32 is exact.",
    }
    real = report.equality(
        Record(HEADER, [step(2)], compared(1.0, divergence=Divergence(7, 11, 12, -2.0, False))), text
    )
    assert (real["tone"], real["label"]) == ("bad", "differs from plain decoding")
    assert real["text"].endswith("differ by 2, more than rounding in bfloat16 explains.")
    short = Record(HEADER, [step(2)], compared(1.0, divergence=Divergence(7, None, 12, None, False)))
    assert "plain decoding has the end of the text and this run “⟨12⟩”." in report.equality(short, text)["text"]
    assert report.equality(Record(HEADER, [step(2)], compared(1.0)), text) == {
        "tone": "good",
        "label": "identical to plain decoding",
        "text": "all 3 tokens are the same.",
    }


def test_without_a_comparison_the_output_is_called_lossless_and_no_more():
    text = TokenText(None)
    for unknown in (None, replace(compared(), identical=None)):
        assert report.equality(Record(HEADER, [step(2)], unknown), text) == {
            "tone": "",
            "label": "lossless",
            "text": "by the acceptance rule, up to rounding in bfloat16; not compared with plain decoding in this run.",
        }
    exact = Record(replace(HEADER, dtype="float32"), [step(2)])
    assert "rounding" not in report.equality(exact, text)["text"]
    sampled = Record(replace(HEADER, sampler=SAMPLER | {"temperature": 0.7}), [step(2)], compared(1.0))
    assert "up to rounding in bfloat16; sampled runs differ by chance" in report.equality(sampled, text)["text"]
    assert report.equality(Record(replace(HEADER, drafter="plain"), [step(0)]), text) is None


def test_a_lossy_run_is_called_lossy_everywhere_whatever_came_of_it():
    typical = replace(HEADER, rule="typical", lossless=False, gamma_policy="adaptive")
    why = "typical acceptance keeps what the target finds not unlikely, so the output need not be its own."
    why += " At temperature 0 it keeps just what greedy decoding would."
    parting = compared(1.0, divergence=Divergence(7, 11, 12, -2.0, False))
    differs = " Here it differs from token 8, where plain decoding has “⟨11⟩” and this run “⟨12⟩”."
    same = " Here all 3 tokens are plain decoding's."
    for comparison, ending in ((None, ""), (compared(1.0), same), (parting, differs)):
        badge = report.equality(Record(typical, [step(2)], comparison), TokenText(None))
        assert badge == {"tone": "lossy", "label": "lossy", "text": why + ending}
    shown = json.loads(race.lanes(Record(typical, [step(2)], compared(1.9, 1.5, 1.6), drafter="Medusa")))
    assert shown["lossy"] is True and shown["lanes"][1]["name"] == "Medusa (lossy)"
    assert "gamma at most 4, adaptive · typical acceptance, lossy" in facts.source(typical, "Medusa")
    assert "typical acceptance, lossy" in facts.facts(typical)
    drawn = replace(typical, sampler=SAMPLER | {"temperature": 0.7})
    assert "At temperature 0" not in report.equality(Record(drawn, [step(2)]), TokenText(None))["text"]


def test_block_verification_is_named_and_lossless():
    block = replace(HEADER, rule="block", dtype="float32")
    badge = report.equality(Record(block, [step(2)]), TokenText(None))
    assert (badge["label"], badge["text"]) == (
        "lossless",
        "by block verification; not compared with plain decoding in this run.",
    )
    assert "gamma 4 · block verification" in facts.source(block, "Early exit")


def test_the_draft_lengths_policy_and_who_drafted_are_reported():
    node = Node(1, "x", -1, 1, "accepted", *[None] * 9)
    steps = [replace(step(2), gamma_asked=4, gamma_used=1, nodes=(replace(node, by=by),)) for by in ("ngram", "eagle")]
    settings = {"tree": True, "ngram_min": 2}
    run = replace(HEADER, gamma_policy="adaptive", drafter="ngram+eagle", drafter_settings=settings)
    shown = dict(facts.lines(Record(run, steps).trace, "Both"))
    assert shown["Draft length"] == "adaptive, at most 4; on average 4.0 asked for and 1.0 drafted"
    assert shown["Drafted by"] == "ngram: 1 token, eagle: 1 token"
    assert "Both (tree, ngram min 2) · gamma at most 4, adaptive · trees of at most 8 nodes · " in shown["Run"]


@pytest.mark.parametrize(
    ("drafter", "settings", "said"),
    [
        ("eagle", {"tree": True, "nodes": 8}, "trees of at most 8 nodes, depth 4"),
        ("eagle", {"tree": False, "nodes": 8}, "gamma 4"),
        ("ngram+eagle", {"second_gamma": 2, "source": "x"}, "gamma 4, else 2"),
        (
            "ngram+eagle",
            {"eagle.tree": True, "eagle.nodes": 6, "second_gamma": 2},
            "gamma 4, else 2 · trees of at most 6 nodes",
        ),
    ],
)
def test_a_run_says_that_it_drafts_trees_and_every_gamma(drafter, settings, said):
    run = replace(HEADER, drafter=drafter, drafter_settings=settings)
    assert facts.source(run, "It").startswith(f"It · {said} · tiny")


def test_what_an_acceptance_rate_is_tells_of_trees():
    assert "siblings compete" in dict(facts.definitions())["acceptance rate"]


PHASES = Phases(0.01, 0.02, 0.001, 0.03, 0.001, 0.25, 1.2, 4.0, 2.4)  # pays below (2.4 - 1.2) / 4 = 0.3


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        (
            PHASES,
            "A draft token costs 0.25 of a plain step; here it pays up to 0.30. "
            "Acceptance and costs promise 1.09×, measured is 1.10×.",
        ),
        (replace(PHASES, cost_ratio=0.001), "A draft token costs next to nothing; here it pays up to 0.30."),
        (replace(PHASES, cost_ratio=0.3), "A draft token costs 0.30 of a plain step; here it would pay up to 0.30."),
        (
            replace(PHASES, acceptance_length=1.1),
            "Too little is accepted here for any drafter to pay, even one that cost nothing.",
        ),
        (replace(PHASES, cost_ratio=None), ""),
        (None, ""),
    ],
)
def test_why_it_pays_or_does_not(phases, why):
    assert report.reason(Record(HEADER, [step(2)], compared(1.1, 1.1, 1.1, phases=phases))).startswith(why)
    if not why:
        assert report.reason(Record(HEADER, [step(2)], compared(1.1, 1.1, 1.1, phases=phases))) == ""


def test_the_race_replays_the_repeat_nearest_the_median():
    record = Record(HEADER, [step(2)], compared(1.9, 1.5, 1.6), drafter="N-gram lookup")
    shown = json.loads(race.lanes(record))
    plain, fast = shown["lanes"]
    assert (plain["name"], plain["kind"], fast["name"], fast["kind"]) == (
        "plain decoding",
        "plain",
        "N-gram lookup",
        "speculative",
    )
    assert plain["steps"] == [[1.6, ["a"]], [3.2, ["b"]], [4.8, ["c"]]]
    assert plain["tokens_per_s"] == pytest.approx(0.625)
    assert fast["steps"][-1] == [3.0, ["c"]]
    assert shown["note"].startswith("the median of 3 repeats") and not shown["sampled"] and not shown["recorded"]
    assert shown["is_clear"] is True
    assert race.lanes(Record(HEADER, [step(2)])) == "" == race.lanes(Record(HEADER, [step(2)], compared(1.5)))


def test_the_race_claims_no_more_than_the_verdict():
    even = Record(HEADER, [step(2)], compared(0.99, 1.01, 1.2))
    assert "no clear difference" in sentence(even) and json.loads(race.lanes(even))["is_clear"] is False
    noisy = Record(HEADER, [step(2)], compared(1.0, 2.0, 3.0))
    assert "too busy" in sentence(noisy) and json.loads(race.lanes(noisy))["is_clear"] is False
    shown = screens.figures(noisy)["time_share"]
    assert shown == screens.figures(Record(HEADER, [step(2)]))["time_share"]


def test_the_memory_bar_adds_up():
    bar = json.loads(screens.budget(Budget(270_000_000, 0, 18_000_000, 2_000_000, 54_000_000, 20_000_000_000)))
    assert [(part["name"], part["text"]) for part in bar["parts"]] == [
        ("target", "270 MB"),
        ("drafter", "0 MB"),
        ("KV cache", "18 MB"),
        ("rest", "56 MB"),
    ]
    assert bar["available"] == {"bytes": 20_000_000_000, "text": "20.00 GB"} and bar["fits"] is True
    assert json.loads(screens.budget(Budget(270, 0, 18, 2, 54, 343)))["fits"] is False


def test_undefined_figures_are_not_available_rather_than_zero():
    values = [tile["value"] for tile in report.tiles(Record(HEADER, [step(0)]))]
    assert values[:2] == ["1.00", "n/a"]
    assert [tile["value"] for tile in report.tiles(None)] == ["–"] * 4
