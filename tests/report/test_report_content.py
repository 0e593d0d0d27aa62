"""What reports say, by value."""

from dataclasses import replace

import pytest
from reported import EAGLE, KNOWN, LONGER, NGRAM, PLAIN, results
from workloads.suites import answer, result

from specviz.errors import UserError
from specviz.report.blocks import Cell, Facts, Paragraph, Points, Report, Table
from specviz.report.content import report, verdict
from specviz.report.drift_tables import Against
from specviz.workloads.summary import rows


def table(made: Report, caption: str) -> Table:
    tables = (block for section in made.sections for block in section.blocks if isinstance(block, Table))
    return next(each for each in tables if each.caption.startswith(caption))


def texts(found: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in found.rows]


def section(made: Report, title: str) -> list:
    [found] = [section for section in made.sections if section.title == title]
    return list(found.blocks)


def of(*speedups: float | None, arm=EAGLE) -> list:
    return [result(arm, str(i), speedup, accepted=(1, 2)) for i, speedup in enumerate(speedups)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            of(1.5, 1.5, 1.5, 1.5, 1.5),
            "Faster: eagle, gamma 2, decoded at 1.50x the speed of plain decoding (95 % interval 1.50 to 1.50, "
            "quartiles of the prompts 1.50 to 1.50), with an acceptance length of 2.50 (2.50 to 2.50).",
        ),
        (
            of(0.5, 0.75),
            "Too few prompts to tell: eagle, gamma 2, decoded at 0.62x the speed of plain decoding (quartiles of the "
            "prompts 0.50 to 0.75), with an acceptance length of 2.50.",
        ),
        (
            of(0.5, 0.5, 0.5, 0.5, 0.5),
            "Slower: eagle, gamma 2, decoded at 0.50x the speed of plain decoding (95 % interval 0.50 to 0.50, "
            "quartiles of the prompts 0.50 to 0.50), with an acceptance length of 2.50 (2.50 to 2.50).",
        ),
        (
            of(0.5, 2.0) + of(0.5, 1.0, arm=NGRAM),
            "Too few prompts to tell: eagle, gamma 2, the best here, decoded at 1.25x the speed of plain decoding "
            "(quartiles of the prompts 0.50 to 2.00), with an acceptance length of 2.50.",
        ),
        (
            # A median of 0.90 takes three of five drawn prompts, one time in 17: enough to leave it open.
            of(0.9, 1.1, 1.1, 1.1, 1.1),
            "No clear difference: eagle, gamma 2, decoded at 1.10x the speed of plain decoding (95 % interval 0.90 to "
            "1.10, quartiles of the prompts 1.10 to 1.10), with an acceptance length of 2.50 (2.50 to 2.50).",
        ),
        (of(None), "Nothing was timed. Most was accepted of eagle, gamma 2: an acceptance length of 2.50."),
        (
            of(1.25) + of(9.0, arm=PLAIN),
            "Too few prompts to tell: eagle, gamma 2, decoded at 1.25x the speed of plain decoding (quartiles of the "
            "prompts 1.25 to 1.25), with an acceptance length of 2.50.",
        ),
        (of(1.0, arm=PLAIN), "Only plain decoding was measured, against itself."),
    ],
)
def test_the_verdict_is_about_the_best_way_of_drafting(found, said):
    assert verdict(rows(found)) == said


def test_every_way_of_drafting_with_its_figures():
    made = report(KNOWN, results())
    assert made.title == "Speculative decoding with Tiny: own"
    assert made.setting == "Tiny in float32 on cpu, 1 thread, 12 prompts of 2 workloads, 2026-01-01."
    speed, accepted = table(made, "Time per token"), table(made, "Acceptance")
    assert texts(speed)[2] == [
        *("eagle", "gamma 2", "12", "1.55x", "1.10-2.00", "1.10-2.00", "1.53x"),
        *("0.100", "1.20", "2.00", "1.50x", "1.03", "4.0%", "faster"),
    ]
    # Of 12 prompts drawn, 2 to 10 are of code in all but the tails: (2 * 2.5 + 10 * 1.5) / 12 = 1.67, and 2.33.
    assert texts(accepted)[0] == [
        *("ngram", "gamma 2", "12", "2.00", "1.67-2.33", "2.00", "1.67-2.33", "2.00", "2.00", "50.0%"),
        *("12 of 12", "0"),
    ]
    assert [row[-1] for row in texts(speed)] == ["no clear difference", "no clear difference", "faster"]
    assert speed.chart is not None and [row.said for row in speed.chart.rows] == ["1.02x", "0.95x", "1.55x"]
    assert len(speed.head) == len(speed.rows[0]) and len(accepted.head) == len(accepted.rows[0])
    names = [name for name, _ in (*speed.definitions, *accepted.definitions)]
    assert set(speed.head + accepted.head) - {*names, "drafter", "setting", "prompts"} == {"verdict"}


