"""What each engine is told: commands that a shell reads as they are meant, and a reason wherever there is none."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from public_configs import SHAPES

from specviz.drafters.tree import Shape
from specviz.errors import UserError
from specviz.presets import HubSource, ModelSource, Pairing, load_pairings
from specviz.serving import ENGINES, Deployment, Launch, Sampling, launches
from specviz.serving.deployment import USUAL_BRANCHES, USUAL_NODES
from specviz.serving.models import KNOWN
from specviz.serving.plans import of_preset

PAIRINGS = load_pairings()
SERVERS = [name for name in ENGINES if name != "transformers"]
HOSTILE = 'it\'s $HOME `x`; "y" EOF #'


def plan(pairing: str, title: str, **changes: Any) -> Deployment:
    """A pairing's drafter by its title, with the preset's own draft length."""
    chosen = PAIRINGS[pairing]
    preset = next(each for each in chosen.drafters if each.title == title)
    return replace(of_preset(chosen, preset, preset.defaults.get("gamma", 4), {}), **changes)


def told(engine: str, deployment: Deployment) -> Launch:
    (launch,) = launches(deployment, [engine])
    return launch


def words(command: str) -> list[str]:
    """The words of a command as a shell takes them; a backslash before a line's end joins it to the next."""
    return shlex.split(command.replace("\\\n", " "))


def options(command: str) -> dict[str, str]:
    """Options and their values; of one that takes none, the next option's name."""
    found = words(command)
    return {word: found[place + 1] for place, word in enumerate(found[:-1]) if word.startswith("--")}


def vllm_config(deployment: Deployment) -> dict[str, Any]:
    command = told("vllm", deployment).command
    assert command is not None
    found: dict[str, Any] = json.loads(options(command)["--speculative-config"])
    return found


def trt_config(deployment: Deployment) -> dict[str, Any]:
    """What stands in the YAML file that the command writes."""
    command = told("tensorrt-llm", deployment).command
    assert command is not None
    text = command.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


# --- all of them --------------------------------------------------------------------------------------------------


def everything() -> list[tuple[Pairing, str]]:
    return [(pairing, preset.title) for pairing in PAIRINGS.values() for preset in pairing.drafters]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_drafter_is_launched_or_refused_in_a_sentence(temperature):
    for pairing, title in everything():
        asked = plan(pairing.id, title, sampling=Sampling(temperature=temperature), context=4096)
        for launch in launches(asked):
            assert (launch.command is None) == (launch.unsupported is not None)
            for sentence in [*launch.differs, *([launch.unsupported] if launch.unsupported else [])]:
                assert sentence.endswith(".") and "None" not in sentence and "\n" not in sentence
            assert len(set(launch.differs)) == len(launch.differs)
            if launch.command is None:
                continue
            assert "None" not in launch.command.replace("None,", "")
            if launch.language == "python":
                ast.parse(launch.command)
            else:
                assert words(launch.command)  # quotes are closed
                json.loads(launch.request.body)


def test_plain_decoding_is_launched_everywhere_that_reads_the_target():
    for launch in launches(plan("smollm2-135m", "No drafter")):
        assert launch.command is not None and "specul" not in launch.command and "assist" not in launch.command


def test_without_draft_tokens_nothing_drafts():
    assert [each.command for each in launches(plan("smollm2-135m", "N-gram lookup", gamma=0))] == [
        each.command for each in launches(plan("smollm2-135m", "No drafter"))
    ]


@pytest.mark.parametrize(
    ("title", "word"),
    [
        ("EAGLE head", "joined"),
        ("Multi-token prediction", "checkpoint"),
        ("Medusa heads", "matrix"),
        ("Small draft model", "no model by itself"),
        ("Early exit with adapter", "adapter"),
    ],
)
def test_what_is_shipped_with_this_project_alone_is_launched_nowhere(title, word):
    for launch in launches(plan("smollm2-135m", title)):
        assert launch.command is None and word in launch.unsupported


def test_an_exit_without_its_adapter_is_transformers_own():
    found = {each.engine: each for each in launches(plan("smollm2-135m", "Early exit"))}
    assert [name for name, launch in found.items() if launch.command] == ["transformers"]
    assert "assistant_early_exit=24," in found["transformers"].command
    elsewhere = plan("smollm2-135m", "Early exit with adapter", settings={"exit_layer": 12})
    assert told("transformers", elsewhere).command is not None  # the adapter is for another layer


