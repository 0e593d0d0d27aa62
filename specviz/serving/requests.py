"""An example request for servers that speak OpenAI's protocol: sampling is a matter of the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specviz.serving.answer import Request
from specviz.serving.deployment import Deployment

PROMPT = "List three fruits, twice."


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an engine calls the parameters that OpenAI's protocol lacks, and how it is told that a filter is off.

    off: parameters to send where they are off here, because the server would otherwise fill in defaults of its own.
    """

    repetition_penalty: str = "repetition_penalty"
    off: Mapping[str, Any] = field(default_factory=dict)


def request(plan: Deployment, model: str, dialect: Dialect) -> Request:
    """A request that samples as the run here; `model`: what the server calls it."""
    chat = plan.chat
    asked = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    body = {"model": model, **asked, **_sampling(plan, dialect)}
    return Request("/v1/chat/completions" if chat else "/v1/completions", json.dumps(body, indent=2))


def _sampling(plan: Deployment, dialect: Dialect) -> dict[str, Any]:
    """At temperature 0 the filters and the seed decide nothing, and are left out."""
    sampling = plan.sampling
    sent: dict[str, Any] = {"max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
    if plan.samples:
        filters = {"top_k": (sampling.top_k, 0), "top_p": (sampling.top_p, 1.0), "min_p": (sampling.min_p, 0.0)}
        for name, (value, off) in filters.items():
            if value != off:
                sent[name] = value
            elif name in dialect.off:
                sent[name] = dialect.off[name]
        sent["seed"] = sampling.seed
    if sampling.repetition_penalty != 1.0:
        sent[dialect.repetition_penalty] = sampling.repetition_penalty
    return sent
