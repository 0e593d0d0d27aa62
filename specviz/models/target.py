"""The target: the model whose output we want, as the three calls that speculative decoding needs of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.decoding.draft import ROOT, Draft
from specviz.errors import Cancelled, UserError
from specviz.models.cache import PrefixCache, Snapshot
from specviz.models.placement import compute_dtype, input_device
from specviz.models.probe import check_rollback

PREFILL_CHUNK = 256  # tokens per forward pass over a prompt: bounds its memory, and how long a stop has to wait
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # what transformers' base models call it


class Target:
    """A causal language model with a cache of the tokens committed so far, all but the last.

    Not thread-safe: one decode at a time. `prefill` starts anew, whatever an earlier run left behind.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "",
        weights: str = "",
    ) -> None:
        """Raises UserError for a model that can't be rolled back after a rejection.

        name: shown to the user; weights: a hash or revision that identifies the parameters.
        """
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or model.config.model_type
        self.weights = weights
        self.config = model.config.get_text_config(decoder=True)
        self.cache = PrefixCache(self.config)
        inputs = inspect.signature(model.forward).parameters
        if "cache" not in inputs:
            raise UserError(f"{self.name} takes no cache, so it can't be rolled back; choose another model.")
        check_rollback(model, self.name)
        self._takes_positions = "position_ids" in inputs
        self._pending: tuple[int, list[int], Snapshot | None] | None = None
        self._hidden_layers: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where token ids go in; logits and hidden rows come back there, wherever the layers lie."""
        return input_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self.model)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def max_tokens(self) -> int | None:
        """Positions the model was made for; None if it names no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The model's end-of-text tokens: generation config, config and tokenizer together."""
        generation = getattr(self.model, "generation_config", None)
        named = [getattr(source, "eos_token_id", None) for source in (generation, self.config, self.tokenizer)]
        return frozenset(
            token for ids in named for token in (ids if isinstance(ids, list) else [ids]) if token is not None
        )

    def prefill(
        self,
        tokens: Sequence[int],
        hidden_layers: tuple[int, ...] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """Read a prompt (all but its last token) into a fresh cache; an empty one is fine.

        Returns the hidden rows of `hidden_layers`, [len(tokens), len(hidden_layers) * D], or None if none are asked
        for. Layer i is transformers' `hidden_states[i]`: 0 the embeddings, i the output of the i-th layer, and
        the last one after the final norm. Raises Cancelled within PREFILL_CHUNK tokens of `should_stop()` being true.
        """
        self.cache = PrefixCache(self.config)
        self._hidden_layers = hidden_layers
        self._pending = None
        rows = []
        for start in range(0, len(tokens), PREFILL_CHUNK):
            if should_stop():
                raise Cancelled
            chunk = tokens[start : start + PREFILL_CHUNK]
            output = self.model.base_model(**self._inputs(chunk, start))  # no logits are needed here
            rows.append(self._hidden_rows(output))
        if not hidden_layers:
            return None
        width = len(hidden_layers) * int(self.config.hidden_size)
        return torch.cat(
            [torch.empty(0, width, device=self.device, dtype=self.dtype), *[row for row in rows if row is not None]]
        )

    def verify(self, last: int, draft: Draft) -> tuple[Tensor, Tensor | None]:
        """One forward pass over the last committed token and the draft.

        Returns float32 logits [n+1, V] and the hidden rows [n+1, len(hidden_layers) * D] (None if none were asked for);
        row 0 belongs to the last committed token, row i+1 to node i. `keep` must follow.
        """
        base = len(self.cache)
        recurrent = self.cache.is_recurrent
        if recurrent and not draft.is_chain:
            raise UserError(f"{self.name} has recurrent layers, which can't verify a tree; use a chain.")
        if not self._takes_positions and not draft.is_chain:
            raise UserError(f"{self.name} can't be told where a tree's tokens stand; use a chain.")
        tokens = [last, *draft.tokens]
        self._pending = (base, tokens, self.cache.snapshot() if recurrent and len(draft) else None)
        inputs = self._inputs(tokens, base)
        if not draft.is_chain:
            inputs["position_ids"] = torch.tensor(
                [[base, *(base + depth for depth in draft.depths)]], device=self.device
            )
            inputs["attention_mask"] = self._tree_mask(draft, inputs["position_ids"][0])
        output = self.model(**inputs)
        if len(self.cache) != base + len(tokens):
            raise UserError(f"{self.name} does not keep what it reads in its cache; choose a decoder-only model.")
        logits = output.logits[0].float()
        # A row of NaN or of nothing but -inf has no distribution; amax carries both to one number per row.
        if not torch.isfinite(logits.amax(-1)).all():
            raise UserError(
                f"{self.name} returned logits that are not numbers after {base + 1} tokens; "
                "use --dtype float32, or check that the weights are intact."
            )
        return logits, self._hidden_rows(output)

    def keep(self, path: Sequence[int]) -> int:
        """Keep the cache rows of the last committed token and the accepted path; drop all others.

        Returns how many tokens had to be read a second time (recurrent layers only, else 0).
        """
        if self._pending is None:
            raise RuntimeError("keep() needs a verify() before it")
        base, tokens, snapshot = self._pending
        self._pending = None
        if snapshot is None or len(path) == len(tokens) - 1:
            self.cache.keep(base, [base + 1 + node for node in (ROOT, *path)])
            return 0
        self.cache.crop(base)
        self.cache.restore(snapshot)
        again = tokens[: len(path) + 1]
        self.model.base_model(**self._inputs(again, base))
        return len(again)

    @contextmanager
    def early_exit(
        self, exit_layer: int, head: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Callable[[int], Tensor]]:
        """Within the context, read tokens through the first `exit_layer` layers only, on the target's own cache rows.

        Yields step(token) -> logits [V]: the exit goes straight to the final norm and the LM head, or with `head` its
        state, [H] before the final norm, goes there instead. The rows that the steps add are dropped at the end,
        whatever happens: left in, they would make the next verify pass silently wrong. The model and its config are
        never altered; the steps run on a view that shares modules.

        Raises UserError for a model that can't be cut there.
        """
        model = exit_view(self.model, exit_layer)
        if head is not None:
            model = _without_norm(model.base_model)
        base = len(self.cache)
        snapshot = self.cache.snapshot()
        position = base

        def step(token: int) -> Tensor:
            nonlocal position
            inputs = self._inputs([token], position)
            position += 1
            if head is not None:
                return head(model(**inputs).last_hidden_state[0, -1].to(self.device))
            logits: Tensor = model(**inputs).logits[0, -1]
            return logits

        try:
            yield step
        finally:
            self.cache.crop(base)
            self.cache.restore(snapshot)

    def _inputs(self, tokens: Sequence[int], base: int) -> dict[str, Any]:
        ids = torch.tensor([list(tokens)], device=self.device)
        positions = torch.arange(base, base + len(tokens), device=self.device)[None]
        inputs = {"input_ids": ids, "position_ids": positions, "cache": self.cache.hf, "use_cache": True}
        return inputs | ({"output_hidden_states": True} if self._hidden_layers else {})

    def _hidden_rows(self, output: Any) -> Tensor | None:
        if not self._hidden_layers:
            return None
        rows = (output.hidden_states[layer][0] for layer in self._hidden_layers)
        # The base model alone, which reads the prompt, leaves each row on its layer's device.
        return torch.cat([row.to(self.device) for row in rows], -1)

    def _tree_mask(self, draft: Draft, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """The 4-D mask of a tree: each node sees the prefix, its ancestors and itself, within the window if any."""
        base = len(self.cache)
        prefix = torch.ones(len(draft) + 1, base, dtype=torch.bool)
        visible = torch.cat([prefix, draft.visibility()], 1).to(self.device)  # [n+1, base+n+1]
        kinds = set(getattr(self.config, "layer_types", None) or [])
        if not kinds <= {"full_attention", "sliding_attention"} or getattr(self.config, "attention_types", None):
            raise UserError(f"{self.name} has layers whose attention can't be masked as a tree; use a chain.")
        window = getattr(self.config, "sliding_window", None)
        if window and kinds != {"full_attention"}:
            columns = torch.cat([torch.arange(base, device=self.device), positions])
            near = visible & (positions[:, None] - columns[None, :] < window)
            if kinds == {"full_attention", "sliding_attention"}:
                return {"full_attention": self._additive(visible), "sliding_attention": self._additive(near)}
            visible = near
        return self._additive(visible)

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[None, None]


def exit_view(model: PreTrainedModel, exit_layer: int) -> PreTrainedModel:
    """The model with only its first `exit_layer` layers. All modules, parameters and the config are shared.

    Raises UserError if the model has no list of decoder layers to cut.
    """
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    if not 1 <= exit_layer < layers:
        raise UserError(f"The exit layer is {exit_layer}; this target has {layers} layers, so give 1 to {layers - 1}.")
    base = shallow_copy(model.base_model)
    for name, child in base.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == layers:
            base._modules[name] = nn.ModuleList(list(child)[:exit_layer])
            break
    else:
        raise UserError(f"{model.config.model_type} models show no list of layers to leave early; use another drafter.")
    view = shallow_copy(model)
    view._modules[model.base_model_prefix] = base
    return view


def _without_norm(base: PreTrainedModel) -> PreTrainedModel:
    """A view of a base model that ends with the state of its last layer.

    Raises UserError if it shows no final norm to leave out.
    """
    view = shallow_copy(base)
    name = next((name for name in FINAL_NORMS if name in view._modules), None)
    if name is None:
        raise UserError(f"{base.config.model_type} models show no final norm; use an early exit without an adapter.")
    view._modules[name] = nn.Identity()
    return view


def shallow_copy(module: Any) -> Any:
    """A copy that shares everything but the table of its direct children."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:  # accelerate replaced `forward` by one of its own, and that would run the original's children

        def forward(*args: Any, **inputs: Any) -> Any:
            args, inputs = hook.pre_forward(twin, *args, **inputs)
            return hook.post_forward(twin, type(twin).forward(twin, *args, **inputs))

        twin.forward = forward
    return twin
