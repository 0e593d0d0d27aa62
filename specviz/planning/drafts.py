"""What a drafter brings into memory, from its preset."""

from __future__ import annotations

from specviz.drafters import ASSISTED, SELF, WEIGHTED
from specviz.drafters.tree import Shape
from specviz.errors import UserError
from specviz.planning.configs import Known, KnownHead, known, known_head, shipped_head
from specviz.planning.planner import Drafting
from specviz.presets import DrafterPreset


def of_preset(preset: DrafterPreset, target: Known, *, offline: bool) -> Drafting:
    """A separate model, trained heads, the target again, or nothing; raises UserError if it is not known which."""
    kinds, model = preset.kind.split("+"), preset.model
    if preset.defaults.get("method") == "mtp":
        return Drafting(preset.title, mtp=True)
    if model is not None and model.head:
        return Drafting(preset.title, heads=(known_head(model, preset.kind, target.config, offline=offline),))
    if model is not None:
        found = known(model, offline=offline)
        return Drafting(f"{found.name}, {found.source}", config=found.config)
    if preset.defaults.get("source") == SELF:
        return Drafting(preset.title, itself=True)
    heads = [head for kind in kinds if (head := _head(kind, target)) is not None]
    return Drafting(preset.title, heads=tuple(heads), itself="draft-model" in kinds and not heads)


def nodes(preset: DrafterPreset) -> int:
    """Tokens in a draft tree of the preset; 0 for chains."""
    trees = [name for name, value in preset.defaults.items() if name.rpartition(".")[2] == "tree" and value]
    sizes = [value for name, value in preset.defaults.items() if name.rpartition(".")[2] == "nodes"]
    return max((int(size) for size in sizes), default=Shape().nodes) if trees else 0


def _head(kind: str, target: Known) -> KnownHead | None:
    """The trained one that is shipped for this part; None for parts that need none."""
    if kind not in {*ASSISTED, *WEIGHTED, "early-exit"}:
        return None
    found = shipped_head(kind, target.name)
    if found is None and kind in WEIGHTED and kind != "early-exit" and kind not in ASSISTED:
        raise UserError(f"No trained {kind} drafter comes for {target.name}, so name one with --drafter-path.")
    return found
