"""Lines by value, with and without colour, and what hostile traces may not do to a terminal."""

import io
import re
from dataclasses import replace

import pytest
from traces import step, trace

from specviz import replay
from specviz.replay import play, render_header, render_step, render_summary, visible, visible_token, wants_colour
from specviz.trace import Step, Trace, header_line, parse, step_line

COLOURS = re.compile(r"\x1b\[[0-9;]+m")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\b\x00\x7f\x9b31m\x85\u202e\u2066\u200f\u2028\u2029\ufeff\U000e0041\ud800"


def cat_step() -> Step:
    """A draft of four: two kept, one refused, one never tested."""
    mixed = step("aaru", texts=(" the", " cat", " sat", " on", " ran"), index=2)
    decided = [replace(node, p_trial=0.5, q=0.25, r=0.75) for node in mixed.nodes]
    decided[2] = replace(decided[2], p_trial=0.125, q=0.5, r=0.62)
    return replace(mixed, nodes=tuple(decided))


def test_a_step_by_value():
    assert render_step(cat_step()) == (
        "step  3  ␣the ✓ ␣cat ✓ ~~␣sat~~ → ␣ran (␣on ○)   "
        "2/4 accepted, correction, 1 rejected, 1 untested   (␣sat: p/q 0.125/0.5, r 0.62)"
    )


def test_a_coloured_step_by_value():
    assert render_step(cat_step(), colour=True) == (
        "step  3  \x1b[36m␣the ✓\x1b[0m \x1b[36m␣cat ✓\x1b[0m \x1b[9;33m~~␣sat~~\x1b[0m \x1b[35m→ ␣ran\x1b[0m "
        "(\x1b[2m␣on ○\x1b[0m)   "
        "2/4 accepted, correction, 1 rejected, 1 untested   (␣sat: p/q 0.125/0.5, r 0.62)"
    )


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (step("aa"), "step  1  ␣t0 ✓ ␣t1 ✓ + ␣own   2/2 accepted, bonus"),
        (step("r"), "step  1  ~~␣t0~~ → ␣own   0/1 accepted, correction, 1 rejected"),
        (step("", note="no\nmatch"), "step  1  + ␣own   no draft, bonus   [no⏎match]"),
        (
            step("acc", cut="stop_token"),
            "step  1  ␣t0 ✓ (␣t1 ✂ ␣t2 ✂)   1/3 accepted, 2 cut, ended by a stop token",
        ),
        (
            step("rauraau", parents=(-1, -1, 0, 1, 1, 4, 2), index=122),
            "step 123  ~~␣t0~~ | ␣t1 ✓ ~~␣t3~~ | ␣t4 ✓ ␣t5 ✓ + ␣own (␣t2 ○ ␣t6 ○)   "
            "3/7 accepted, bonus, 2 rejected, 2 untested",
        ),
    ],
    ids=["bonus", "correction", "no draft", "cut", "tree"],
)
def test_every_kind_of_step(one: Step, line: str):
    assert render_step(one) == line
    assert COLOURS.sub("", render_step(one, colour=True)) == line


def test_a_wide_tree_is_not_listed_in_full():
    line = render_step(step("r" + "u" * 20, parents=[-1] * 21))
    assert line.count("○") == replay.LISTED and "… 12 more)" in line and "20 untested" in line


def test_numbers_are_those_of_the_last_token_tested():
    one = step("aa")
    one = replace(one, nodes=tuple(replace(node, p_trial=1e-4, q=1.0, r=0.1 * node.depth) for node in one.nodes))
    assert render_step(one).endswith("bonus   (␣t1: p/q 0.0001/1, r 0.2)")
    assert "p/q" not in render_step(replace(one, nodes=tuple(replace(node, q=None) for node in one.nodes)))


def test_each_rule_shows_what_decided():
    """The chance is not p/q under the block rule, and typical acceptance draws nothing."""
    one = step("a")
    numbers = {"p_trial": 0.125, "q": 0.5}
    block = replace(one.nodes[0], **numbers, accept_prob=0.75, r=0.625)
    typical = replace(one.nodes[0], **numbers, accept_prob=1.0)
    assert render_step(replace(one, nodes=(block,))).endswith("(␣t0: p/q 0.125/0.5, chance 0.75, r 0.625)")
    assert render_step(replace(one, nodes=(typical,))).endswith("(␣t0: p/q 0.125/0.5, chance 1)")


def test_who_drafted_is_said_where_the_trace_knows():
    one = step("aru")
    by_one = replace(one, nodes=tuple(replace(node, by="ngram") for node in one.nodes))
    assert render_step(by_one) == (
        "step  1  ␣t0 ✓ ~~␣t1~~ → ␣own (␣t2 ○)   1/3 accepted, drafted by ngram, correction, 1 rejected, 1 untested"
    )
    kinds = ("ngram", "eagle", "eagle")
    by_two = replace(one, nodes=tuple(replace(node, by=kind) for node, kind in zip(one.nodes, kinds, strict=True)))
    assert render_step(by_two) == (
        "step  1  ␣t0 ✓ ‹ngram› ~~␣t1~~ ‹eagle› → ␣own (␣t2 ○ ‹eagle›)   "
        "1/3 accepted, drafted by ngram and eagle, correction, 1 rejected, 1 untested"
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("\r\n", "⟨U+000D⟩⏎"),
        ("\x1b[31m", "⟨U+001B⟩[31m"),
        ("\x9b", "⟨U+009B⟩"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("\u00a0", "⟨U+00A0⟩"),
        ("\u200d", "⟨U+200D⟩"),
        ("\u0301", "◌\u0301"),
        ("é漢😀", "é漢😀"),
        ("⟨F0 9F⟩", "⟨F0 9F⟩"),
        ("", "⟨42⟩"),
    ],
)
def test_token_text(text: str, word: str):
    assert visible_token(text, 42) == word


