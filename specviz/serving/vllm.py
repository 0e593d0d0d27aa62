"""vLLM. Options checked in the wheel of vLLM 0.33.0: config/speculative.py, config/vllm.py, engine/arg_utils.py,
v1/spec_decode/, v1/worker/gpu/spec_decode/, model_executor/models/registry.py and sampling_params.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from specviz.serving.answer import UNVERIFIED, Told, Unsupported, only_part, shell
from specviz.serving.deployment import Deployment, weights
from specviz.serving.models import head_form, is_fp8, known, pads_differ, reference, revision, serving_options
from specviz.serving.reasons import not_read
from specviz.serving.requests import Dialect, request

TITLE, CHECKED = "vLLM", "options as of 0.33.0, read in its wheel"
# What a request leaves out is filled in from the model's generation_config.json.
DIALECT = Dialect(off={"top_k": 0, "top_p": 1.0})


def tell(plan: Deployment) -> Told:
    """`vllm serve` with what drafts as one JSON object. Raises Unsupported."""
    part = only_part(plan, TITLE)
    config = {} if part is None else _speculative_config(plan, part)
    name = reference(plan.target)
    options = serving_options(plan, context="--max-model-len", parallel="--tensor-parallel-size")
    if config:
        options.append(("--speculative-config", json.dumps(config)))
        options.append(("--per-request-spec-decode-metrics", "summary"))
    return Told(
        shell(["vllm", "serve", name], options),
        _differs(plan, part, config),
        request=request(plan, name, DIALECT),
    )


def _speculative_config(plan: Deployment, part: str) -> dict[str, Any]:
    kinds: dict[str, Callable[[Deployment], dict[str, Any]]] = {
        "ngram": _ngram,
        "draft-model": _draft_model,
        "eagle": _eagle,
        "mtp": _mtp,
        "library": _library,
    }
    if part == "medusa" and weights(plan, part) == "head":
        raise Unsupported("vLLM 0.33 no longer drafts with Medusa heads; earlier versions did.")
    if part not in kinds:
        raise Unsupported(not_read(TITLE, plan, part))
    config = {**kinds[part](plan), "num_speculative_tokens": plan.gamma}
    if part != "ngram" and plan.drafter is not None and (commit := revision(plan.drafter)) and "model" in config:
        config["revision"] = commit
    other_vocabulary = "use_heterogeneous_vocab" in config
    if plan.samples and part != "ngram" and not other_vocabulary:
        config["draft_sample_method"] = "probabilistic"
    if plan.rule == "block" and not other_vocabulary:
        config["rejection_sample_method"] = "block"
    return config


def _ngram(plan: Deployment) -> dict[str, Any]:
    return {
        "method": "ngram",
        "prompt_lookup_max": plan.setting("ngram_max", 3),
        "prompt_lookup_min": plan.setting("ngram_min", 1),
    }


def _draft_model(plan: Deployment) -> dict[str, Any]:
    source = weights(plan, "draft-model")
    if source not in ("model", "self"):
        raise Unsupported(not_read(TITLE, plan, "draft-model"))
    model = plan.target if source == "self" or plan.drafter is None else plan.drafter
    config = {"method": "draft_model", "model": reference(model)}
    return {**config, "use_heterogeneous_vocab": True} if pads_differ(plan) else config


def _eagle(plan: Deployment) -> dict[str, Any]:
    if weights(plan, "eagle") != "head" or plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "eagle"))
    method = "eagle" if head_form(plan.drafter) == "eagle" else "eagle3"
    return {"method": method, "model": reference(plan.drafter)}


def _mtp(plan: Deployment) -> dict[str, Any]:
    if weights(plan, "mtp") != "built-in":
        raise Unsupported(not_read(TITLE, plan, "mtp"))
    return {"method": "mtp"}


def _library(plan: Deployment) -> dict[str, Any]:
    method = plan.setting("method", "universal")
    if method == "mtp":
        return {"method": "mtp"}
    if plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "library"))
    if method == "dflash":
        return {"method": "dflash", "model": reference(plan.drafter)}
    return {"method": "draft_model", "model": reference(plan.drafter), "use_heterogeneous_vocab": True}


def _differs(plan: Deployment, part: str | None, config: dict[str, Any]) -> list[str]:
    says = []
    if is_fp8(plan.target):
        says.append("Here the FP8 weights are unpacked to 16 bits; vLLM computes with them as they are.")
    if part is None:
        return says
    says += _of_kind(plan, part, config)
    if plan.tree:
        says.append(f"vLLM drafts chains alone: of the tree, its depth of {plan.gamma} is left.")
    says += _of_drawing(plan, part, config)
    if plan.confidence:
        says.append("Drafts do not end where the drafter is unsure: all have the full length.")
    says.append(
        "num_speculative_tokens does not count the bonus, as gamma does not. num_speculative_tokens_per_batch_size, a "
        "list of [first, last, tokens], shortens drafts in larger batches; 0 tokens switch them off."
    )
    says.append(
        "Reported are mean_acceptance_length (bonus included), under metrics.speculative_decoding in each response, "
        "and the vllm:spec_decode_* counters of /metrics. There, tokens accepted past the end of the text count, too."
    )
    return says


def _of_kind(plan: Deployment, part: str, config: dict[str, Any]) -> list[str]:
    if part == "ngram":
        return [
            "The longest match is followed, as here: at its latest place on a GPU, where drafts that come short are "
            "filled up with the last token and count as drafted; at its earliest place in the older model runner, "
            "whose steps without a match are not counted at all."
        ]
    if pads_differ(plan):
        return [
            "The two models' vocabularies differ in padding, which vLLM refuses; use_heterogeneous_vocab drafts from "
            "the tokens that both have, always the likeliest, in the older model runner."
        ]
    if "use_heterogeneous_vocab" in config:
        return [
            "vLLM maps tokens that both vocabularies hold and drafts from those alone, always the likeliest; here the "
            "drafter's text is tokenised again when decoding is greedy."
        ]
    if part == "draft-model":
        return ["Both configs must state the same vocab_size; where they differ, add use_heterogeneous_vocab."]
    if part == "eagle" and plan.drafter is not None and head_form(plan.drafter) == "eagle":
        return [
            f"{UNVERIFIED}whether this checkpoint loads: vLLM builds the layer that joins state and token without a "
            "bias, and EAGLE's own default has one."
        ]
    if config["method"] == "mtp":
        return _of_mtp(plan)
    return []


def _of_mtp(plan: Deployment) -> list[str]:
    says = []
    if plan.gamma > 1:
        says.append("A checkpoint with one such layer uses it again for each further token; vLLM warns of it.")
    target = known(plan.target)
    if target is None:
        says.append(f"{UNVERIFIED}whether vLLM finds such layers in this checkpoint; it knows 28 types of them.")
    elif target.architecture == "MellumForCausalLM":
        says.append("vLLM runs this architecture, and its extra layer, by transformers' own code for it.")
    return says


def _of_drawing(plan: Deployment, part: str, config: dict[str, Any]) -> list[str]:
    says = []
    if "draft_sample_method" in config:
        says.append(
            "draft_sample_method makes the drafter draw its tokens, as here; by default it takes the likeliest, so q "
            "is one-hot, which is lossless too, but usually accepts fewer."
        )
    if plan.rule == "block":
        taken = "rejection_sample_method" in config
        says.append(
            "Block verification is done by the newer model runner alone (the default on GPUs)."
            if taken
            else "Block verification is not offered with use_heterogeneous_vocab; each token is tested by itself."
        )
    elif plan.rule == "typical":
        says.append("Typical acceptance is not offered; the launch is lossless. (vLLM's own lossy rule is fly.)")
    if plan.sampling.min_p:
        says.append("Requests with min_p are refused while speculation is on, and so are those with logit_bias.")
    return says
