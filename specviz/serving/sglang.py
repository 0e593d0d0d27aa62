"""SGLang. Options checked in the wheel of SGLang 0.5.23: srt/arg_groups/fields/{model,parallel,spec,observability}.py,
srt/arg_groups/speculative_hook.py, srt/configs/model_config.py, srt/models/, srt/speculative/ and srt/sampling/.
"""

from __future__ import annotations

from collections.abc import Callable

from specviz.presets import ModelSource
from specviz.serving.answer import UNVERIFIED, Told, Unsupported, only_part, shell
from specviz.serving.deployment import Deployment, weights
from specviz.serving.models import head_form, is_fp8, known, pads_differ, reference, revision, serving_options
from specviz.serving.reasons import not_read
from specviz.serving.requests import Dialect, request

TITLE, CHECKED = "SGLang", "options as of 0.5.23, read in its wheel"
DIALECT = Dialect(off={"top_k": -1, "top_p": 1.0})
# The class that SGLang has for a head, which the head's config.json has to name.
HEAD_CLASSES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
Option = tuple[str, ...]


def tell(plan: Deployment) -> Told:
    """`python -m sglang.launch_server`. Raises Unsupported."""
    part = only_part(plan, TITLE)
    drafting = [] if part is None else _drafting(plan, part)
    name = reference(plan.target)
    options = [("--model-path", name), *serving_options(plan, context="--context-length", parallel="--tp-size")]
    server = shell(["python", "-m", "sglang.launch_server"], [*options, *drafting])
    command = "\n".join([*(_copy_of_head(plan) if part == "eagle" else []), server])
    return Told(command, _differs(plan, part), request=request(plan, name, DIALECT))


def _drafting(plan: Deployment, part: str) -> list[Option]:
    kinds: dict[str, Callable[[Deployment], list[Option]]] = {
        "ngram": _ngram,
        "draft-model": _draft_model,
        "eagle": _eagle,
        "mtp": _mtp,
        "library": _library,
    }
    if part not in kinds:
        raise Unsupported(not_read(TITLE, plan, part))
    return kinds[part](plan)


def _ngram(plan: Deployment) -> list[Option]:
    """Draft tokens are counted with the last committed one, the root of the tree."""
    tokens, breadth = (plan.nodes, plan.branches) if plan.tree else (plan.gamma, 1)
    return [
        ("--speculative-algorithm", "NGRAM"),
        ("--speculative-num-draft-tokens", str(tokens + 1)),
        ("--speculative-ngram-max-bfs-breadth", str(breadth)),
    ]


def _draft_model(plan: Deployment) -> list[Option]:
    source = weights(plan, "draft-model")
    if source not in ("model", "self"):
        raise Unsupported(not_read(TITLE, plan, "draft-model"))
    if pads_differ(plan):
        raise Unsupported(
            "SGLang refuses a draft model whose config states another vocab_size than the target's, if only by "
            f"padding, as that of {reference(plan.drafter or plan.target)} does."
        )
    model = plan.target if source == "self" or plan.drafter is None else plan.drafter
    return [("--speculative-algorithm", "STANDALONE"), *_path(model), *_chain(plan)]


def _path(model: ModelSource) -> list[Option]:
    commit = revision(model)
    path = ("--speculative-draft-model-path", reference(model))
    return [path, ("--speculative-draft-model-revision", commit)] if commit else [path]


def _eagle(plan: Deployment) -> list[Option]:
    if weights(plan, "eagle") != "head" or plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "eagle"))
    form = head_form(plan.drafter)
    if form == "speculators":
        raise Unsupported(
            f"SGLang does not read the layout of {reference(plan.drafter)} (that of vLLM's speculators); choose an "
            "EAGLE-3 head in the layout of its authors."
        )
    options: list[Option] = [
        ("--speculative-algorithm", "EAGLE" if form == "eagle" else "EAGLE3"),
        ("--speculative-draft-model-path", _copied(plan)),
    ]
    return [*options, *_shape(plan)]


def _copied(plan: Deployment) -> str:
    """The folder of a copy of the head, whose config.json names SGLang's class for it."""
    assert plan.drafter is not None
    name = reference(plan.drafter)
    return name if plan.drafter.hub is None else name.rpartition("/")[2]


def _copy_of_head(plan: Deployment) -> list[str]:
    """Lines that make that copy; a folder of the reader's own is theirs to change."""
    assert plan.drafter is not None
    if plan.drafter.hub is None:
        return []
    commit = ["--revision", plan.drafter.hub.revision] if revision(plan.drafter) else []
    folder, named = _copied(plan), HEAD_CLASSES[head_form(plan.drafter)]
    return [
        shell(["hf", "download", plan.drafter.hub.repo, *commit, "--local-dir", folder], []),
        shell(["sed", "-i", f's/"LlamaForCausalLM"/"{named}"/', f"{folder}/config.json"], []),
    ]


def _mtp(plan: Deployment) -> list[Option]:
    if weights(plan, "mtp") != "built-in":
        raise Unsupported(not_read(TITLE, plan, "mtp"))
    return _own_layers(plan)


