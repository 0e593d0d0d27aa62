"""How other engines are told to decode with the target, drafter and settings of a run here. Nothing imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specviz.errors import UserError
from specviz.serving import hf, llamacpp, sglang, tensorrt_llm, vllm
from specviz.serving.answer import BATCH, Launch, Told, Unsupported
from specviz.serving.deployment import Deployment, Sampling
from specviz.serving.models import about_models, other_weights

__all__ = ["ENGINES", "Deployment", "Launch", "Sampling", "launches"]


class Engine(NamedTuple):
    title: str
    checked: str
    tell: Callable[[Deployment], Told]


ENGINES = {
    "vllm": Engine(vllm.TITLE, vllm.CHECKED, vllm.tell),
    "sglang": Engine(sglang.TITLE, sglang.CHECKED, sglang.tell),
    "llama.cpp": Engine(llamacpp.TITLE, llamacpp.CHECKED, llamacpp.tell),
    "tensorrt-llm": Engine(tensorrt_llm.TITLE, tensorrt_llm.CHECKED, tensorrt_llm.tell),
    "transformers": Engine(hf.TITLE, hf.CHECKED, hf.tell),
}


def launches(plan: Deployment, engines: Sequence[str] = tuple(ENGINES)) -> tuple[Launch, ...]:
    """How to launch it in each of these engines, named as in ENGINES. Raises UserError for one that is not there."""
    if unknown := [name for name in engines if name not in ENGINES]:
        raise UserError(f"There is no engine {unknown[0]!r}; choose one of {', '.join(ENGINES)}.")
    return tuple(_launch(name, plan) for name in engines)


def _launch(name: str, plan: Deployment) -> Launch:
    title, checked, tell = ENGINES[name]
    try:
        told = tell(plan)
    except Unsupported as why:
        return Launch(name, title, checked, None, unsupported=str(why))
    differs = [*plan.notes, *about_models(plan), *(other_weights(plan) if name != "llama.cpp" else []), *told.differs]
    if "ngram" in plan.parts and plan.setting("pick", "recent") == "frequent":
        differs.append("Here the most frequent continuation of a match is followed; no engine has an option for that.")
    if plan.parts and plan.gamma_policy == "adaptive":
        differs.append(f"Here the draft length goes by measured costs; this asks for {plan.gamma} throughout.")
    if plan.parts and name != "transformers":
        differs.append(BATCH)
    return Launch(name, title, checked, told.command, told.language, tuple(differs), told.request)
