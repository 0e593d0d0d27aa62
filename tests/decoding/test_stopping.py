"""One cut for ids, text and reason: the earliest end wins, wherever tokens and steps divide the output."""

import random

import pytest
from fakes import byte_tokenizer
from scripted import Replay, ScriptedTarget
from traces import RUN

from specviz.decoding.engine import Settings, decode
from specviz.decoding.stopping import Cut, Ending
from specviz.models.text import TextStream
from specviz.models.text import decode as decoded
from specviz.trace import Trace

STOP = 256  # byte_tokenizer's first special token
TEXT = "one 😀 two END three"


def ending(budget: int = 100, stop_tokens: frozenset[int] = frozenset(), stop_strings: tuple[str, ...] = ()) -> Ending:
    return Ending(TextStream(byte_tokenizer(), []), budget, stop_tokens, stop_strings)


def ids(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text))


def in_steps(end: Ending, tokens: list[int], sizes: list[int]) -> list[Cut]:
    """Cuts of the tokens, handed over in steps of these sizes, up to the one that ends the run."""
    cuts, start = [], 0
    for size in sizes:
        cuts.append(end.cut(tokens[start : start + size]))
        start += size
        if cuts[-1].reason or start >= len(tokens):
            break
    return cuts


def joined(cuts: list[Cut]) -> tuple[list[int], str]:
    return [token for cut in cuts for token in cut.committed], "".join(piece for cut in cuts for piece in cut.text)


def test_without_an_end_everything_is_kept():
    cut = ending().cut(ids("abc"))
    assert cut == Cut(tuple(ids("abc")), ("a", "b", "c"), None)


def test_the_stop_token_is_kept_and_nothing_after_it():
    cut = ending(stop_tokens=frozenset({STOP, 9})).cut([*ids("ab"), STOP, *ids("cd")])
    assert cut.committed == (*ids("ab"), STOP) and cut.reason == "stop_token"
    assert len(cut.text) == 3


def test_the_first_of_several_stop_tokens_ends_the_run():
    a, b, c, d = ids("abcd")
    assert ending(stop_tokens=frozenset({d, b})).cut([a, b, c, d]).committed == (a, b)


@pytest.mark.parametrize("budget", range(1, 7))
def test_the_budget_is_kept_to_the_token(budget):
    cut = ending(budget).cut(ids("abcdef"))
    assert cut.committed == tuple(ids("abcdef"))[:budget] and cut.reason == "length"


def test_the_budget_counts_across_steps():
    end = ending(5)
    assert end.cut(ids("abc")).reason is None and end.room == 2
    assert end.cut(ids("defg")) == Cut(tuple(ids("de")), ("d", "e"), "length")


@pytest.mark.parametrize(
    ("budget", "expected", "reason"),
    [(2, 2, "length"), (3, 3, "stop_token"), (4, 3, "stop_token"), (9, 3, "stop_token")],
)
def test_the_earliest_reason_wins_and_a_stop_in_the_last_place_is_a_stop(budget, expected, reason):
    cut = ending(budget, frozenset({STOP}), ("d",)).cut([*ids("ab"), STOP, *ids("def")])
    assert len(cut.committed) == expected and cut.reason == reason


def test_a_stop_string_before_the_stop_token_wins():
    cut = ending(9, frozenset({STOP}), ("b",)).cut([*ids("abc"), STOP])
    assert cut.committed == tuple(ids("ab")) and cut.reason == "stop_string"


def test_a_stop_string_in_the_last_place_of_the_budget_is_a_stop():
    assert ending(3, stop_strings=("bc",)).cut(ids("abcd")).reason == "stop_string"