def test_combinations_run_where_a_lookup_can_stand_before_the_head():
    asked = plan("llama-3.1-8b", "EAGLE-3 head", kind="ngram+eagle", gamma=5, settings={"second_gamma": 3})
    found = {each.engine: each for each in launches(asked)}
    assert [name for name, launch in found.items() if launch.command] == ["llama.cpp", "tensorrt-llm"]
    told_llama = options(found["llama.cpp"].command)
    assert told_llama["--spec-type"] == "ngram-simple,draft-eagle3"
    assert (told_llama["--spec-ngram-simple-size-m"], told_llama["--spec-draft-n-max"]) == ("5", "3")
    assert trt_config(asked)["speculative_config"] == {
        "decoding_type": "Eagle3",
        "speculative_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "max_draft_len": 3,
        "sa_config": {"threshold": 2},
    }
    for kind in ("eagle+ngram", "eagle+draft-model", "ngram+eagle+draft-model"):
        assert told("llama.cpp", replace(asked, kind=kind)).command is None


def test_the_canonical_weights_are_told_from_the_hubs():
    for launch in launches(plan("smollm2-135m", "N-gram lookup")):
        originals = "are not the same weights" in " ".join(launch.differs)
        assert originals == (launch.engine != "llama.cpp")
    llama = told("llama.cpp", plan("smollm2-135m", "N-gram lookup"))
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in llama.command and "4 bits" in llama.differs[0]


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\x85", "\u2028", "\u202e"])
def test_a_name_of_more_than_a_line_is_refused(character: str):
    model = ModelSource("mine", f"a{character}rm -rf x", "unknown", path=Path("/place"))
    fine = ModelSource("fine", "fine", "unknown", path=Path("/fine"))
    for plan in (
        {"target": model},
        {"target": replace(model, name="mine", path=Path(f"/a{character}b"))},
        {"target": replace(model, name="mine", hub=HubSource("a/b", f"v{character}1", None))},
        {"drafter": model},
        {"settings": {"source": f"a{character}b"}},
        {"settings": {f"a{character}b": 1}},
    ):
        with pytest.raises(UserError, match="holds a line break or another control character; give another"):
            Deployment(**{"target": fine, "kind": "ngram", "gamma": 3, **plan})


def test_a_folder_is_a_placeholder_that_no_shell_misreads():
    folder = ModelSource("mine", HOSTILE, "unknown", path=Path("/secret/place") / HOSTILE)
    drafter = replace(folder, id="drafter")
    placeholder = f"/path/to/{HOSTILE}"
    asked = Deployment(folder, "draft-model", 3, {}, drafter)
    found = {each.engine: each for each in launches(asked)}
    assert not any("secret" in each.command + " ".join(each.differs) for each in found.values())
    assert words(found["vllm"].command)[2] == placeholder
    assert vllm_config(asked)["model"] == placeholder
    assert options(found["sglang"].command)["--model-path"] == placeholder
    assert words(found["llama.cpp"].command)[2] == placeholder
    assert trt_config(asked)["speculative_config"]["speculative_model"] == placeholder
    texts = [
        node.value for node in ast.walk(ast.parse(found["transformers"].command)) if isinstance(node, ast.Constant)
    ]
    assert texts.count(placeholder) == 3  # the tokenizer, the model and the assistant
    assert json.loads(found["vllm"].request.body)["model"] == placeholder


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mtp"])
def test_a_head_that_nobody_named_is_asked_for(kind):
    """Only of the default target do some come with the project."""
    for launch in launches(Deployment(PAIRINGS["qwen3-8b"].target, kind, 3)):
        assert launch.command is None and "No trained weights are named" in launch.unsupported


def test_revisions_of_drafters_are_kept_or_asked_for():
    drafter = PAIRINGS["qwen3-0.6b"].target
    asked = plan("qwen3-8b", "Qwen3 0.6B", drafter=replace(drafter, hub=replace(drafter.hub, revision="v2")))
    assert vllm_config(asked)["revision"] == "v2"
    assert options(told("sglang", asked).command)["--speculative-draft-model-revision"] == "v2"
    assert "hf download Qwen/Qwen3-0.6B --revision v2" in told("llama.cpp", asked).command
    assert "No revision can be named" in " ".join(told("tensorrt-llm", asked).differs)
    assert 'from_pretrained("Qwen/Qwen3-0.6B", revision="v2"' in told("transformers", asked).command


