"""What a suite compares: drafters with their settings and draft lengths. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.drafter_settings import asks_for_tree, bare
from specviz.presets import DrafterPreset

TRIED = ("gamma", "tree", "nodes")  # settings that a suite tries in turn, of a drafter or of a part of one


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of drafting: a drafter's kind with all its settings and weights, and the draft length asked of it."""

    kind: str
    settings: dict[str, Any]
    gamma: int  # of a tree, its depth
    weights: dict[str, str] = field(default_factory=dict)  # hashes or revisions, by name

    @property
    def name(self) -> str:
        """The drafter: its kind, with its weights, which go before a source, and the settings that are not tried."""
        left_out = "source" if self.weights else None
        said = [f"{name} {value}" for name, value in untried(self.settings).items() if name != left_out]
        said += self.weights
        return self.kind + (f" ({', '.join(said)})" if said else "")

    @property
    def is_tree(self) -> bool:
        return asks_for_tree(self.settings)

    @property
    def title(self) -> str:
        """What was varied, in short: "gamma 3", or "8 nodes, depth 3" for a tree."""
        if self.kind == "plain":
            return "-"
        if self.is_tree:
            budgets = [str(value) for name, value in self.settings.items() if bare(name) == "nodes"]
            return f"{'/'.join(budgets) or 'default'} nodes, depth {self.gamma}"
        return f"gamma {self.gamma}"


def usual_settings(kind: str, offered: Sequence[DrafterPreset]) -> dict[str, Any]:
    """What a pairing recommends for the kind in its first preset, what is tried in turn aside; {} if it has none."""
    return untried(next((preset.defaults for preset in offered if preset.kind == kind), {}))


def untried(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings but for those that are tried in turn."""
    return {name: value for name, value in settings.items() if bare(name) not in TRIED}


def arms(
    kind: str, settings: dict[str, Any], gammas: Sequence[int], trees: Sequence[int], depths: Sequence[int]
) -> list[Arm]:
    """What is measured of a drafter: chains of every length, then trees of every node budget at every depth.

    Settings that ask for a tree themselves give that tree alone. `plain` has nothing to vary; measured all the same,
    against itself, it shows how far mere noise goes.
    """
    if kind == "plain":
        return [Arm(kind, settings, 1)]
    if asks_for_tree(settings):
        return [Arm(kind, settings, depth) for depth in depths]
    chains = [Arm(kind, settings, gamma) for gamma in gammas]
    return chains + [
        Arm(kind, {**settings, "tree": True, "nodes": nodes}, depth) for nodes in trees for depth in depths
    ]
