"""Tiny random models, tokenizers and drafters for the tests, built in code."""

from __future__ import annotations

import copy
from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler, draw
from specviz.drafters.base import Context
from specviz.models.target import Target

VOCAB = 31

_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,  # tied random embeddings make a model repeat its input
}
ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", _SMALL),
    "qwen": ("qwen3", _SMALL),
    "gpt2": (
        "gpt2",
        {
            "vocab_size": VOCAB,
            "n_embd": 32,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 256,
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-neox": ("gpt_neox", {k: v for k, v in _SMALL.items() if k not in ("num_key_value_heads", "head_dim")}),
    "sliding": ("mistral", {**_SMALL, "sliding_window": 8}),
    "mixed": (
        "gemma3_text",
        {**_SMALL, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "hybrid": (
        "qwen3_5_text",
        {
            **_SMALL,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
        },
    ),
}


def tiny_model(architecture: str = "llama", seed: int = 0, spread: float = 4.0, **overrides: object) -> PreTrainedModel:
    """A random causal LM in fp32. `spread` widens its logits, so that it has opinions and few near ties."""
    model_type, settings = ARCHITECTURES[architecture]
    config = AutoConfig.for_model(model_type, **{**settings, **overrides})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * spread / parameter.shape[-1] ** 0.5)
    return model


def tiny_target(
    architecture: str = "llama", seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None, **overrides: object
) -> Target:
    return Target(tiny_model(architecture, seed, **overrides), tokenizer, name=f"tiny {architecture}")


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), V] from one forward pass without any cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


def reference_decode(
    model: PreTrainedModel, prompt: list[int], budget: int, stop: frozenset[int] = frozenset()
) -> list[int]:
    """Greedy decoding without a cache, the independent reference for everything greedy."""
    tokens = list(prompt)
    for _ in range(budget):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 byte tokens and three special ones: every text has ids, and every emoji is split."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    return tokenizer


def chat_target(seed: int = 0) -> Target:
    """A tiny target that reads and writes text, with a chat template of its own."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    return tiny_target("llama", seed, tokenizer, vocab_size=len(tokenizer))


class FromModel:
    """A drafter's view of a model without a cache: logits after any path. Base of the tree drafters below."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, model: PreTrainedModel, widths: tuple[int, ...]) -> None:
        """widths: children per node at each depth."""
        self.model, self.widths = model, widths

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        return reference_logits(self.model, tokens)[-1]

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        q: list[torch.Tensor] = []
        level = [(ROOT, list(ctx.tokens))]
        for width in self.widths[:gamma]:
            below = []
            for parent, prefix in level:
                here = sampler.probs(self._logits(prefix)[None], prefix)[0]
                for token, q_token in self._children(here, width, rng):
                    tokens.append(token)
                    parents.append(parent)
                    q.append(q_token)
                    below.append((len(tokens) - 1, [*prefix, token]))
            level = below
        return Draft(tuple(tokens), tuple(parents), torch.stack(q)) if tokens else Draft.empty()

    def _children(self, q: torch.Tensor, width: int, rng: torch.Generator) -> list[tuple[int, torch.Tensor]]:
        raise NotImplementedError


class SampledTree(FromModel):
    """Children drawn without replacement; each one's q is what it was drawn from."""

    kind = "sampled tree"

    def _children(self, q: torch.Tensor, width: int, rng: torch.Generator) -> list[tuple[int, torch.Tensor]]:
        children = []
        for _ in range(min(width, int((q > 0).sum()))):
            token = draw(q, rng)
            children.append((token, q))
            q = q.clone()
            q[token] = 0
            q = q / q.sum()
        return children


class TopKTree(FromModel):
    """The likeliest children, chosen and not drawn: their q is one-hot."""

    kind = "top-k tree"

    def _children(self, q: torch.Tensor, width: int, rng: torch.Generator) -> list[tuple[int, torch.Tensor]]:
        tokens = q.topk(min(width, q.numel())).indices.tolist()
        return [(token, torch.nn.functional.one_hot(torch.tensor(token), q.numel()).float()) for token in tokens]