def test_dflash_models_draft_where_there_is_code_for_them():
    drafter = ModelSource(
        "dflash", "z-lab/Qwen3-8B-DFlash", "unknown", hub=HubSource("z-lab/Qwen3-8B-DFlash", "main", None)
    )
    asked = Deployment(PAIRINGS["qwen3-8b"].target, "library", 8, {"method": "dflash"}, drafter)
    found = {each.engine: each.command for each in launches(asked)}
    assert vllm_config(asked) == {"method": "dflash", "model": drafter.hub.repo, "num_speculative_tokens": 8}
    assert options(found["sglang"])["--speculative-algorithm"] == "DFLASH"
    assert options(found["llama.cpp"])["--spec-type"] == "draft-dflash" and "--target-model-dir" in found["llama.cpp"]
    assert trt_config(asked)["speculative_config"]["decoding_type"] == "DFlash"
    assert 'speculation_type="dflash"' in found["transformers"]


def test_gated_models_say_so():
    differs = " ".join(told("vllm", plan("llama-3.1-8b", "Llama 3.2 1B")).differs)
    assert "meta-llama/Llama-3.1-8B-Instruct is gated" in differs and "Llama-3.2-1B-Instruct is gated" in differs


def test_an_unknown_engine_is_refused():
    with pytest.raises(UserError, match="no engine 'lmdeploy'"):
        launches(plan("gpt2", "DistilGPT2"), ["lmdeploy"])


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 65},
        {"rule": "lucky"},
        {"context": 0},
        {"tensor_parallel": True},
        {"kind": "eagle9"},
        {"dtype": "int4"},
    ],
)
def test_values_out_of_bounds_are_refused(change):
    with pytest.raises(UserError):
        plan("gpt2", "DistilGPT2", **change)