def test_workloads_show_each_drafter_at_its_best_setting():
    made = report(KNOWN, results())
    speed, accepted = table(made, "Speed-up by workload"), table(made, "Acceptance length by workload")
    assert speed.head == ("workload", "ngram, gamma 2", "eagle, gamma 2")
    assert texts(speed) == [
        ["all prompts", "≈ 1.02x (0.80-1.25)", "▲ 1.55x (1.10-2.00)"],
        ["code", "▲ 1.25x (1.25-1.25)", "▲ 2.00x (2.00-2.00)"],
        ["story", "▼ 0.80x (0.80-0.80)", "▲ 1.10x (1.10-1.10)"],
    ]
    assert [cell.tint for cell in speed.rows[2]] == [
        None,
        pytest.approx(-0.3219, abs=1e-4),
        pytest.approx(0.1375, abs=1e-4),
    ]
    assert speed.rows[1][2].tint == 1.0  # twice as fast is the darkest
    assert accepted.rows[1] == (Cell("code"), Cell("2.50 (2.50-2.50)", 1.0), Cell("2.50 (2.50-2.50)", 1.0))


def test_survival_is_of_the_longest_drafts_and_of_every_workload():
    deeper = [result(LONGER, str(i), answers=(answer(4, 1, gamma=4),)) for i in range(3)]
    made = report(KNOWN, [*results(), *deeper])
    survival = table(made, "Survival per draft position")
    assert texts(survival) == [
        ["ngram", "gamma 4", "80.0%", "30.0%", "10.0%", "10.0%"],
        ["eagle", "gamma 2", "75.0%", "25.0%", "n/a", "n/a"],
    ]
    assert survival.chart is not None and survival.chart.series[1].values == (0.75, 0.25, None, None)
    workloads = table(made, "Survival by workload: eagle")
    assert workloads.is_folded and texts(workloads) == [
        ["code", "12", "100.0%", "50.0%"],
        ["story", "12", "50.0%", "0.0%"],
    ]


def test_acceptance_along_the_output_and_by_prompt_length():
    long = result(EAGLE, "long", answers=(answer(2, 2, 2, 0, gamma=2),), workload="code")
    made = report(KNOWN, [*results(), long])
    output, prompt = table(made, "Acceptance over the output"), table(made, "Acceptance by prompt length")
    # Eagle's passes: 12 of 2.5 on average, 12 of 1.5 and 3 of 3, so 57 / 27. The interval is what the chances of all
    # draws of 13 prompts add up to.
    assert texts(output) == [
        ["0 to 7", "2.00 (1.67-2.33, 12 prompts)", "2.11 (1.73-2.46, 13 prompts)"],
        ["8 to 15", "n/a", "1.00 (1 prompt)"],
    ]
    assert [row[0] for row in texts(prompt)] == ["0 to 63", "64 to 127"]
    assert output.chart is not None and output.chart.series[0].values == (2.0, None)


def test_what_choosing_by_workload_would_gain():
    blocks = section(report(KNOWN, results()), "The best for each workload")
    assert isinstance(blocks[0], Paragraph) and "eagle, gamma 2" in blocks[0].text
    assert texts(blocks[1]) == [
        ["code", "eagle, gamma 2", "2.00", "ngram, gamma 2", "1.25"],
        ["story", "eagle, gamma 2", "1.10", "ngram, gamma 2", "0.80"],
    ]
    apart = [result(NGRAM, "a"), result(EAGLE, "b")]
    [said] = section(report(KNOWN, apart), "The best for each workload")
    assert said == Paragraph("There is no prompt that every way of drafting was measured on.")


