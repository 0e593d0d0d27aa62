"""How much memory a target and its drafter need, from their configurations alone.

All amounts are bytes. Nothing is loaded: parameters are counted on models built without storage. What there is of
memory, and what a run has really taken, is looked up in `planning.room`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from specviz.errors import NotEnoughMemory
from specviz.models.cache import capacity
from specviz.models.pack import parameters_kept
from specviz.models.skeleton import model_without_storage, mtp_without_storage
from specviz.planning.room import available_bytes, peak_bytes

__all__ = ["Budget", "available_bytes", "check", "estimate", "human", "peak_bytes"]

LOGIT_BYTES = 4  # probabilities are computed in float32 whatever the model's format
STORED_BYTES = 2  # per weight in the files of heads, as nearly all are published
PASS = 256  # tokens of a prompt that go through the model at a time; see `target.PREFILL_CHUNK`
COPIES = 2  # distributions beside the logits of a verify pass: as sampled from, and as shown
SPARE = 20  # at least one part in so many stays free: how far the estimate is off at most
# What a process takes on a CPU beside the models, measured with the default pairing: a tokenizer's entry, and what the
# matrix library compiles and keeps on its first passes.
TOKENIZER_ENTRY, LIBRARIES = 330, 32_000_000
NO_ROWS = ("linear_attention", "mamba", "conv", "moe", "mlp")  # kinds of layers that keep no keys and values


@dataclass(frozen=True, slots=True)
class Budget:
    """Estimated need by part, and what is available, in bytes.

    `kv`, `logits` and `activations` are sums over target and drafter; the last also has the target's states that a head
    reads. `runtime`: what tokenizers and libraries take of a CPU's memory while they work. `headroom` is to stay free,
    for what an allocator leaves unused and for what the estimate does not know.
    """

    weights_target: int
    weights_drafter: int
    kv: int
    logits: int
    headroom: int
    available: int
    activations: int = 0
    runtime: int = 0

    @property
    def expected(self) -> int:
        """What should be taken at the peak: all but the headroom."""
        weights = self.weights_target + self.weights_drafter
        return weights + self.kv + self.logits + self.activations + self.runtime

    @property
    def total(self) -> int:
        """What has to be free before anything is loaded."""
        return self.expected + self.headroom


def estimate(
    target_config: PretrainedConfig,
    *,
    drafter_config: PretrainedConfig | None = None,
    itself: bool = False,
    mtp: bool = False,
    dtype_bytes: int,
    context_tokens: int,
    gamma: int,
    available: int | None = None,
    weight_bytes: int | None = None,
    drafter_weight_bytes: int | None = None,
    head_bytes: int = 0,
    head_layers: int = 0,
    head_states: int = 0,
    packed: bool = False,
    batch: int = 1,
    kv_dtype_bytes: int | None = None,
    on_cpu: bool = False,
    windowed: bool = False,
) -> Budget:
    """The memory that decoding with this pair needs.

    `dtype_bytes`: bytes per weight and cache entry (4 for float32, 2 for bfloat16). `context_tokens`: prompt plus new
    tokens; the caches also hold a draft of `gamma` and the token before it. `drafter_config`: a draft model with
    weights and a cache of its own; a DFlash model in the place of the target is counted without logits. `itself`: the
    target drafts for itself, with the same weights and a second cache. `mtp`: its own multi-token-prediction layers
    draft; raises ValueError if it has none. `available`: bytes there are for it, by default those that are free of the
    CPU's (see `available_bytes`); the sum over all devices where a model is spread.
    `weight_bytes`, `drafter_weight_bytes`: the weights' true size, for checkpoints that stay quantised in memory; by
    default parameters times `dtype_bytes`. `head_bytes`: size of the files of trained heads that draft, which count as
    stored in 16 bits; `head_layers`: how many of their layers have a cache, each as large as one of the target's;
    `head_states`: of how many of the target's layers they keep the states of every token.
    `packed`: weights are packed as they are loaded (see `pack.packs`), so LM heads that are tied to the embeddings
    are in memory twice. `batch`: sequences at a time. `kv_dtype_bytes`: of a cache in another format. `on_cpu`: the
    system gives memory as it is written, so that of the caches' buffers only the rows in use count, and tokenizers and
    libraries take theirs of the same. `windowed`: caches keep no more rows than a layer's sliding window, as serving
    engines do; ours keep all.
    """
    configs = [target_config] if drafter_config is None else [target_config, drafter_config]
    weights = [
        count_parameters(config) * dtype_bytes if given is None else given
        for config, given in zip(configs, (weight_bytes, drafter_weight_bytes), strict=False)
    ]
    if packed:
        weights = [
            size + count_kept_by_packing(config) * dtype_bytes for size, config in zip(weights, configs, strict=True)
        ]
    if mtp:
        weights.append(count_mtp_parameters(target_config) * dtype_bytes)
        configs.append(target_config.get_mtp_config())
    if itself:  # a second cache, but the same weights
        configs.append(target_config)
    weights.append(head_weights(head_bytes, dtype_bytes))
    rows = context_tokens + gamma + 1
    kv_dtype = dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    caches = [kv_bytes_by_layer(config, rows, kv_dtype, as_written=on_cpu, windowed=windowed) for config in configs]
    # DFlash models have no vocabulary of their own and draft through the target's LM head.
    vocabulary = getattr(target_config.get_text_config(), "vocab_size", 0)
    widths = [getattr(config.get_text_config(), "vocab_size", vocabulary) for config in configs]
    logits = batch * (gamma + 1) * (sum(widths) + (widths[0] if head_bytes else 0)) * LOGIT_BYTES
    passes = [pass_bytes(config, context_tokens, dtype_bytes) for config in configs]
    if head_layers:
        passes.append(passes[0])  # a head's layer works as one of the target's does
    working = sum(passes)  # what one used is not always given back before the next one asks
    states = context_tokens * head_states * _width(target_config) * dtype_bytes
    if head_states:  # those of a pass come from all layers
        working += layers_bytes(target_config, context_tokens, dtype_bytes)
    # The states are joined after the prompt and again when the first token is added, with as much room beside them.
    joined = states * (2 if on_cpu else 3)
    activations = max(batch * (working + states), batch * joined, COPIES * logits)
    runtime = LIBRARIES + TOKENIZER_ENTRY * sum({*widths}) if on_cpu else 0
    kv = batch * (sum(map(sum, caches)) + head_layers * max(caches[0]))
    expected = sum(weights) + kv + logits + activations + runtime
    return Budget(
        weights_target=weights[0],
        weights_drafter=sum(weights[1:]),
        kv=kv,
        logits=logits,
        # Beyond its weights a model takes up to a fifth of them, as a rule of thumb; what is foreseen of that is no
        # longer unforeseen.
        headroom=max(sum(weights) // 5 - activations - runtime, expected // SPARE),
        available=available_bytes(torch.device("cpu")) if available is None else available,
        activations=activations,
        runtime=runtime,
    )


def head_weights(stored: int, dtype_bytes: int) -> int:
    """Bytes in memory of a trained head whose files have `stored` bytes."""
    return stored * dtype_bytes // STORED_BYTES


def check(budget: Budget) -> None:
    """Raise NotEnoughMemory with the numbers when the need exceeds what is available."""
    if budget.total <= budget.available:
        return
    weights = f"weights {human(budget.weights_target)}"
    if budget.weights_drafter:
        weights += f" + {human(budget.weights_drafter)} for the drafter"
    parts = f"{weights}, KV cache {human(budget.kv)}, logits {human(budget.logits)}"
    raise NotEnoughMemory(
        f"This run needs about {human(budget.total)} of memory ({parts}, activations "
        f"{human(budget.activations + budget.runtime)}, headroom {human(budget.headroom)}) but "
        f"{human(budget.available)} is free, so choose fewer tokens, a 16-bit number format or smaller models, "
        "or close other programs."
    )


def remembered(count: Callable[[PretrainedConfig], int]) -> Callable[[PretrainedConfig], int]:
    """The same count, made once for configurations of the same type and content."""
    known: dict[tuple[type[PretrainedConfig], str], int] = {}

    @functools.wraps(count)
    def looked_up(config: PretrainedConfig) -> int:
        key = type(config), config.to_json_string()
        if key not in known:
            known[key] = count(config)
        return known[key]

    return looked_up


@remembered
def count_parameters(config: PretrainedConfig) -> int:
    """Parameters of the model that `config` describes; tied weights once, quantised ones unpacked."""
    return sum(parameter.numel() for parameter in model_without_storage(config).parameters())


@remembered
def count_kept_by_packing(config: PretrainedConfig) -> int:
    """Those of them that stay in memory beside a packed copy."""
    return parameters_kept(model_without_storage(config))


@remembered
def count_mtp_parameters(config: PretrainedConfig) -> int:
    """Parameters of the model's multi-token-prediction layers; embeddings and LM head, which are its own, not again."""
    model = model_without_storage(config)
    shared = {id(parameter) for parameter in model.parameters()}
    layers = mtp_without_storage(model).parameters()
    return sum(parameter.numel() for parameter in layers if id(parameter) not in shared)


