"""The HTML file: sound, self-contained, and safe whatever names it holds."""

from html.parser import HTMLParser

import pytest
from reported import KNOWN, hostile, results
from workloads.suites import HEADER

from specviz.report import svg
from specviz.report.blocks import Lines, Series
from specviz.report.content import report
from specviz.report.drift_tables import Against
from specviz.report.html import to_html
from specviz.report.markdown import to_markdown
from specviz.workloads import table
from specviz.workloads.summary import rows

VOID = {"meta", "link", "br", "img"}
KNOWN_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "nav", "ul", "li", "a", "section"),
    *(
        "figure",
        "figcaption",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "dl",
        "dt",
        "dd",
    ),
    *("svg", "g", "path", "line", "text", "circle", "span", "b", "pre", "code"),
}


class Reader(HTMLParser):
    """What is in the file; fails where tags are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def made(header=KNOWN, found=None):
    return report(header, results() if found is None else found, Against("old.jsonl", HEADER, results()), name="new")


def hostile_report():
    header, found = hostile()
    return report(header, found, Against(found[0].prompt, header, found), name=found[0].prompt, title=found[0].prompt)


@pytest.mark.parametrize("each", [made, hostile_report])
def test_the_file_asks_for_nothing(each):
    text = to_html(each())
    read = Reader(text)
    assert set(read.tags) <= KNOWN_TAGS
    links = [
        value for _, name, value in read.attributes if name in ("src", "href", "xlink:href", "action", "data", "poster")
    ]
    assert links and all(link.startswith("#part-") for link in links)
    names = {name for _, name, _ in read.attributes}
    assert not [name for name in names if name.startswith("on")]
    styles = [value for _, name, value in read.attributes if name == "style"]
    assert all(value.startswith("--tint:") for value in styles)
    css = text[text.index("<style>") : text.index("</style>")]
    assert not {"url(", "@import", "http"} & {word for word in ("url(", "@import", "http") if word in css}
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes
    assert len(text) < 300_000


def test_names_from_a_file_are_words_and_nothing_else():
    """The same tags in the same order, however the names read."""
    text = to_html(hostile_report())
    assert "<script" not in text and "alert(1)" in text and "\x07" not in text and "\u202e" not in text
    read = Reader(text)
    assert "script" not in read.tags
    said = "".join(read.words)
    assert "<script>alert(1)</script> & \"x\" 'y' | a\\|b `c` *d* _e_ [f](http://g.example/)" in said


def test_every_number_of_the_arms_is_in_both_outputs():
    each = made()
    html, markdown = "".join(Reader(to_html(each)).words), to_markdown(each)
    numbers = {cell for row in rows(results()) for cell in table.cells(row)[2:] if cell}
    assert len(numbers) == 17
    assert [number for number in numbers if number not in html or number not in markdown] == []


def test_tables_name_their_rows_and_columns():
    text = to_html(made())
    assert (
        '<th scope="col" class="text">drafter</th><th scope="col" class="text">setting</th><th scope="col">prompts'
        in text
    )
    assert (
        '<th scope="row" class="text">eagle</th><th scope="row" class="text">gamma 2</th><td>12</td><td>1.55x</td>'
        in text
    )
    assert '<td class="more" style="--tint:0.420">▲ 2.00x (2.00-2.00)</td>' in text  # twice as fast
    assert '<td class="less" style="--tint:0.135">▼ 0.80x (0.80-0.80)</td>' in text
    assert '<details class="table"><summary>Survival by workload: eagle, gamma 2</summary>' in text


def test_ranges_stand_where_their_numbers_are():
    """From 0.70 to 2.00, the ends of the longest intervals, with a little room at either side."""
    text = to_html(made())
    low, high = 0.70 - 0.04 * 1.3, 2.00 + 0.04 * 1.3
    place = f"{100 * (1.55 - low) / (high - low):.1f}%"
    assert f'<circle cx="{place}" cy="10" r="4.5"/></svg><b>1.55x</b>' in text
    assert '<div class="range worse"><span>ngram, gamma 4</span>' in text


def test_lines_are_broken_off_where_nothing_was_measured_and_the_last_ones_left_to_the_table():
    series = tuple(Series(f"s{i}", (1.0, None, 3.0)) for i in range(8))
    text = svg.lines(Lines(("a", "b", "c"), "across", "up", 1.0, 3.0, False, series))
    assert text.count('<g class="series s0"><title>s0</title>') == 1 and "s6" not in text
    assert "2 more in the table alone" in text
    assert 'd="M89.7 164.0M296.3 8.0"' in text
