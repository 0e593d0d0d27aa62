"""A figure in a card, with what it shows one click away."""

from __future__ import annotations

from html import escape

import gradio as gr
import plotly.graph_objects as go


def chart(figure: go.Figure | None, *, elem_id: str, definition: str) -> gr.Plot:
    """The plot, drawn in the column or row around it, and a fold with the sentences that define it."""
    with gr.Column(elem_classes=["sv-card", "sv-defined"], min_width=0):
        plot = gr.Plot(figure, show_label=False, elem_id=elem_id, elem_classes="sv-chart", buttons=[])
        gr.HTML(
            f'<details class="sv-definition"><summary>What this shows</summary><p>{escape(definition)}</p></details>',
            apply_default_css=False,
        )
    return plot
