"""What a target and its drafter take of memory, part upon part, against what there is."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import legends, style

TITLE = "Memory by part"
DEFINITION = (
    "Memory that decoding should take at its peak, in GB (a thousand million bytes), for the target, for what the "
    "drafter adds, and for both: weights; keys and values of all tokens of the context; logits of a verify pass; "
    "activations, which are the working memory of a pass and the target's states that a head reads; what libraries and "
    "tokenizers take of a CPU's memory; and headroom that is to stay free. The dashed line is the budget, where it is "
    "near. All of it is estimated from the models' configurations; nothing is loaded."
)
ORANGE, PURPLE = "#D55E00", "#CC79A7"  # of the same palette as the colours in `style`
LOOKS = {  # colour, pattern
    "weights": (style.BLUE, ""),
    "KV cache": (style.GREEN, "/"),
    "logits": (ORANGE, "x"),
    "activations": (PURPLE, "\\"),
    "libraries": (style.GREY, "."),
    "headroom": (style.GREY, "-"),
}
FAR = 2  # a budget that is more times as large as the need would make all bars short, so its line is left out


class MemoryParts(NamedTuple):
    """GB of each part, for one bar."""

    name: str
    parts: dict[str, float]  # by the names in LOOKS

    @property
    def total(self) -> float:
        return sum(self.parts.values())


class MemoryPartsInfo(NamedTuple):
    """Values of the figure."""

    bars: tuple[MemoryParts, ...]  # target, drafter, both
    budget: float | None  # GB; None: unknown
    reason: str = ""  # why there are no bars


def plot(info: MemoryPartsInfo) -> go.Figure:
    if not info.bars:
        return style.empty(TITLE, *(info.reason or "Choose a pairing to see what it takes.").split("\n"))
    figure = style.figure(TITLE, *_verdict(info))
    names = [bar.name for bar in info.bars]
    shown = [part for part in LOOKS if any(bar.parts.get(part) for bar in info.bars)]
    for part in shown:
        colour, pattern = LOOKS[part]
        sizes = [max(0.0, bar.parts.get(part, 0.0)) for bar in info.bars]  # a drafter can lessen the headroom
        figure.add_bar(
            name=part,
            orientation="h",
            x=sizes,
            y=names,
            width=0.4,
            hovertext=[
                f"<b>{bar.name}: {part}</b><br>{gigabytes(size)}" for bar, size in zip(info.bars, sizes, strict=True)
            ],
            hoverinfo="text",
            marker=style.area(colour, pattern),
        )
    for place, bar in enumerate(info.bars):
        words = f"{bar.name}: {gigabytes(bar.total)}"
        figure.add_annotation(text=words, x=0, y=place - 0.22, xanchor="left", yanchor="bottom", showarrow=False)
    longest = max(bar.total for bar in info.bars)
    if info.budget is not None:
        if info.budget <= FAR * longest:
            figure.add_vline(x=info.budget, line={"color": style.GREY, "width": 2, "dash": "dash"})
        longest = max(longest, min(info.budget, FAR * longest))
    figure.update_layout(barmode="stack", hovermode="closest", margin={"l": 5, "r": 8})
    legends.add(figure)
    figure.update_xaxes(title_text="GB", range=[0, 1.05 * longest or 1], nticks=6, ticks="outside", showgrid=False)
    figure.update_yaxes(range=[len(names) - 0.7, -0.7], visible=False)  # the first above
    return figure


def gigabytes(size: float) -> str:
    """With three digits that say something."""
    if size >= 1:
        return f"{size:.1f} GB" if size >= 10 else f"{size:.2f} GB"
    return f"{1000 * size:.0f} MB"


def _verdict(info: MemoryPartsInfo) -> list[str]:
    need = info.bars[-1].total
    if info.budget is None:
        return [f"{gigabytes(need)} in all"]
    words = "fits" if need <= info.budget else "does not fit"
    return [f"{words}: {gigabytes(need)} of {gigabytes(info.budget)}"]