def kv_bytes(config: PretrainedConfig, rows: int, dtype_bytes: int) -> int:
    """Size of the key and value cache for `rows` tokens, all layers together."""
    return sum(kv_bytes_by_layer(config, rows, dtype_bytes))


def kv_bytes_by_layer(
    config: PretrainedConfig, rows: int, dtype_bytes: int, *, as_written: bool = False, windowed: bool = False
) -> list[int]:
    """Size of each layer's key and value cache for `rows` tokens.

    Its buffers double as they fill, and keep all rows even under a sliding window, so that drafts can be taken back.
    `as_written`: what of a buffer holds no row takes no memory. `windowed`: no more rows than the window, exactly.
    Recurrent layers' states, whose size doesn't depend on the length, are left to the headroom.
    """
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    window = getattr(text, "sliding_window", None) if windowed else None
    only = window is not None and not getattr(text, "layer_types", None)  # of all layers, where none is named
    row = kv_row_values(text) * dtype_bytes
    held = rows if as_written or windowed else capacity(rows)
    seen = held if window is None else min(held, int(window))
    return [0 if kind in NO_ROWS else row * (seen if only or "sliding" in kind else held) for kind in kinds]


def kv_row_values(text: PretrainedConfig) -> int:
    """Numbers that an attention layer keeps of each token.

    A key and a value per key-value head; of multi-head latent attention (DeepSeek's) the compressed pair and the
    rotated key, once for all heads, for that is what transformers caches.
    """
    rank, rotated = getattr(text, "kv_lora_rank", None), getattr(text, "qk_rope_head_dim", None)
    if rank and rotated:
        return int(rank) + int(rotated)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * int(heads) * _head_dim(text)


