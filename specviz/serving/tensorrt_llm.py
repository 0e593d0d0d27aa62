"""TensorRT-LLM, PyTorch backend. Options checked in the repository's sources, of 2026 and near version 1.4.0.

By file and commit: tensorrt_llm/llmapi/llm_args.py 0004396720, docs/source/features/speculative-decoding.md 04c8822cc4
(which documents --config), docs/source/models/supported-models.md 00b6d5a25c, docs/source/commands/trtllm-serve
0434755f93, tensorrt_llm/serve/openai_protocol.py 0076e9390e; and tensorrt_llm/commands/serve.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import yaml

from specviz.serving.answer import UNVERIFIED, Told, Unsupported, shell
from specviz.serving.deployment import Deployment, weights
from specviz.serving.models import head_form, is_fp8, known, pads_differ, reference, revision
from specviz.serving.reasons import not_read
from specviz.serving.requests import Dialect, request

TITLE, CHECKED = "TensorRT-LLM", "options as of commit 0004396720, near 1.4.0, read in its sources"
# Architectures of the presets' models that the list of supported models names.
READS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM")
FILE, END = "speculative.yaml", "EOF"


def tell(plan: Deployment) -> Told:
    """A YAML file and `trtllm-serve` with it. Raises Unsupported."""
    target = known(plan.target)
    if target is not None and target.architecture not in READS:
        raise Unsupported(f"TensorRT-LLM's list of supported models does not name {target.architecture}.")
    config = _config(plan)
    options: list[tuple[str, ...]] = []
    if config:
        options.append(("--config", FILE))
    if plan.tensor_parallel > 1:
        options.append(("--tp_size", str(plan.tensor_parallel)))
    if plan.context is not None:
        options.append(("--max_seq_len", str(plan.context)))
    name = reference(plan.target)
    command = shell(["trtllm-serve", name], options)
    if config:
        text = yaml.safe_dump(config, sort_keys=False, width=math.inf)
        command = f"cat > {FILE} <<'{END}'\n{text}{END}\n{command}"
    return Told(command, _differs(plan, config), request=request(plan, name, Dialect()))


def _config(plan: Deployment) -> dict[str, Any]:
    """What the YAML file holds, which may be nothing for plain decoding; raises Unsupported."""
    asked = {"revision": revision(plan.target), "dtype": None if plan.dtype == "auto" else plan.dtype}
    top: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not plan.parts:
        return top
    kinds: dict[str, Callable[[Deployment], dict[str, Any]]] = {
        "ngram": _ngram,
        "draft-model": _draft_model,
        "eagle": _eagle,
        "mtp": _mtp,
        "library": _library,
    }
    first, *later = plan.parts
    part = later[0] if first == "ngram" and later in (["eagle"], ["mtp"]) else first
    if later and part == first:
        raise Unsupported(f"TensorRT-LLM combines a lookup with EAGLE-3 or MTP alone, and this is {plan.kind}.")
    if part not in kinds:
        raise Unsupported(not_read(TITLE, plan, part))
    config = kinds[part](plan)
    length = plan.setting("second_gamma", plan.gamma) if later else plan.gamma
    speculative: dict[str, Any] = {**config, "max_draft_len": length}
    if later:
        speculative["sa_config"] = {"threshold": plan.setting("ngram_min", 2)}
    elif plan.samples and part in ("eagle", "mtp", "draft-model"):
        speculative["use_rejection_sampling"] = True
    if plan.tree and part in ("eagle", "mtp"):
        speculative |= _tree(plan)
    if part in ("ngram", "draft-model"):
        top["disable_overlap_scheduler"] = True
    return {**top, "enable_iter_perf_stats": True, "speculative_config": speculative}


def _ngram(plan: Deployment) -> dict[str, Any]:
    return {
        "decoding_type": "NGram",
        "max_matching_ngram_size": plan.setting("ngram_max", 3),
        "is_use_oldest": False,
        "is_public_pool": False,
    }


def _draft_model(plan: Deployment) -> dict[str, Any]:
    source = weights(plan, "draft-model")
    if source not in ("model", "self"):
        raise Unsupported(not_read(TITLE, plan, "draft-model"))
    model = plan.target if source == "self" or plan.drafter is None else plan.drafter
    return {"decoding_type": "Draft_Target", "speculative_model": reference(model)}


def _eagle(plan: Deployment) -> dict[str, Any]:
    if weights(plan, "eagle") != "head" or plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "eagle"))
    form = head_form(plan.drafter)
    if form == "eagle":
        raise Unsupported("TensorRT-LLM reads EAGLE-3 heads; those of EAGLE-1 and 2 are incompatible.")
    if form == "speculators":
        raise Unsupported(
            f"{reference(plan.drafter)} has the layout of vLLM's speculators, which TensorRT-LLM's documentation does "
            "not name; choose an EAGLE-3 head of its authors or of NVIDIA."
        )
    return {"decoding_type": "Eagle3", "speculative_model": reference(plan.drafter)}


def _mtp(plan: Deployment) -> dict[str, Any]:
    if weights(plan, "mtp") != "built-in":
        raise Unsupported(not_read(TITLE, plan, "mtp"))
    return {"decoding_type": "MTP"}


def _library(plan: Deployment) -> dict[str, Any]:
    method = plan.setting("method", "universal")
    if method == "mtp":
        return {"decoding_type": "MTP"}
    if method != "dflash" or plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "library"))
    return {"decoding_type": "DFlash", "speculative_model": reference(plan.drafter)}


def _tree(plan: Deployment) -> dict[str, Any]:
    """A dynamic tree: its draft tokens must number from the depth up to branches * depth."""
    most = plan.branches * plan.gamma
    return {
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": plan.branches,
        "max_total_draft_tokens": min(max(plan.nodes, plan.gamma), most),
    }


def _differs(plan: Deployment, config: dict[str, Any]) -> list[str]:
    says = []
    if is_fp8(plan.target):
        says.append("Here the FP8 weights are unpacked to 16 bits; TensorRT-LLM computes with them as they are.")
    speculative = config.get("speculative_config")
    if speculative is None:
        return says
    says += _of_kind(plan, speculative)
    if plan.drafter is not None and revision(plan.drafter) and "speculative_model" in speculative:
        says.append(f"No revision can be named here: download {plan.drafter.name} to a folder, and name that.")
    tree = "use_dynamic_tree" in speculative
    if plan.tree and not tree:
        says.append(f"This method drafts chains alone: of the tree, its depth of {plan.gamma} is left.")
    if plan.samples:
        says.append(
            "use_rejection_sampling (a prototype, which needs FlashInfer) tests against q; without it the target draws "
            "each token, and a draft token is kept if it is the same, which is exact too."
            if "use_rejection_sampling" in speculative
            else "The target draws each token, and a draft token is kept if it is the same, which is exact."
        )
    if plan.rule != "token":
        says.append(
            f"There is no {plan.rule} rule; each token is tested by itself. Lossy is the relaxed acceptance of MTP."
        )
    if plan.confidence:
        says.append(
            "Drafts do not end where the drafter is unsure; draft_len_schedule shortens them in larger batches."
        )
    if plan.sampling.repetition_penalty != 1.0:
        says.append("Add enable_penalty: true, or requests with a repetition penalty are refused.")
    says.append("max_draft_len does not count the bonus, as gamma does not.")
    says.append(
        "The choices in a response state avg_decoded_tokens_per_iter. With enable_iter_perf_stats, /metrics lists "
        "specDecodingStats for each iteration: numDraftTokens, numAcceptedTokens and acceptanceLength."
    )
    says.append(f"{UNVERIFIED}whether these two count the bonus, and the token of the prefill.")
    return says


def _of_kind(plan: Deployment, speculative: dict[str, Any]) -> list[str]:
    kind = speculative["decoding_type"]
    if kind == "NGram":
        return [
            "N-grams are kept in a pool; the options make it one for each request, of which the newest continuation is "
            "proposed. The shortest match can't be set."
        ]
    says = []
    if kind == "Draft_Target":
        says.append("The two models must share a tokenizer, or hardly anything is accepted.")
        if pads_differ(plan):
            says.append(f"{UNVERIFIED}whether vocabularies that differ in padding, as these two do, work.")
        says.append(f"{UNVERIFIED}the name Draft_Target: the code has it, the documentation also writes DraftTarget.")
    if "sa_config" in speculative:
        says.append(
            "The lookup is a suffix automaton, and replaces the head's draft where the match is at least the threshold "
            "long; all drafts have one length. (Older versions write use_sa_spec and sa_spec_threshold.)"
        )
    if kind == "MTP" and known(plan.target) is None:
        says.append(f"{UNVERIFIED}whether MTP layers of this architecture are read; DeepSeek's are documented.")
    return says
