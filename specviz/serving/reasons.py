"""Why drafters can't be launched elsewhere, in one sentence."""

from __future__ import annotations

from specviz.serving.deployment import Deployment, weights

SHIPPED = {
    "eagle": "This project's EAGLE head comes with it alone: state and embedding meet in front of its layer, which no "
    "other engine reads. `train eagle3` without --joined writes the public layout.",
    "medusa": "This project's Medusa heads come with it alone: they have a matrix of their own in front of the shared "
    "LM head, which no other engine reads.",
    "mtp": "This project's multi-token-prediction layer comes with it alone: other engines read such layers from the "
    "target's own checkpoint.",
    "draft-model": "This project's small draft model comes with it alone: it leans on rows of the target's own "
    "embeddings and LM head, so it is no model by itself.",
    "early-exit": "This project's adapter for an early exit comes with it alone, and no other engine drafts so.",
}


def not_read(engine: str, plan: Deployment, part: str) -> str:
    """The sentence for a part that the engine does not launch."""
    source = weights(plan, part)
    if source == "shipped" and part in SHIPPED:
        return SHIPPED[part]
    if part == "early-exit":
        return f"{engine} does not draft with the target's own first layers."
    if part == "library":
        method = plan.setting("method", "universal")
        if method == "mtp":
            return f"{engine} does not draft with the layers that {plan.target.name} brings along."
        if plan.drafter is None:
            return "No model is named that could draft; choose one."
        if method == "universal":
            return f"{engine} drafts only with models that share the target's tokenizer."
    if source == "none" and part in ("eagle", "medusa", "mtp"):
        return f"No trained weights are named that draft as {part}; name a folder or a Hub id."
    if source == "head" and plan.drafter is not None:
        return f"{engine} does not draft with {plan.drafter.name}, trained weights of a kind that it does not read."
    return f"{engine} does not draft in the manner of {part}."