@pytest.mark.parametrize("stop", ["E", "EN", "END", " two END", "😀", "e 😀 t", "one 😀 two END three", "ree"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_a_stop_string_is_found_across_tokens_and_steps(stop, size):
    tokens = ids(TEXT)
    cuts = in_steps(ending(stop_strings=("never", stop)), tokens, [size] * len(tokens))
    committed, text = joined(cuts)
    assert cuts[-1].reason == "stop_string" and all(cut.reason is None for cut in cuts[:-1])
    assert text == TEXT[: TEXT.index(stop) + len(stop)] == decoded(byte_tokenizer(), committed)


@pytest.mark.parametrize("offset", range(7))
def test_a_stop_string_is_found_at_every_offset_from_a_step_boundary(offset):
    """The string is three tokens long: steps of four divide it before, within and after."""
    tokens = ids("x" * offset + "END" + "y" * 9)
    committed, text = joined(in_steps(ending(stop_strings=("END",)), tokens, [4] * 5))
    assert text == "x" * offset + "END" and committed == tokens[: offset + 3]


def test_a_stop_string_inside_one_token_keeps_the_whole_token():
    class Words:
        def decode(self, ids: list[int], **settings: bool) -> str:
            return "".join(("go ", "stop. Then", " more")[token] for token in ids)

    end = Ending(TextStream(Words(), []), 9, frozenset(), ("stop.",))
    assert end.cut([0, 1, 2]) == Cut((0, 1), ("go ", "stop. Then"), "stop_string")


def test_a_stop_string_that_the_prompt_began_is_none():
    end = Ending(TextStream(byte_tokenizer(), ids("the EN")), 9, frozenset(), ("END",))
    assert end.cut(ids("Defg")).reason is None


def test_a_false_start_of_a_stop_string_does_not_hide_the_real_one():
    _, text = joined(in_steps(ending(stop_strings=("aab",)), ids("aaaaab!"), [2, 2, 2, 2]))
    assert text == "aaaaab"


@pytest.mark.parametrize("budget", range(1, 9))
def test_a_run_that_ends_inside_a_character_shows_what_there_is(budget):
    cut = ending(budget).cut(ids("a😀b한"))
    assert "".join(cut.text) == decoded(byte_tokenizer(), list(cut.committed))


def test_drawn_ends_agree_with_a_search_in_the_finished_output():
    rng = random.Random(3)
    reasons = set()
    for _ in range(400):
        tokens = ids("".join(rng.choices("ab😀é ", k=14)))
        stop_tokens = frozenset(rng.sample(range(259), rng.randint(0, 40)))
        stop_strings = tuple("".join(rng.choices("ab😀é ", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 2)))
        budget = rng.randint(1, 30)
        cuts = in_steps(
            ending(budget, stop_tokens, stop_strings), tokens, [rng.randint(1, 6) for _ in range(len(tokens))]
        )
        expected = search(tokens, budget, stop_tokens, stop_strings)
        committed, text = joined(cuts)
        assert (len(committed), cuts[-1].reason) == expected, (tokens, budget, stop_tokens, stop_strings)
        if cuts[-1].reason:
            assert text == decoded(byte_tokenizer(), committed)
        reasons.add(cuts[-1].reason)
    assert reasons == {"stop_token", "stop_string", "length", None}


def search(
    tokens: list[int], budget: int, stop_tokens: frozenset[int], stop_strings: tuple[str, ...]
) -> tuple[int, str | None]:
    """How many tokens are kept and why, found by decoding every prefix anew."""
    for count in range(1, len(tokens) + 1):
        text = decoded(byte_tokenizer(), tokens[:count])
        if tokens[count - 1] in stop_tokens:
            return count, "stop_token"
        if any(string in text for string in stop_strings):
            return count, "stop_string"
        if count == budget:
            return count, "length"
    return len(tokens), None


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("wrong", [frozenset(), frozenset({2, 3, 6, 11}), frozenset(range(40))])
@pytest.mark.parametrize("stop", [TEXT[at : at + 3] for at in range(0, len(TEXT) - 2)])
def test_a_decoded_run_ends_at_the_stop_string_whatever_is_accepted(gamma, wrong, stop):
    script, prompt = ids(TEXT), ids("go: ")
    target = ScriptedTarget(script, len(prompt), byte_tokenizer())
    drafter = Replay(script, len(prompt), target.vocab_size, wrong)
    settings = Settings(gamma=gamma, max_new_tokens=len(script), stop_strings=(stop,))
    trace = Trace(RUN, tuple(decode(target, drafter, prompt, settings)))
    assert trace.finish_reason == "stop_string"
    assert trace.text == TEXT[: TEXT.index(stop) + 3] == decoded(byte_tokenizer(), list(trace.tokens))
