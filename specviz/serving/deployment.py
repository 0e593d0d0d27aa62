"""What is to be served: target, drafter, draft length and sampling, as a run here has them. Nothing imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from specviz.drafter_settings import Number, OneOf, Whole, asks_for_tree, bare, check_setting
from specviz.errors import UserError
from specviz.presets import ModelSource, check_drafter

# Where what drafts comes from: nowhere (it needs no weights), a language model, the target itself, layers in the
# target's own checkpoint, trained weights published as a repository or folder, or those that come with this project.
Weights = Literal["none", "model", "self", "built-in", "head", "shipped"]
SHIPPED = Path(__file__).resolve().parents[2] / "assets" / "drafters"
USUAL_NODES, USUAL_BRANCHES = 8, 4  # of a draft tree, where none are named
LEAST = 1e-6  # of top-p, which can't be 0
BOUNDS: dict[str, Whole | Number | OneOf] = {
    "temperature": Number(0, 10),
    "top_k": Whole(0, 1_000_000),
    "top_p": Number(LEAST, 1),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(0.1, 10),
    "seed": Whole(0, 2**63 - 1),
    "max_new_tokens": Whole(1, 10_000_000),
    "rule": OneOf(("token", "block", "typical")),
    "gamma_policy": OneOf(("fixed", "confidence", "adaptive")),
    "context": Whole(1, 100_000_000),
    "tensor_parallel": Whole(1, 1024),
    "dtype": OneOf(("auto", "float32", "float16", "bfloat16")),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; a filter is off at its default. On a server each request brings these."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        """Raises UserError for a value out of bounds."""
        for each in fields(self):
            _check(each.name, getattr(self, each.name))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A target and what drafts for it.

    kind: as a run's (parts of a combination joined by "+"). drafter: the model or trained weights that draft, where
    they are not the target's own or this project's. context: tokens of prompt and answer together that must fit; None
    leaves it to the engine. tensor_parallel: GPUs over which each layer is split. notes: sentences on what is not in
    here.
    """

    target: ModelSource
    kind: str
    gamma: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    drafter: ModelSource | None = None
    chat: bool = True
    rule: str = "token"
    gamma_policy: str = "fixed"
    sampling: Sampling = field(default_factory=Sampling)
    context: int | None = None
    tensor_parallel: int = 1
    dtype: str = "auto"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UserError for a kind that there is not, a value out of bounds, and a name that is more than a line."""
        for what, model in (("target", self.target), ("drafter", self.drafter)):
            for name in _names(model):
                _check_name(f"The {what}'s name", name)
        for setting, value in self.settings.items():
            _check_name("The name of a setting", setting)
            _check_name(f"The setting {setting}", str(value))
        check_drafter(self.kind, self.settings, "The drafter")
        check_setting("gamma", self.gamma, "gamma")
        for name in ("rule", "gamma_policy", "tensor_parallel", "dtype"):
            _check(name, getattr(self, name))
        if self.context is not None:
            _check("context", self.context)

    @property
    def parts(self) -> list[str]:
        """The kinds that draft; none where nothing does."""
        return [] if self.kind == "plain" or self.gamma == 0 else self.kind.split("+")

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn, rather than the likeliest one taken."""
        return self.sampling.temperature > 0

    @property
    def tree(self) -> bool:
        return asks_for_tree(self.settings)

    @property
    def nodes(self) -> int:
        """Draft tokens of a tree, at most."""
        return int(self.setting("nodes", USUAL_NODES))

    @property
    def branches(self) -> int:
        """Children looked at for each token of a tree."""
        return int(self.setting("branches", USUAL_BRANCHES))

    @property
    def confidence(self) -> float:
        """Below it a draft ends; 0 where the draft length does not go by it."""
        return float(self.setting("confidence", 0.0)) if self.gamma_policy == "confidence" else 0.0

    def setting(self, name: str, otherwise: Any) -> Any:
        """A setting of the drafter; in a combination, of the first part that has it."""
        return next((value for key, value in self.settings.items() if bare(key) == name), otherwise)


def _names(model: ModelSource | None) -> list[str]:
    """All that engines could be told of a model."""
    if model is None:
        return []
    hub = [model.hub.repo, model.hub.revision] if model.hub is not None else []
    return [model.id, model.name, *hub, *([str(model.path)] if model.path is not None else [])]


def _check_name(what: str, name: str) -> None:
    """It becomes part of scripts that are pasted into a shell, where a line break would begin a command."""
    if not name.isprintable():
        raise UserError(f"{what}, {name!r:.60}, holds a line break or another control character; give another.")


def _check(name: str, value: object) -> None:
    if not BOUNDS[name].holds(value):
        raise UserError(f"{name.replace('_', ' ')} is {value!r:.60}; give {BOUNDS[name]}.")


def weights(plan: Deployment, part: str) -> Weights:
    """Where that part's weights come from."""
    if part in ("plain", "ngram"):
        return "none"
    if part == "library":
        return "built-in" if plan.setting("method", "universal") == "mtp" else "model"
    if plan.drafter is not None:
        if plan.drafter.id == plan.target.id:
            return "self" if part == "draft-model" else "built-in"
        return "head" if plan.drafter.head else "model"
    if part == "draft-model":
        source = str(plan.setting("source", ""))
        return "shipped" if source != "self" and shipped(plan.target, part) is not None else "self"
    if part == "early-exit":
        return "shipped" if _reads_adapter(plan) else "none"
    return "shipped" if shipped(plan.target, part) is not None else "none"


def shipped(target: ModelSource, kind: str) -> Path | None:
    """The folder of the trained drafter of that kind that comes with this project for the target, if one does."""
    folder = SHIPPED / target.id / kind
    return folder if (folder / "config.json").is_file() else None


def _reads_adapter(plan: Deployment) -> bool:
    """Whether early exit drafts through a trained adapter: one is shipped, for this exit, and not switched off."""
    folder = shipped(plan.target, "early-exit")
    if folder is None or not plan.setting("adapter", True):
        return False
    trained_for = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("exit_layer")
    return bool(plan.setting("exit_layer", trained_for) == trained_for)