def _library(plan: Deployment) -> list[Option]:
    method = plan.setting("method", "universal")
    if method == "mtp":
        return _own_layers(plan)
    if method != "dflash" or plan.drafter is None:
        raise Unsupported(not_read(TITLE, plan, "library"))
    return [("--speculative-algorithm", "DFLASH"), *_path(plan.drafter)]


def _own_layers(plan: Deployment) -> list[Option]:
    target = known(plan.target)
    if target is not None and target.architecture == "MellumForCausalLM":
        raise Unsupported("SGLang runs this architecture, but has no code for the layer that predicts further.")
    return [("--speculative-algorithm", "NEXTN"), *_shape(plan)]


def _shape(plan: Deployment) -> list[Option]:
    """What drafts from states can draft trees, and chains of tokens that are drawn."""
    return _tree(plan) if plan.tree else [*_chain(plan), *_tested(plan)]


def _chain(plan: Deployment) -> list[Option]:
    """Draft tokens are counted with the last committed one."""
    return [
        ("--speculative-num-steps", str(plan.gamma)),
        ("--speculative-eagle-topk", "1"),
        ("--speculative-num-draft-tokens", str(plan.gamma + 1)),
    ]


def _tree(plan: Deployment) -> list[Option]:
    return [
        ("--speculative-num-steps", str(plan.gamma)),
        ("--speculative-eagle-topk", str(plan.branches)),
        ("--speculative-num-draft-tokens", str(plan.nodes + 1)),
    ]


def _tested(plan: Deployment) -> list[Option]:
    """How chains are tested: both rules need drafts that were drawn."""
    if plan.rule == "block":
        return [("--speculative-use-block-verification",)]
    return [("--speculative-use-rejection-sampling",)] if plan.samples else []


def _differs(plan: Deployment, part: str | None) -> list[str]:
    says = []
    target = known(plan.target)
    if is_fp8(plan.target):
        says.append("Here the FP8 weights are unpacked to 16 bits; SGLang computes with them as they are.")
    if target is not None and target.architecture == "GPTNeoXForCausalLM":
        says.append(
            f"{UNVERIFIED}SGLang has no code of its own for this architecture and falls back on transformers'; whether "
            "that works under speculation was not found out."
        )
    if part is None:
        return says
    says += _of_kind(plan, part)
    says += _of_drawing(plan, part)
    if plan.confidence:
        says.append(
            "Drafts do not end where the drafter is unsure; --speculative-adaptive varies their length instead."
        )
    says.append(
        "--speculative-num-draft-tokens counts what a pass verifies, the last committed token included: one more than "
        "gamma, or than the tree's nodes."
    )
    says.append(
        "spec_accept_length in meta_info of /generate is completion tokens / verify passes, which counts the prefill's "
        "token and what is cut at the end; the histogram beside it leaves the bonus out."
    )
    return says


def _of_kind(plan: Deployment, part: str) -> list[str]:
    if part == "ngram":
        return [
            "N-grams are looked up in a trie that all requests fill, not in one request's own text, so a draft can "
            "come from another request; shortest and longest match can't be set.",
        ]
    if part == "eagle" and plan.drafter is not None:
        named = HEAD_CLASSES[head_form(plan.drafter)]
        return [
            f"The head's config.json has to name {named} under architectures; LlamaForCausalLM, as heads' authors "
            "often write, stands for a whole model in SGLang."
        ]
    if part == "draft-model":
        return ["The two vocabularies must be equal, id by id, or the server does not start."]
    if part == "library" and plan.setting("method", "") == "dflash":
        return ["The length of a draft is the block that the checkpoint was trained for, whatever gamma is."]
    if part in ("mtp", "library") and known(plan.target) is None:
        return [f"{UNVERIFIED}whether SGLang finds such layers in this checkpoint."]
    return []


def _of_drawing(plan: Deployment, part: str) -> list[str]:
    says = []
    drawn = not plan.tree and (part in ("eagle", "mtp") or plan.setting("method", "") == "mtp")
    if plan.samples and not drawn and part != "ngram":
        says.append(
            "Draft tokens are not drawn but the likeliest are taken, and tested against the target alone (q one-hot): "
            "lossless, but fewer are usually accepted than where they are drawn from q."
        )
    if plan.samples:
        says.append("On a CPU or XPU tokens are tested by argmax at any temperature, so output is then greedy.")
        says.append("A request's seed counts only on a server with --enable-deterministic-inference.")
    if plan.rule == "block" and not drawn:
        says.append("Block verification is for chains of EAGLE heads and MTP layers; each token is tested by itself.")
    if plan.rule == "typical":
        says.append(
            "Typical acceptance is not offered; the launch is lossless. --speculative-accept-threshold-single or -acc "
            "below 1 makes it lossy in a way of its own."
        )
    if plan.sampling.repetition_penalty != 1.0:
        says.append("All tokens of a draft share one step's repetition penalty; here each sees those before it.")
    return says
