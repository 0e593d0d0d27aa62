"""transformers: a script that decodes one prompt. Checked by running it, on small models, with transformers 5.24.0, of
which generation/{configuration_utils,candidate_generator,utils}.py were read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specviz.presets import ModelSource
from specviz.serving.answer import UNVERIFIED, Told, Unsupported, only_part
from specviz.serving.deployment import Deployment, weights
from specviz.serving.models import is_fp8, known, pads_differ, reference, revision
from specviz.serving.reasons import not_read
from specviz.serving.requests import PROMPT

TITLE, CHECKED = "transformers", "script as of 5.24.0, run on small models"


@dataclass(slots=True)
class Script:
    """What drafting adds to the script: lines before the call, and arguments of it (as source code)."""

    before: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)


def tell(plan: Deployment) -> Told:
    """A Python script around `generate`. Raises Unsupported."""
    part = only_part(plan, TITLE)
    script = Script() if part is None else _drafting(plan, part)
    arguments = {**script.arguments, **_sampling(plan)}
    call = ["output = model.generate(", "    **inputs,", *(f"    {name}={value}," for name, value in arguments.items())]
    lines = [
        *_imports(plan),
        "",
        *_load("tokenizer", "model", plan, plan.target),
        *script.before,
        "",
        *_prompt(plan),
        *([f"torch.manual_seed({plan.sampling.seed})"] if plan.samples else []),
        *call,
        ")",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return Told("\n".join(lines), _differs(plan, part), language="python")


def _imports(plan: Deployment) -> list[str]:
    names = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    return ["import torch", names] if plan.samples or plan.dtype != "auto" else [names]


def _load(tokenizer: str, model: str, plan: Deployment, source: ModelSource) -> list[str]:
    """Lines that load a model and, if it is to have a name, its tokenizer."""
    commit = revision(source)
    name = _text(reference(source)) + (f", revision={_text(commit)}" if commit else "")
    dtype = _text("auto") if plan.dtype == "auto" else f"torch.{plan.dtype}"
    lines = [f"{tokenizer} = AutoTokenizer.from_pretrained({name})"] if tokenizer else []
    return [*lines, f'{model} = AutoModelForCausalLM.from_pretrained({name}, dtype={dtype}, device_map="auto")']


def _prompt(plan: Deployment) -> list[str]:
    if not plan.chat:
        return [f'inputs = tokenizer({_text(PROMPT)}, return_tensors="pt").to(model.device)']
    return [
        f'messages = [{{"role": "user", "content": {_text(PROMPT)}}}]',
        "inputs = tokenizer.apply_chat_template(",
        '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
        ").to(model.device)",
    ]


def _sampling(plan: Deployment) -> dict[str, str]:
    """Arguments of `generate`. Filters that are off are named, because generation configs switch some on."""
    sampling = plan.sampling
    sent: dict[str, Any] = {"max_new_tokens": sampling.max_new_tokens, "do_sample": plan.samples}
    if plan.samples:
        sent |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        if sampling.min_p:
            sent["min_p"] = sampling.min_p
    sent["repetition_penalty"] = sampling.repetition_penalty
    return {name: repr(value) for name, value in sent.items()}


def _drafting(plan: Deployment, part: str) -> Script:
    kinds: dict[str, Callable[[Deployment], Script]] = {
        "ngram": _ngram,
        "draft-model": _draft_model,
        "early-exit": _early_exit,
        "library": _library,
        "mtp": _mtp,
    }
    if part not in kinds:
        raise Unsupported(not_read(TITLE, plan, part))
    target = known(plan.target)
    if target is not None and target.architecture == "Qwen3_5ForConditionalGeneration":
        raise Unsupported(
            "transformers drafts for no model with recurrent layers, since it can't take tokens back there."
        )
    return kinds[part](plan)


def _ngram(plan: Deployment) -> Script:
    match = plan.setting("ngram_max", 3)
    return Script(arguments={"prompt_lookup_num_tokens": repr(plan.gamma), "max_matching_ngram_size": repr(match)})


def _draft_model(plan: Deployment) -> Script:
    source = weights(plan, "draft-model")
    if source == "self" or plan.drafter is None:
        if source == "shipped":
            raise Unsupported(not_read(TITLE, plan, "draft-model"))
        return Script(_length(plan, "model"), {"assistant_model": "model"})
    if source != "model":
        raise Unsupported(not_read(TITLE, plan, "draft-model"))
    if pads_differ(plan):
        if plan.samples:
            raise Unsupported(
                "transformers 5.24 fails when it samples and the two vocabularies differ in padding alone (its issue "
                "45307); at temperature 0 the pair works."
            )
        return _two_tokenizers(plan, plan.drafter)
    before = [*_load("", "assistant", plan, plan.drafter), *_length(plan, "assistant")]
    return Script(before, {"assistant_model": "assistant"})


def _early_exit(plan: Deployment) -> Script:
    layer = plan.setting("exit_layer", None)
    if weights(plan, "early-exit") != "none":
        raise Unsupported(not_read(TITLE, plan, "early-exit"))
    if layer is None:
        raise Unsupported("No exit layer is named; give one.")
    return Script(_length(plan, "model"), {"assistant_early_exit": repr(layer)})


def _library(plan: Deployment) -> Script:
    method = plan.setting("method", "universal")
    if method == "mtp":
        return _own_layers(plan)
    if plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "library"))
    if method == "dflash":
        arguments = {"assistant_model": "assistant", "speculation_type": _text("dflash")}
        return Script(_load("", "assistant", plan, plan.drafter), arguments)
    return _two_tokenizers(plan, plan.drafter)


def _two_tokenizers(plan: Deployment, drafter: ModelSource) -> Script:
    """What transformers wants exactly where the two configs state different sizes of vocabulary."""
    before = [*_load("assistant_tokenizer", "assistant", plan, drafter), *_length(plan, "assistant")]
    names = {"assistant_model": "assistant", "tokenizer": "tokenizer", "assistant_tokenizer": "assistant_tokenizer"}
    return Script(before, names)


def _mtp(plan: Deployment) -> Script:
    if weights(plan, "mtp") != "built-in":
        raise Unsupported(not_read(TITLE, plan, "mtp"))
    return _own_layers(plan)


def _own_layers(plan: Deployment) -> Script:
    return Script(arguments={"use_mtp": "True"})


def _length(plan: Deployment, model: str) -> list[str]:
    """The draft length is read from the drafting model's own generation config; arguments of `generate` are not."""
    config = f"{model}.generation_config"
    return [
        f"{config}.num_assistant_tokens = {plan.gamma}",
        f'{config}.num_assistant_tokens_schedule = "constant"',
        f"{config}.assistant_confidence_threshold = {plan.confidence:g}",
    ]