def test_running_text_keeps_what_is_only_text():
    text = "Ça va ?\n\t漢字\u3000👩\u200d💻 ✓"
    assert visible(text) == text
    assert visible("a\x1b[1mb\r\u2028") == "a⟨U+001B⟩[1mb⟨U+000D⟩⟨U+2028⟩"


def hostile_trace() -> Trace:
    """Every string that a trace has is an attack, and so are its numbers."""
    bad = step("aru", texts=[HOSTILE] * 4, note=HOSTILE, path=(0, 99), gamma_used=10**9)
    loop = replace(
        bad, nodes=tuple(replace(node, parent=i, depth=-i, by=HOSTILE + str(i)) for i, node in enumerate(bad.nodes))
    )
    names = ("target", "drafter", "prompt_text", "device", "dtype", "gamma_policy", "rule", "date", "title")
    texts = dict.fromkeys(names, HOSTILE)
    settings = {HOSTILE: HOSTILE, "list": [HOSTILE]}
    return trace(bad, loop, **texts, drafter_settings=settings, sampler=settings, notes=(HOSTILE,), gamma=10**9)


@pytest.mark.parametrize("colour", [False, True])
def test_nothing_in_a_trace_steers_the_terminal(colour: bool):
    hostile = hostile_trace()
    out = io.StringIO()
    play(hostile, out, colour=colour)
    shown = out.getvalue()
    assert (COLOURS.search(shown) is not None) == colour
    left = COLOURS.sub("", shown)
    assert not set(left) & (set(HOSTILE) - set("]0;owned[2J31m"))
    assert not [c for c in left if c != "\n" and not c.isprintable()]
    assert "⟨U+001B⟩]0;owned⟨U+0007⟩" in left and "⟨U+D800⟩" in left
    steps = [line for line in left.splitlines() if line.startswith("step ")]
    assert len(steps) == len(hostile.steps)
    left.encode("utf-8")


def test_a_trace_from_a_file_is_replayed_the_same():
    run = trace(cat_step(), step("aacc", cut="stop_token"))
    again = parse([header_line(run.run), *map(step_line, run.steps)])
    first, second = io.StringIO(), io.StringIO()
    play(run, first)
    play(again, second)
    assert first.getvalue() == second.getvalue()


def test_header_by_value():
    settings = {"ngram_max": 3, "path": None}
    run = replace(trace().run, title="Tiny", drafter_settings=settings, prompt_text="Hi\nyou", notes=("slow",))
    assert render_header(run).splitlines() == [
        "Tiny",
        "target tiny, drafter ngram (ngram_max 3)",
        "gamma 4 (fixed), token rule, lossless",
        "seed 0 (temperature 0.0)",
        "live, cpu, float32",
        "prompt, 2 tokens: Hi⏎you",
        "note: slow",
        "",
        replay.LEGEND,
    ]
    long = render_header(replace(run, prompt_text="x" * 9999, rule="typical", lossless=False, gamma_policy="adaptive"))
    assert "x" * replay.PROMPT_SHOWN + "…\n" in long and "gamma 4 (adaptive), typical rule, NOT lossless\n" in long


def test_summary_by_value():
    run = trace(step("aaaa", seconds=0.5, prefill_s=0.25), step("aacc", cut="stop_token", seconds=0.5))
    lines = render_summary(run).splitlines()
    assert lines[:3] == ["7 tokens in 2 steps, ended by a stop token:", " t0 t1 t2 t3 own t0", ""]  # it has no text
    assert re.findall(r"^(.*?) {2,}(\S+(?: \S+)?)  ", "\n".join(lines[3:]), re.M) == [
        ("acceptance length", "4.00"),
        ("acceptance length, drafted", "4.00"),
        ("tokens per pass", "3.50"),
        ("acceptance rate", "75.0%"),
        ("tested rate", "100.0%"),
        ("prefill", "0.250 s"),
        ("decode speed", "7.0 tokens/s"),
    ]


def test_summary_of_nothing_says_so():
    text = render_summary(trace())
    assert text.startswith("0 tokens in 0 steps, cancelled before its end:")
    assert text.count("n/a") == len(replay.NUMBERS)
    assert "no benchmark" not in text and "no benchmark" in render_summary(trace(synchronised=True))


def test_play_waits_between_steps_only(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []
    monkeypatch.setattr(replay, "sleep", waits.append)
    play(trace("a", "a", "a"), io.StringIO(), delay=0.5)
    assert waits == [0.5, 0.5]
    play(trace("a", "a", "a"), io.StringIO())
    assert waits == [0.5, 0.5]


def test_an_interrupted_play_gives_the_text_so_far(monkeypatch: pytest.MonkeyPatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "sleep", interrupt)
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        play(trace("a", "a", "a"), out, delay=1)
    assert "step  1" in out.getvalue() and "step  2" not in out.getvalue()
    assert "2 tokens in 1 step, cancelled before its end:\n t0 own\n" in out.getvalue()


def test_terminals_without_these_letters_get_escapes_not_errors():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    play(trace("a"), out)
    out.seek(0)
    assert r"\u2423t0 \u2713" in out.read()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
