"""The Markdown, read by a parser of GitHub's dialect: tables as meant, and names that are no markup."""

import pytest
from markdown_it import MarkdownIt
from reported import HOSTILE, KNOWN, hostile, results

from specviz.report.blocks import Code, Paragraph, Points, Report, Section, Table, cells
from specviz.report.content import report
from specviz.report.markdown import escaped, to_markdown
from specviz.report.names import visible

PLAIN_TAGS = {"h1", "h2", "h3", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", ""}


def read(text):
    """Every token, those within lines too. HTML and links are looked for, so both are on."""
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(text)
    return [part for token in tokens for part in (token, *(token.children or ()))]


def words(tokens):
    return "".join(token.content for token in tokens if token.type in ("text", "code_inline", "text_special"))


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "1. one", "12) two", "- three", "+ four", "# five", "=== six", "---", "***", "> seven", "| a | b |",
        "    eight", "a  b\n\n# c", "[x]: http://y.example", "![z](w)", "<b>", "&lt;", "*a*", "_a_", "a_b_c", "__a__",
        "~~a~~", "$a$", "`a``b`", "a\\", "\\*a*", "www.example.org/_a_", "me@example.org*", "me@a.org|b\\|c",
        "ftp://`x`", "1.57", "-0.12",
    ],
)  # fmt: skip
def test_texts_are_shown_letter_by_letter(text):
    tokens = read(escaped(text))
    assert {token.tag for token in tokens} <= {"p", "code", ""} and not [t for t in tokens if "html" in t.type]
    assert words(tokens) == visible(text)
    row = read(f"| a | b |\n| :-- | --: |\n| {escaped(text)} | {escaped(text)} |")
    assert [token.tag for token in row if token.type in ("td_open", "th_open")] == ["th", "th", "td", "td"]
    assert words(row) == "ab" + 2 * visible(text)


def test_numbers_stay_as_they_are():
    assert [escaped(text) for text in ("1.57", "-0.12", "1.2-1.4", "a_b (c 1)", "3 of 8", "4.0%")] == [
        *("1.57", "-0.12", "1.2-1.4", "a_b (c 1)", "3 of 8", "4.0%")
    ]


def test_words_that_become_links_are_code():
    assert escaped("see www.example.org, me@example.org or http://a.b") == (
        "see `www.example.org,` `me@example.org` or `http://a.b`"
    )


def test_blocks_by_value():
    rows = (cells("a|b", "1.50x", "fast"), cells("c", "n/a", "slow"))
    table = Table("Speeds", ("who", "speed", "said"), rows, definitions=(("speed", "how *fast*"),))
    blocks = (Paragraph("One_two_."), Points(("- a", "b")), Code(("run \\", "  --fast")), table)
    assert to_markdown(Report("T#", "Faster: a", "Here.", (Section("S", blocks),))) == (
        "# T\\#\n\n**Faster: a**\n\nHere.\n\n## S\n\nOne_two\\_.\n\n- \\- a\n- b\n\n```sh\nrun \\\n  --fast\n```\n\n"
        "**Speeds**\n\n| who | speed | said |\n| :-- | --: | :-- |\n| a\\|b | 1.50x | fast |\n| c | n/a | slow |\n\n"
        "## What the columns mean\n\n### Speeds\n\n- **speed**: how \\*fast\\*\n"
    )


def test_a_line_of_code_can_not_end_its_block():
    [section] = [Section("S", (Code(("run \\", "  --suite 'a\n```\n# b'")),))]
    assert "```sh\nrun \\\n  --suite 'a ``` # b'\n```\n" in to_markdown(Report("T", "V", "W", (section,)))


def test_what_columns_mean_is_said_once():
    twice = [Table(caption, ("a",), (), definitions=(("a", "it"), (caption, "own"))) for caption in ("One", "Two")]
    said = to_markdown(Report("T", "V", "W", (Section("S", tuple(twice)),)))
    assert said.endswith("### One\n\n- **a**: it\n- **One**: own\n\n### Two\n\n- **Two**: own\n")


@pytest.mark.parametrize("found", [(KNOWN, results()), hostile()], ids=["usual", "hostile"])
def test_a_report_is_tables_lists_and_words(found):
    made = report(*found)
    tokens = read(to_markdown(made))
    assert {token.tag for token in tokens} <= PLAIN_TAGS
    assert not [token for token in tokens if "html" in token.type or "link" in token.type or "image" in token.type]
    tables = [block for section in made.sections for block in section.blocks if isinstance(block, Table)]
    assert sum(token.type == "td_open" for token in tokens) == sum(len(t.head) * len(t.rows) for t in tables)
    parts = [token for token in tokens if token.type == "heading_open" and token.tag == "h2"]
    assert len(parts) == len(made.sections) + 1