def test_changes_since_other_results_are_told_with_what_else_differs():
    before = [replace(each, speculative_s=(2 * each.speculative_s[0],)) for each in results()]
    other = Against("old.jsonl", replace(KNOWN, dtype="bfloat16", threads=None, date="2025-12-31", load=()), before)
    made = report(KNOWN, results(), other, name="new.jsonl")
    blocks = section(made, "Changes since old.jsonl")
    assert blocks[0] == Paragraph("6 of 12 differences from old.jsonl (2025-12-31) are beyond noise: 6 up, 0 down.")
    assert blocks[1] == Points(("dtype: bfloat16 before, float32 now", "threads: n/a before, 2 now"))
    clear, *every = (block for block in blocks if isinstance(block, Table))
    assert clear.caption == "Change of speed-up from old.jsonl to new.jsonl beyond noise" and not clear.is_folded
    # Student's interval of 12 pairs whose shares in the change are 0.11 above and below it, for 12 comparisons at once.
    assert texts(clear)[0] == [
        *("all prompts", "ngram, gamma 2", "0.52", "1.03", "+0.52", "+0.39 to +0.64", "12 and 12, the same"),
        "more, beyond noise",
    ]
    assert texts(clear)[2][:6] == ["story", "ngram, gamma 2", "0.40", "0.80", "+0.40", "+0.40 to +0.40"]
    assert [len(each.rows) for each in every] == [6, 6] and all(each.is_folded for each in every)


def test_fewer_than_five_prompts_have_no_intervals():
    few, enough = of(1.5, 1.5, 2.0, 2.0), of(1.5, 1.5, 1.5, 2.0, 2.0)
    made = report(KNOWN, few, Against("old.jsonl", KNOWN, few), name="new.jsonl")
    assert texts(table(made, "Time per token"))[0][2:6] == ["4", "1.75x", "n/a", "1.50-2.00"]
    assert texts(table(made, "Acceptance"))[0][2:7] == ["4", "2.50", "n/a", "2.50", "n/a"]
    assert texts(table(made, "Speed-up by workload")) == [["code", "? 1.75x"]]
    assert texts(table(made, "Acceptance over the output"))[0] == ["0 to 7", "2.50 (4 prompts)"]
    assert section(made, "Changes since old.jsonl")[0] == Paragraph(
        "0 of 2 differences from old.jsonl (2026-01-01) are beyond noise. Of 2 there are too few prompts to tell."
    )
    assert texts(table(made, "Change of speed-up"))[0][5:] == ["n/a", "4 and 4, the same", "too few prompts to tell"]
    assert "n/a" not in texts(table(report(KNOWN, enough), "Time per token"))[0]


def test_nothing_in_common_is_said():
    made = report(KNOWN, of(1.5), Against("old.jsonl", KNOWN, of(1.5, arm=NGRAM)))
    [said] = section(made, "Changes since old.jsonl")
    assert said == Paragraph("old.jsonl has no way of drafting in common with the best ones here.")


def test_machine_and_method_are_told():
    header = replace(KNOWN, sampler={**KNOWN.sampler, "temperature": 0.7}, seed=3, load=(), versions={"torch": "2"})
    made = report(header, results())
    [facts] = section(made, "What was measured")
    assert isinstance(facts, Facts)
    told = dict(facts.pairs)
    assert told["Load averages at the start"] == "n/a (over 1, 5 and 15 minutes)"
    assert (
        told["Threads"] == "2" and told["Versions"] == "torch 2" and told["Counted"] == "144 tokens in 72 verify passes"
    )
    assert told["Drafters' weights"] == "smollm2-135m/eagle (0858a4ff8)"
    assert told["Prompts by workload"] == "code 6, story 6" and told["Prompts by length"] == "short 12"
    [method] = section(made, "How it was measured")
    assert isinstance(method, Points)
    assert method.items[0] == "Tokens are drawn at temperature 0.7, with seed 3 for every prompt."
    assert not any("compared" in item for item in method.items)


def test_untimed_results_have_no_table_of_times():
    made = report(
        replace(KNOWN, timed=False), [*of(None, None, None), result(PLAIN, "0", None, answers=(answer(0, gamma=0),))]
    )
    captions = [b.caption for s in made.sections for b in s.blocks if isinstance(b, Table)]
    assert not any("Time" in caption or "Speed-up" in caption for caption in captions)
    assert "n/a" in texts(table(made, "Acceptance"))[0]


def test_plain_decoding_alone_makes_a_report_too():
    made = report(KNOWN, [result(PLAIN, "a", answers=(answer(0, 0, gamma=0),))])
    assert section(made, "Survival per draft position") == [Paragraph("Nothing was drafted.")]
    assert "Along the output and by prompt length" not in [section.title for section in made.sections]


def test_no_results_make_no_report():
    with pytest.raises(UserError, match="There are no results yet"):
        report(KNOWN, [])
