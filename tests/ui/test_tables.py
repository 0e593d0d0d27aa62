"""What becomes HTML is escaped, and numbers stand at the right."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from specviz.ui import tables

HOSTILE = "<script>alert('1')</script> & \"more\""


class Reader(HTMLParser):
    """Collects the tags, and the texts between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.classes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.classes.append((tag, dict(attributes).get("class")))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize(
    "made",
    [
        tables.table([HOSTILE], [[HOSTILE]], caption=HOSTILE),
        tables.facts([(HOSTILE, HOSTILE)]),
        tables.saying(HOSTILE),
        tables.note(HOSTILE),
        tables.problem(HOSTILE),
    ],
)
def test_whatever_is_said_stays_text(made):
    read = Reader(made)
    assert "script" not in read.tags and set(read.texts) == {HOSTILE}


def test_numbers_and_their_columns_names_stand_at_the_right():
    rows = [["ngram", "1.53x", "n/a", "2.1 GB"], ["eagle", "0.97x", "3", "12 of 14"]]
    read = Reader(tables.table(["drafter", "speed-up", "gamma", "need"], rows))
    assert [kind for tag, kind in read.classes if tag == "th"] == [None, "sv-number", "sv-number", "sv-number"]
    assert [kind for tag, kind in read.classes if tag == "td"] == [None, "sv-number", "sv-number", "sv-number"] * 2


def test_a_column_with_words_is_no_column_of_numbers():
    read = Reader(tables.table(["a", "b"], [["1", "2"], ["many", "3"]]))
    assert [kind for tag, kind in read.classes if tag == "th"] == [None, "sv-number"]
    assert [kind for tag, kind in read.classes if tag == "td"] == ["sv-number", "sv-number", None, "sv-number"]
    assert "<tbody></tbody>" in tables.table(["a"], [])
