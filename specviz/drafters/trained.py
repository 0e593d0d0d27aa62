"""What drafters with trained weights share: a look at whom the weights are for, and the shape of what they draft."""

from __future__ import annotations

from specviz.drafters.base import Weights
from specviz.drafters.heads.files import about, check_target
from specviz.drafters.tree import Shape
from specviz.models.target import Target


def notes_on(weights: Weights, target: Target) -> tuple[str, ...]:
    """What has to be said of weights that draft for this target. Raises UserError if they were made for another."""
    note = check_target(about(weights.path), target)
    return (*weights.notes, *([note] if note else []))


class WithHeads:
    """A drafter that is a trained head, or several, and drafts a chain or a tree."""

    def __init__(
        self,
        target: Target,
        weights: Weights,
        *,
        are_read: bool,
        tree: bool,
        nodes: int,
        branches: int,
        confidence: float,
    ) -> None:
        """are_read: whether the heads come from the weights' folder, which then must be for this target."""
        self.target, self.name, self.weights = target, weights.name, weights.hash
        self.notes = notes_on(weights, target) if are_read else weights.notes
        self.shape = Shape(nodes, branches) if tree else None
        self.confidence = confidence

    @property
    def deepest(self) -> int | None:
        """How many tokens it can draft one after the other, whatever gamma; None if only gamma bounds that."""
        return None if self.shape is None else self.shape.nodes
