"""The public models and heads in `presets/pairings.yaml`: what decides their architecture and their memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, PretrainedConfig

LITGPT = "https://github.com/Lightning-AI/litgpt/blob/main/litgpt/config.py"  # each entry links its config.json
MELLUM = "https://github.com/huggingface/transformers/blob/main/src/transformers/models/mellum"  # the config's defaults
DISTILGPT2_CARD = "https://huggingface.co/distilbert/distilgpt2/blob/9851938d078d6b457355cdbe866dd9fa2ed3b210/README.md"
GEMMA_270M = "https://huggingface.co/PostAlign/Didimdol_sLLM"  # made from it; the MLP's width fits its 268 M parameters
GPT2_PAPER = "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf"

HUB = "https://huggingface.co"
VICUNA = f"{HUB}/wang7776/vicuna-7b-v1.3-attention-sparsity-20/commit/9ffb1e27f2672d68db2b5b2fb08d38e401e7c18d"
# The linear attention has 16 heads for the values, of transformers' size: with 32, as by default, the language model
# would have 0.87 B parameters instead of the 0.8 B that https://huggingface.co/CrowdMind/Qwen3.5-0.8B-Base-4bit has.
QWEN_35 = "https://apxml.com/models/qwen35-08b"
EAGLE3_LLAMA = f"{HUB}/nm-testing/EAGLE3-LLaMA3.1-Instruct-8B-converted/blob/main/config.json"  # made from it
EAGLE3_QWEN = f"{HUB}/minseokim25/Qwen3-8B-Eagle3-NeMoRL-RedhatAI-thinking"  # made from its sibling
EAGLE_VICUNA = f"{HUB}/yuhuili/EAGLE-Vicuna-7B-v1.3/tree/7eb58b1b31cd2dbfcd7870f2e8c6d3f3ce8457ed"
MEDUSA_VICUNA = f"{HUB}/FasterDecoding/medusa-vicuna-7b-v1.3/tree/76cb47329b3fb062e05e5920cf4d8a454979c2d8"

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@dataclass(frozen=True, slots=True)
class Shape:
    """One public model. `vocabulary`: whose token ids it reads. `source`: where its sizes were looked up."""

    model_type: str
    vocabulary: str
    source: str
    config: dict[str, Any] = field(default_factory=dict)

    def full(self) -> PretrainedConfig:
        """Its config at full size."""
        return AutoConfig.for_model(self.model_type, **self.config)


@dataclass(frozen=True, slots=True)
class Head:
    """One public head. `layout`: of its tensors, as `standin_heads` names them. `weights`: the file that holds them.

    `size`: of that file, in bytes. `source`: where its files or its configuration were looked up. `config`: what its
    config.json says.
    """

    layout: str
    weights: str
    size: int
    source: str
    config: dict[str, Any]


def _decoder(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": tied,
        **more,
    }


def _gpt_neox(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"vocab_size": 50304, "intermediate_size": 4 * hidden, **sizes}


def _five_to_one(layers: int) -> list[str]:
    """Gemma 3: five layers with a sliding window for each one without."""
    return ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)]


def _three_to_one(layers: int) -> list[str]:
    """Mellum 2: a sliding window on three of every four layers (arXiv 2605.31268)."""
    return ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(layers)]


def _three_linear_to_one(layers: int) -> list[str]:
    """Qwen3.5: a recurrent layer in three of every four."""
    return ["linear_attention" if (layer + 1) % 4 else "full_attention" for layer in range(layers)]


QWEN3_8B = _decoder(151936, 4096, 12288, 36, 32, 8, tied=False, head_dim=128)
LLAMA_32_1B = _decoder(128256, 2048, 8192, 16, 32, 8, tied=True, head_dim=64)
GEMMA_3_4B = {
    "text_config": _decoder(262208, 2560, 10240, 34, 8, 4, tied=True, head_dim=256, layer_types=_five_to_one(34)),
    # The 400M SigLIP encoder of the Gemma 3 report (arXiv 2503.19786), which reads 896 x 896 pixels.
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "patch_size": 14,
        "image_size": 896,
        "vision_use_head": False,
    },
}

QWEN_35_SMALL = {
    "text_config": _decoder(
        248320,
        1024,
        3584,
        24,
        8,
        2,
        tied=True,
        head_dim=256,
        layer_types=_three_linear_to_one(24),
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        mtp_num_hidden_layers=1,
    ),
    "vision_config": {},  # it is never loaded, so it has the sizes of transformers
    "tie_word_embeddings": True,
}

SHAPES: dict[str, Shape] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(
        "llama", "smollm2", LITGPT, _decoder(49152, 576, 1536, 30, 9, 3, tied=True)
    ),
    "HuggingFaceTB/SmolLM2-360M-Instruct": Shape(
        "llama", "smollm2", LITGPT, _decoder(49152, 960, 2560, 32, 15, 5, tied=True)
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Shape(
        "llama", "smollm2", LITGPT, _decoder(49152, 2048, 8192, 24, 32, 32, tied=True)
    ),
    "distilbert/distilgpt2": Shape("gpt2", "gpt2", DISTILGPT2_CARD, {"n_embd": 768, "n_layer": 6, "n_head": 12}),
    "openai-community/gpt2": Shape("gpt2", "gpt2", GPT2_PAPER, {"n_embd": 768, "n_layer": 12, "n_head": 12}),
    "openai-community/gpt2-xl": Shape("gpt2", "gpt2", GPT2_PAPER, {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "EleutherAI/pythia-70m": Shape("gpt_neox", "neox", LITGPT, _gpt_neox(512, 6, 8)),
    "EleutherAI/pythia-410m": Shape("gpt_neox", "neox", LITGPT, _gpt_neox(1024, 24, 16)),
    "Qwen/Qwen3-0.6B": Shape("qwen3", "qwen", LITGPT, _decoder(151936, 1024, 3072, 28, 16, 8, tied=True, head_dim=128)),
    "Qwen/Qwen3-1.7B": Shape("qwen3", "qwen", LITGPT, _decoder(151936, 2048, 6144, 28, 16, 8, tied=True, head_dim=128)),
    "Qwen/Qwen3-8B": Shape("qwen3", "qwen", LITGPT, QWEN3_8B),
    "Qwen/Qwen3-8B-FP8": Shape("qwen3", "qwen", LITGPT, {**QWEN3_8B, "quantization_config": FP8}),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": Shape(
        "qwen2", "qwen", LITGPT, _decoder(151936, 896, 4864, 24, 14, 2, tied=True)
    ),
    "Qwen/Qwen2.5-Coder-7B-Instruct": Shape(
        "qwen2", "qwen", LITGPT, _decoder(152064, 3584, 18944, 28, 28, 4, tied=False)
    ),
    "meta-llama/Llama-3.2-1B-Instruct": Shape("llama", "llama3", LITGPT, LLAMA_32_1B),
    "meta-llama/Llama-3.1-8B-Instruct": Shape(
        "llama", "llama3", LITGPT, _decoder(128256, 4096, 14336, 32, 32, 8, tied=False, head_dim=128)
    ),
    "facebook/layerskip-llama3.2-1B": Shape("llama", "llama3", LITGPT, LLAMA_32_1B),
    "lmsys/vicuna-7b-v1.3": Shape("llama", "llama2", VICUNA, _decoder(32000, 4096, 11008, 32, 32, 32, tied=False)),
    "Qwen/Qwen3.5-0.8B": Shape("qwen3_5", "qwen3.5", QWEN_35, QWEN_35_SMALL),
    "google/gemma-3-270m-it": Shape(
        "gemma3_text",
        "gemma3",
        GEMMA_270M,
        _decoder(262144, 640, 2048, 18, 4, 1, tied=True, head_dim=256, layer_types=_five_to_one(18)),
    ),
    "google/gemma-3-1b-it": Shape(
        "gemma3_text",
        "gemma3",
        LITGPT,
        _decoder(262144, 1152, 6912, 26, 4, 1, tied=True, head_dim=256, layer_types=_five_to_one(26)),
    ),
    "google/gemma-3-4b-it": Shape("gemma3", "gemma3", LITGPT, GEMMA_3_4B),
    "JetBrains/Mellum2.1-12B-A2.5B-Thinking-MTP": Shape(
        "mellum",
        "mellum",
        MELLUM,
        _decoder(
            98304,
            2304,
            7168,
            28,
            32,
            4,
            tied=False,
            head_dim=128,
            layer_types=_three_to_one(28),
            moe_intermediate_size=896,
            num_experts=64,
            num_experts_per_tok=8,
            num_nextn_predict_layers=1,
        ),
    ),
}

# Size of the one file that holds a model and the layers that predict further: 0.9 B parameters in 16 bits.
CHECKPOINTS = {"Qwen/Qwen3.5-0.8B": 1_800_000_000}

EAGLE3_LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "model_type": "llama",
    **_decoder(128256, 4096, 14336, 1, 32, 8, tied=False, head_dim=128),
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
}
EAGLE3_QWEN_CONFIG = {
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32000,
    "eagle_aux_hidden_state_layer_ids": None,
    "norm_before_residual": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "Qwen/Qwen3-8B"},
    },
    "speculators_model_type": "eagle3",
    "target_hidden_size": None,
    "transformer_layer_config": {
        "attention_bias": False,
        "hidden_act": "silu",
        "mlp_bias": False,
        "model_type": "llama",
        **_decoder(151936, 4096, 12288, 1, 32, 8, tied=False, head_dim=128),
        "rms_norm_eps": 1e-06,
    },
}
EAGLE_VICUNA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 32000,
}
MEDUSA_VICUNA_CONFIG = {  # the file says 2 heads and has 5
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}

HEADS: dict[str, Head] = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": Head(
        "eagle3", "pytorch_model.bin", 850_000_000, EAGLE3_LLAMA, EAGLE3_LLAMA_CONFIG
    ),
    # 1 B parameters in 16 bits, most of them its own embeddings.
    "RedHatAI/Qwen3-8B-speculator.eagle3": Head(
        "speculators", "model.safetensors", 2_040_000_000, EAGLE3_QWEN, EAGLE3_QWEN_CONFIG
    ),
    # In 32 bits.
    "yuhuili/EAGLE-Vicuna-7B-v1.3": Head(
        "eagle", "pytorch_model.bin", 1_470_000_000, EAGLE_VICUNA, EAGLE_VICUNA_CONFIG
    ),
    "FasterDecoding/medusa-vicuna-7b-v1.3": Head(
        "medusa", "medusa_lm_head.pt", 1_480_000_000, MEDUSA_VICUNA, MEDUSA_VICUNA_CONFIG
    ),
}
