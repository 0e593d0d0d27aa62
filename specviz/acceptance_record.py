"""How much was accepted, in the engine-neutral form of AIPerf, so that runs of any engine stand side by side.

The names and their meaning are those of AIPerf's SpecDecodeAcceptanceRecord (ai-dynamo/aiperf,
docs/reference/spec-decode-acceptance.md), which vLLM's, SGLang's and TensorRT-LLM's figures are brought to; what they
leave open is said in `FIELDS`. To these come the settings without which the figures mean little. Nothing here imports
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from specviz.metrics import outcomes
from specviz.trace import Mode, Trace

ENGINE = "specviz"

FIELDS: dict[str, str] = {
    "engine": "What produced the figures.",
    "mean_acceptance_length": "1 + num_accepted_draft_tokens / num_spec_steps; null without such steps.",
    "draft_acceptance_rate": "num_accepted_draft_tokens / num_draft_tokens; null without draft tokens.",
    "acceptance_histogram": "How many steps accepted exactly so many draft tokens; what no step accepted is left out.",
    "num_accepted_draft_tokens": "Draft tokens that were kept. The token of the target's own that ends a step is not "
    "counted, nor is anything after a stop.",
    "num_draft_tokens": "All draft tokens, in a tree every node, those after a rejection or a stop included.",
    "num_spec_steps": "Verify passes that had a draft. Those without one are plain decoding, counted apart in "
    "undrafted_steps, as vLLM counts drafts and not passes.",
    "num_spec_tokens": "The longest draft that was asked for, of a tree its depth: gamma.",
    "completion_tokens": "Tokens of the output, a stop token included; those of undrafted steps too.",
    "per_step_accepted": "Accepted draft tokens of each such step, in order.",
    "per_step_drafted": "Draft tokens of each such step, in order.",
    "undrafted_steps": "Verify passes without a draft. Not a field of AIPerf's.",
}


class Settings(NamedTuple):
    """Without these the figures mean little. Named as in a trace's header, as far as it has them."""

    mode: Mode
    target: str
    method: str  # the kind of drafter
    method_settings: dict[str, Any]
    gamma: int
    gamma_policy: str
    temperature: float | None  # None where nothing was sampled, not even greedily
    rule: str
    lossless: bool
    dtype: str
    device: str
    seed: int
    batch: int
    chat_template: bool
    weights: dict[str, str]  # hashes or revisions, by name
    date: str
    notes: tuple[str, ...] = ()


def of_counts(
    accepted: Sequence[int], drafted: Sequence[int], completion_tokens: int, settings: Settings
) -> dict[str, Any]:
    """A record from draft tokens accepted and drafted by each verify pass, those without a draft included."""
    pairs = [(kept, tokens) for kept, tokens in zip(accepted, drafted, strict=True) if tokens]
    per_step_accepted, per_step_drafted = [kept for kept, _ in pairs], [tokens for _, tokens in pairs]
    all_kept, all_drafted = sum(per_step_accepted), sum(per_step_drafted)
    return {
        "engine": ENGINE,
        "mean_acceptance_length": 1 + all_kept / len(pairs) if pairs else None,
        "draft_acceptance_rate": all_kept / all_drafted if pairs else None,
        "acceptance_histogram": dict(sorted(Counter(per_step_accepted).items())),
        "num_accepted_draft_tokens": all_kept,
        "num_draft_tokens": all_drafted,
        "num_spec_steps": len(pairs),
        "num_spec_tokens": settings.gamma,
        "completion_tokens": completion_tokens,
        "per_step_accepted": per_step_accepted,
        "per_step_drafted": per_step_drafted,
        "undrafted_steps": len(accepted) - len(pairs),
        **settings._asdict(),
    }


def record(run: Trace) -> dict[str, Any]:
    """The record of a run."""
    header = run.run
    settings = Settings(
        mode=header.mode,
        target=header.target,
        method=header.drafter,
        method_settings=header.drafter_settings,
        gamma=header.gamma,
        gamma_policy=header.gamma_policy,
        temperature=None if header.mode == "synthetic" else header.sampler.get("temperature"),
        rule=header.rule,
        lossless=header.lossless,
        dtype=header.dtype,
        device=header.device,
        seed=header.seed,
        batch=header.batch,
        chat_template=header.chat_template,
        weights=header.weights,
        date=header.date,
        notes=header.notes,
    )
    accepted = [outcomes([step]).accepted for step in run.steps]
    return of_counts(accepted, [len(step.nodes) for step in run.steps], len(run.tokens), settings)
