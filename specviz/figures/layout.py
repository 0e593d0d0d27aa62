"""What figures of suites share: names that come from files, and heights that follow the number of lines."""

from __future__ import annotations

import textwrap
from html import escape

import plotly.graph_objects as go

from specviz.figures import style


def plain(text: str, longest: int = 60) -> str:
    """The text as Plotly shows it letter by letter: nothing in it is a tag, and it is cut to so many characters."""
    return escape(shortened(text, longest), quote=False)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def broken(text: str, width: int, lines: int) -> list[str]:
    """The text in lines of so many characters, each as Plotly shows it letter by letter; the last may be cut."""
    return [plain(line) for line in textwrap.wrap(text, width, max_lines=lines, placeholder="…")]


def small(text: str) -> str:
    return f'<span style="font-size:10px">{text}</span>'


def set_height(figure: go.Figure, height: int) -> None:
    """In pixels, with the title where it was, as its place is a share of the height."""
    figure.update_layout(height=height, title_y=1 - style.TITLE_SIZE / height)