def pass_bytes(config: PretrainedConfig, context_tokens: int, dtype_bytes: int) -> int:
    """Working memory of the largest pass: the last part of the prompt, which attends to all before it.

    Alive at once are the states with their residual and norm, and of a layer either the inner rows of its network or,
    in attention, queries and output, keys and values spread over all heads, and the mask. Scores of attention are not
    kept: all kernels in use work block by block.
    """
    text = config.get_text_config()
    rows = min(PASS, context_tokens)
    states = 3 * rows * _width(text)
    inner = getattr(text, "moe_intermediate_size", None)
    chosen = getattr(text, "num_experts_per_tok", None) or 1
    plain = getattr(text, "intermediate_size", None) or 4 * _width(text)
    network = 3 * rows * max(int(plain), int(inner) * int(chosen) if inner else 0)
    spread = int(text.num_attention_heads) * _head_dim(text)
    attention = 2 * rows * spread + 2 * context_tokens * spread + rows * context_tokens
    return (states + max(network, attention)) * dtype_bytes


def layers_bytes(config: PretrainedConfig, context_tokens: int, dtype_bytes: int) -> int:
    """States of a pass after each layer, and of the embeddings, as a model returns them if any of them is asked for."""
    layers = int(config.get_text_config().num_hidden_layers) + 1
    rows = min(2 * PASS, context_tokens)  # those of a pass are let go when the next one is over
    return layers * rows * _width(config) * dtype_bytes


def _width(config: PretrainedConfig) -> int:
    """Of a state, in numbers."""
    return int(config.get_text_config().hidden_size)


def _head_dim(text: PretrainedConfig) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def human(amount: int) -> str:
    """An amount of bytes, in MB or GB."""
    return f"{amount / 1e9:.2f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"