@pytest.mark.parametrize("sampling", [{"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"seed": "x"}])
def test_sampling_out_of_bounds_is_refused(sampling):
    with pytest.raises(UserError):
        Sampling(**sampling)


# --- engine by engine ---------------------------------------------------------------------------------------------


def test_vllm_ngram():
    assert vllm_config(plan("gpt2", "N-gram lookup")) == {
        "method": "ngram",
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
        "num_speculative_tokens": 5,
    }


def test_vllm_draft_model_draws_its_drafts_where_the_run_does():
    greedy = {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5}
    asked = plan("qwen3-8b", "Qwen3 0.6B")
    assert vllm_config(asked) == greedy
    drawn = replace(asked, sampling=Sampling(temperature=1.0), rule="block")
    assert vllm_config(drawn) == {
        **greedy,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }


def test_vllm_maps_vocabularies_that_differ_if_only_in_padding():
    """It refuses unequal vocab_size otherwise, and then neither draws drafts nor verifies blocks."""
    for pairing, title in (("qwen2.5-coder-7b", "Qwen2.5 Coder 0.5B"), ("gemma-3-4b", "Gemma 3 1B")):
        config = vllm_config(plan(pairing, title, sampling=Sampling(temperature=1.0), rule="block"))
        assert config["use_heterogeneous_vocab"] is True
        assert not {"draft_sample_method", "rejection_sample_method"} & {*config}
    assert "use_heterogeneous_vocab" in vllm_config(plan("qwen3-0.6b", "SmolLM2 135M, another tokenizer"))
    assert "use_heterogeneous_vocab" not in vllm_config(plan("qwen3-1.7b", "Qwen3 0.6B"))


def test_vllm_heads_and_layers():
    assert vllm_config(plan("llama-3.1-8b", "EAGLE-3 head"))["method"] == "eagle3"
    assert vllm_config(plan("qwen3-8b", "EAGLE-3 head"))["method"] == "eagle3"
    assert vllm_config(plan("vicuna-7b", "EAGLE-1 head"))["method"] == "eagle"
    assert vllm_config(plan("qwen3.5-0.8b", "Built-in multi-token prediction")) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert "no longer" in told("vllm", plan("vicuna-7b", "Medusa heads")).unsupported


def test_vllm_server_options():
    asked = plan("vicuna-7b", "N-gram lookup", context=2048, tensor_parallel=2, dtype="bfloat16")
    found = words(told("vllm", asked).command)
    assert found[:3] == ["vllm", "serve", "lmsys/vicuna-7b-v1.3"]
    given = options(told("vllm", asked).command)
    del given["--speculative-config"]
    assert given == {
        "--revision": "c52befa0b918d39b8ba3e3322f5e2ff2614e999e",
        "--dtype": "bfloat16",
        "--max-model-len": "2048",
        "--tensor-parallel-size": "2",
        "--per-request-spec-decode-metrics": "summary",
    }


def test_vllm_warns_of_requests_that_it_refuses():
    asked = plan("gpt2", "N-gram lookup", sampling=Sampling(temperature=1.0, min_p=0.1))
    assert "min_p" in " ".join(told("vllm", asked).differs)


def test_sglang_counts_the_last_token_among_those_it_verifies():
    chain = options(told("sglang", plan("qwen3-8b", "Qwen3 0.6B")).command)
    assert chain == {
        "--model-path": "Qwen/Qwen3-8B",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": "Qwen/Qwen3-0.6B",
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "6",
    }
    tree = options(told("sglang", plan("llama-3.1-8b", "EAGLE-3 head")).command)  # gamma 5, 16 nodes
    assert (tree["--speculative-num-steps"], tree["--speculative-eagle-topk"]) == ("5", "4")
    assert tree["--speculative-num-draft-tokens"] == "17"
    lookup = options(told("sglang", plan("gpt2", "N-gram lookup")).command)
    assert lookup["--speculative-num-draft-tokens"] == "6" and lookup["--speculative-ngram-max-bfs-breadth"] == "1"


def test_sglang_copies_a_head_to_give_it_the_class_that_it_knows():
    lines = told("sglang", plan("vicuna-7b", "EAGLE-1 head")).command.splitlines()
    assert words(lines[0]) == ["hf", "download", "yuhuili/EAGLE-Vicuna-7B-v1.3", "--local-dir", "EAGLE-Vicuna-7B-v1.3"]
    assert words(lines[1])[2:] == ['s/"LlamaForCausalLM"/"LlamaForCausalLMEagle"/', "EAGLE-Vicuna-7B-v1.3/config.json"]


@pytest.mark.parametrize(
    ("sampling", "rule", "flag"),
    [(0.0, "token", None), (1.0, "token", "rejection-sampling"), (1.0, "block", "block-verification")],
)
def test_sglang_tests_chains_of_heads_as_the_run_does(sampling, rule, flag):
    asked = plan("vicuna-7b", "EAGLE-1 head", sampling=Sampling(temperature=sampling), rule=rule)
    used = [word for word in words(told("sglang", asked).command) if word.startswith("--speculative-use-")]
    assert used == ([f"--speculative-use-{flag}"] if flag else [])
    tree = replace(asked, settings={"tree": True, "nodes": 8})
    assert "--speculative-use-" not in told("sglang", tree).command


def test_sglang_refuses_what_it_does():
    for pairing, title in (
        ("qwen2.5-coder-7b", "Qwen2.5 Coder 0.5B"),  # another vocab_size
        ("qwen3-8b", "EAGLE-3 head"),  # the layout of speculators
        ("qwen3-0.6b", "SmolLM2 135M, another tokenizer"),
        ("mellum2.1-12b-mtp", "Built-in multi-token prediction"),
    ):
        assert told("sglang", plan(pairing, title)).command is None


def test_llama_cpp_converts_heads_with_their_target():
    lines = told("llama.cpp", plan("qwen3-8b", "EAGLE-3 head", dtype="bfloat16")).command.splitlines()
    assert words(lines[3]) == [
        *("python", "convert_hf_to_gguf.py", "Qwen3-8B-speculator.eagle3", "--target-model-dir", "Qwen3-8B"),
        *("--outtype", "bf16", "--outfile", "Qwen3-8B-speculator.eagle3.gguf"),
    ]
    server = options("\n".join(lines[4:]))
    assert server["--spec-draft-model"] == "Qwen3-8B-speculator.eagle3.gguf"
    assert (server["--spec-type"], server["--spec-draft-n-max"]) == ("draft-eagle3", "5")


def test_llama_cpp_makes_no_draft_shorter_than_its_match():
    short = options(told("llama.cpp", plan("gpt2", "N-gram lookup", gamma=2)).command)
    assert (short["--spec-ngram-simple-size-n"], short["--spec-ngram-simple-size-m"]) == ("2", "2")
    long = options(told("llama.cpp", plan("gpt2", "N-gram lookup", gamma=8)).command)
    assert (long["--spec-ngram-simple-size-n"], long["--spec-ngram-simple-size-m"]) == ("3", "8")


def test_a_lookup_that_follows_the_most_frequent_match_says_what_engines_do_not():
    asked = plan("gpt2", "N-gram lookup", settings={"pick": "frequent"})
    for launch in launches(asked):
        assert launch.command is None or "most frequent" in " ".join(launch.differs)
    assert "most frequent" not in " ".join(told("vllm", plan("gpt2", "N-gram lookup")).differs)


def test_an_adaptive_draft_length_becomes_a_fixed_one_and_says_so():
    asked = plan("qwen3-8b", "Qwen3 0.6B", gamma_policy="adaptive")
    assert all("asks for 5 throughout" in " ".join(launch.differs) for launch in launches(asked))


def test_llama_cpp_stops_where_the_drafter_is_unsure():
    asked = plan("qwen3-8b", "Qwen3 0.6B", settings={"confidence": 0.4}, gamma_policy="confidence")
    assert options(told("llama.cpp", asked).command)["--spec-draft-p-min"] == "0.4"
    assert "p-min" not in told("llama.cpp", replace(asked, gamma_policy="fixed")).command


def test_llama_cpp_reads_layers_of_the_target_from_its_own_file():
    given = options(told("llama.cpp", plan("qwen3.5-0.8b", "Built-in multi-token prediction")).command)
    assert given["--spec-type"] == "draft-mtp" and "--spec-draft-model" not in given


def test_tensorrt_llm_lookup_of_a_request_alone_and_of_the_newest():
    assert trt_config(plan("qwen3-8b", "N-gram lookup")) == {
        "disable_overlap_scheduler": True,
        "enable_iter_perf_stats": True,
        "speculative_config": {
            "decoding_type": "NGram",
            "max_matching_ngram_size": 3,
            "is_use_oldest": False,
            "is_public_pool": False,
            "max_draft_len": 5,
        },
    }


@pytest.mark.parametrize(("nodes", "kept"), [(16, 16), (3, 5), (60, 20)])
def test_tensorrt_llm_trees_keep_to_its_bounds(nodes, kept):
    """From the depth up to branches times depth."""
    asked = plan("llama-3.1-8b", "EAGLE-3 head", settings={"tree": True, "nodes": nodes, "branches": 4})
    assert trt_config(asked)["speculative_config"] == {
        "decoding_type": "Eagle3",
        "speculative_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "max_draft_len": 5,
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": 4,
        "max_total_draft_tokens": kept,
    }


def test_tensorrt_llm_reads_what_its_list_names():
    assert "GPT2LMHeadModel" in told("tensorrt-llm", plan("gpt2", "DistilGPT2")).unsupported
    assert told("tensorrt-llm", plan("vicuna-7b", "EAGLE-1 head")).command is None
    revision = trt_config(plan("vicuna-7b", "N-gram lookup"))["revision"]
    assert revision == "c52befa0b918d39b8ba3e3322f5e2ff2614e999e"


# --- requests -----------------------------------------------------------------------------------------------------


def test_requests_sample_as_the_run_and_switch_off_what_servers_switch_on():
    sampling = Sampling(temperature=0.7, top_k=20, top_p=0.9, repetition_penalty=1.1, seed=7, max_new_tokens=64)
    sent = {"max_tokens": 64, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 7}
    asked = plan("qwen3-8b", "N-gram lookup", sampling=sampling)
    for engine, name in (("vllm", "repetition_penalty"), ("llama.cpp", "repeat_penalty")):
        body = json.loads(told(engine, asked).request.body)
        del body["messages"], body["model"]
        assert body == {**sent, name: 1.1, **({"min_p": 0.0} if engine == "llama.cpp" else {})}
    off = replace(asked, sampling=Sampling(temperature=0.7))
    filters = {
        engine: {name: json.loads(told(engine, off).request.body).get(name) for name in ("top_k", "top_p", "min_p")}
        for engine in SERVERS
    }
    assert filters == {
        "vllm": {"top_k": 0, "top_p": 1.0, "min_p": None},
        "sglang": {"top_k": -1, "top_p": 1.0, "min_p": None},
        "llama.cpp": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        "tensorrt-llm": {"top_k": None, "top_p": None, "min_p": None},
    }


def test_requests_are_chats_where_the_target_reads_chats():
    chat, raw = told("vllm", plan("qwen3-8b", "No drafter")).request, told("vllm", plan("gpt2", "No drafter")).request
    assert chat.route == "/v1/chat/completions" and "messages" in json.loads(chat.body)
    assert raw.route == "/v1/completions" and "prompt" in json.loads(raw.body)


# --- what is known ------------------------------------------------------------------------------------------------


def test_known_models_are_those_of_the_presets_with_their_sizes():
    used = {model.hub.repo for pairing in PAIRINGS.values() for model in pairing.models if not model.head and model.hub}
    assert {*KNOWN} == used
    for repo, known in KNOWN.items():
        assert known.vocabulary == SHAPES[repo].full().get_text_config().vocab_size, repo


def test_trees_start_from_the_drafters_own_shape():
    assert (Shape().nodes, Shape().branches) == (USUAL_NODES, USUAL_BRANCHES)


def test_nothing_of_it_needs_torch():
    code = (
        "import sys, specviz.serving, specviz.serving.options, specviz.serving.plans; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
