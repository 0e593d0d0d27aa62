"""Several drafters in turn: the first that has something to propose drafts the step.

An n-gram table costs nothing and knows where the text repeats itself; a trained head knows the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafter_settings import check_setting
from specviz.drafters.base import Context, Drafter


class Combined:
    """Each part reads all that was committed, whoever drafted it: one that was not asked for a while catches up."""

    def __init__(self, parts: Sequence[Drafter], second_gamma: int | None = None) -> None:
        """second_gamma: bounds the draft length of all parts but the first, whose drafts cost more."""
        if second_gamma is not None:
            check_setting("second_gamma", second_gamma)
        self.parts, self.second_gamma = tuple(parts), second_gamma
        self.kind = "+".join(part.kind for part in parts)
        self.hidden_layers: tuple[int, ...] = ()
        self._starts: dict[tuple[int, ...], int] = {}  # where each part's layers begin among all of them
        for part in parts:
            if part.hidden_layers and part.hidden_layers not in self._starts:
                self._starts[part.hidden_layers] = len(self.hidden_layers)
                self.hidden_layers += part.hidden_layers
        self._context: Context | None = None  # of the run it is in
        self._views: dict[tuple[int, ...], Context] = {}  # of it, by the layers of a part, if those are not all

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        notes: list[str] = []
        for part in self.parts:
            most = gamma if part is self.parts[0] or self.second_gamma is None else min(gamma, self.second_gamma)
            draft = part.propose(self._seen_by(part, ctx), most, sampler, rng)
            notes += [draft.note] if draft.note else []
            if len(draft):
                return replace(draft, note=" ".join(notes) or None, by=(part.kind,) * len(draft))
        return Draft.empty(" ".join(notes) or None)

    def _seen_by(self, part: Drafter, ctx: Context) -> Context:
        """The context with the hidden states of the part's layers alone; the same object throughout a run."""
        layers = part.hidden_layers
        if not layers or layers == self.hidden_layers or ctx.hidden is None:
            return ctx
        if ctx is not self._context:
            self._context, self._views = ctx, {}
        view = self._views.setdefault(layers, Context(ctx.tokens, None, ctx.detail))
        width = ctx.hidden.shape[1] // len(self.hidden_layers)
        view.hidden = ctx.hidden[:, self._starts[layers] * width : (self._starts[layers] + len(layers)) * width]
        return view
