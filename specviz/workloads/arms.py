"""What a suite compares: drafters with their settings and draft lengths. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.presets import DrafterPreset

SWEPT = ("gamma", "tree", "nodes")  # settings that a suite tries in turn, whatever a pairing recommends


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of drafting: a drafter's kind with all its settings and weights, and the draft length asked of it."""

    kind: str
    settings: dict[str, Any]
    gamma: int  # of a tree, its depth
    weights: dict[str, str] = field(default_factory=dict)  # hashes or revisions, by name

    @property
    def is_tree(self) -> bool:
        return self.settings.get("tree") is True

    @property
    def title(self) -> str:
        """What was varied, in short: "gamma 3", or "8 nodes, depth 3" for a tree."""
        if self.kind == "plain":
            return "-"
        if self.is_tree:
            return f"{self.settings.get('nodes', 'default')} nodes, depth {self.gamma}"
        return f"gamma {self.gamma}"


def usual_settings(kind: str, offered: Sequence[DrafterPreset]) -> dict[str, Any]:
    """The settings that a pairing recommends for the kind, but for those that are tried in turn; {} if it has none."""
    defaults: Mapping[str, Any] = next((preset.defaults for preset in offered if preset.kind == kind), {})
    return {name: value for name, value in defaults.items() if name not in SWEPT}


def arms(
    kind: str, settings: dict[str, Any], gammas: Sequence[int], trees: Sequence[int], depths: Sequence[int]
) -> list[Arm]:
    """What is measured of a drafter: chains of every length, then trees of every node budget at every depth.

    Settings that ask for a tree themselves give that tree alone. `plain` has nothing to vary; measured all the same,
    against itself, it shows how far mere noise goes.
    """
    if kind == "plain":
        return [Arm(kind, settings, 1)]
    if settings.get("tree") is True:
        return [Arm(kind, settings, depth) for depth in depths]
    chains = [Arm(kind, settings, gamma) for gamma in gammas]
    return chains + [
        Arm(kind, {**settings, "tree": True, "nodes": nodes}, depth) for nodes in trees for depth in depths
    ]