def _differs(plan: Deployment, part: str | None) -> list[str]:
    says = []
    if is_fp8(plan.target):
        says.append("transformers computes in FP8 on GPUs that can, unlike the run here, which unpacks to 16 bits.")
    if plan.tensor_parallel > 1:
        says.append('device_map="auto" puts whole layers on the GPUs in turn; layers are not split.')
    if part is None:
        return says
    says += _of_kind(plan, part)
    if plan.tree:
        says.append(f"transformers drafts chains alone: of the tree, its depth of {plan.gamma} is left.")
    if plan.rule != "token":
        says.append(f"There is no {plan.rule} rule; each token is tested by itself.")
    says.append("One prompt at a time: a batch is refused while anything drafts. Acceptance is not reported.")
    return says


def _of_kind(plan: Deployment, part: str) -> list[str]:
    if part == "ngram":
        return ["The longest match is followed at its earliest place, and matches go down to one token."]
    if part == "early-exit":
        return ["The exit is set in the model's config while it drafts, so one model serves one generation at a time."]
    if part == "draft-model" and pads_differ(plan):
        refused = (
            "Vocabularies that differ, if only in padding, are taken for different tokenizers, and drafts pass as text."
        )
        return [refused, *_of_two_tokenizers(plan)]
    if part == "library" and plan.setting("method", "universal") == "universal":
        return _of_two_tokenizers(plan)
    if part == "library" and plan.setting("method", "") == "dflash":
        return ["The length of a draft is the block that the checkpoint was trained for, whatever gamma is."]
    if part in ("library", "mtp"):
        says = ["Each layer drafts one token, so drafts have as many as there are layers, whatever gamma is."]
        return says if known(plan.target) else [*says, f"{UNVERIFIED}whether this config names its layers."]
    return []


def _of_two_tokenizers(plan: Deployment) -> list[str]:
    if plan.samples:
        return [
            "When sampling, the drafter's LM head is cut down for good to the tokens that both vocabularies hold, so "
            "load it anew for anything else; here it is left whole."
        ]
    return ["Each piece of text is tokenised apart from the text before it; here the whole text is, in each step."]


def _text(value: str) -> str:
    """A text as source code."""
    return json.dumps(value, ensure_ascii=False)
