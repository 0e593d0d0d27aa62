"""An autoregressive head: from the target's state and the next token to a guess at the token after it, again and again.

EAGLE-1 to EAGLE-3 and the prediction layers that models ship (MTP) are this one machine with different settings. Row i
reads the target's state after token i, and token i+1; its output predicts token i+2. Beyond what the target has seen,
the output of one row stands for the state that the next one reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specviz.drafters.heads.block import MLP, Attention, Block, RMSNorm, Rotary
from specviz.drafters.heads.library_block import LibraryBlock, family
from specviz.drafters.heads.shared import check_sizes, shared_lm_head
from specviz.drafters.heads.vocabulary import DraftVocabulary
from specviz.errors import UserError
from specviz.models.cache import GrowingLayer
from specviz.models.pack import pack
from specviz.models.target import Target

Combine = Literal["concat", "wide", "joined", "mtp", "mtp-reversed"]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head computes, whatever file it came from. Layers are numbered as in `Target.prefill`."""

    hidden_size: int  # H
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    hidden_layers: tuple[int, ...]  # of the target, whose states are read, one beside the other
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None = None  # None: the target's vocabulary
    # How state and embedding meet. "concat", EAGLE-1: fc(cat[embedding, state]). "wide", EAGLE-3: fc fuses the states
    # once, and the layer reads cat[norm(embedding), norm(fused)]. "mtp": fc(cat[norm(embedding), norm(state)]), and
    # "mtp-reversed" the other way round. "joined", of ours: fc fuses as in "wide", and the layer reads
    # join(cat[norm(fused), norm(embedding)]).
    combine: Combine = "wide"
    fc_bias: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    input_norm: bool = True  # whether the layer norms what it reads
    feedback: Literal["output", "normed"] = "output"  # what the next row reads: the output before or after the norm
    norm_before_residual: bool = False  # "wide": the residual begins after the norm of the fused states
    norm_before_fc: bool = False  # "wide": the states are normed before they are fused
    final_norm: bool = True  # before the LM head
    zero_first_embedding: bool = False  # at position 0 the embedding counts as zero
    block_type: str | None = None  # None: a layer as Llama's; else the model type of transformers whose layer it is
    block_config: dict[str, Any] | None = None

    @property
    def fuses(self) -> bool:
        """Whether fc makes one state of those of several layers."""
        return self.combine in ("wide", "joined")


class Head(nn.Module):
    """The module, for training and decoding alike. `bind` it to its target before use."""

    d2t: Tensor

    def __init__(self, config: HeadConfig, *, own_embedding: bool = False, own_lm_head: bool = False) -> None:
        """own_embedding, own_lm_head: whether it has its own, or shares the target's."""
        super().__init__()
        self.config = config
        self._shared: tuple[nn.Module, nn.Module] | None = None  # a tuple, so that they are none of its own modules
        with _own_draws():
            self._build(config, own_embedding, own_lm_head)

    def _build(self, config: HeadConfig, own_embedding: bool, own_lm_head: bool) -> None:
        width = config.hidden_size
        states = len(config.hidden_layers) * config.target_hidden_size
        if config.combine == "concat":
            self.fc = nn.Linear(2 * width, width, bias=config.fc_bias)
        else:
            self.fc = nn.Linear(states if config.fuses else 2 * width, width, bias=config.fc_bias)
            self.embedding_norm = self._norm(width)
            self.feature_norm = self._norm(width)
        if config.combine == "joined":
            self.join = nn.Linear(2 * width, width, bias=False)
        if config.norm_before_fc:
            self.input_norm = self._norm(states)
        self._library: LibraryBlock | None = None
        if config.block_type is None:
            self.layers = nn.ModuleList([_block(config)])
            self._rotary = Rotary(
                config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings
            )
        else:
            self._library = LibraryBlock(config.block_type, config.block_config or {})
            self.layers = nn.ModuleList([self._library.layer])
        if config.final_norm:
            self.norm = self._norm(width)
        if own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, width)
        if own_lm_head:
            self.lm_head = nn.Linear(width, config.draft_vocab_size or config.vocab_size, bias=False)
        if config.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.arange(config.draft_vocab_size))

    def _norm(self, width: int) -> nn.Module:
        config = self.config
        if config.block_type is None:
            return RMSNorm(width, config.rms_eps)
        return family(config.block_type).norm(width, config.rms_eps)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Made anew at each call."""
        return DraftVocabulary(getattr(self, "d2t", None), self.config.vocab_size)

    def bind(self, target: Target, *, packed: bool = False) -> Head:
        """Take the target's device, number format, and what the head shares with it; returns itself.

        packed: for decoding only, with the weights packed where the matrix library has kernels for it.
        Raises UserError if the head was made for a target of other sizes.
        """
        config = self.config
        check_sizes(target, config.target_hidden_size, config.vocab_size)
        if max(config.hidden_layers) > (layers := int(target.config.num_hidden_layers)):
            raise UserError(
                f"This drafter reads layer {max(config.hidden_layers)}, and {target.name} has {layers}; choose one "
                "that was made for this target."
            )
        self.to(device=target.device)
        self._cast(target.dtype)
        own_embedding, own_lm_head = hasattr(self, "embed_tokens"), hasattr(self, "lm_head")
        if not (own_embedding and own_lm_head) and config.hidden_size != config.target_hidden_size:
            raise UserError(
                "This drafter has another width than its target and no embeddings of its own; give all of it."
            )
        if packed:
            pack(self)
        embeddings = self.embed_tokens if own_embedding else target.model.get_input_embeddings()
        lm = self.lm_head if own_lm_head else shared_lm_head(target, getattr(self, "d2t", None), packed=packed)
        self._shared = embeddings, lm
        return self

    def _cast(self, dtype: torch.dtype) -> None:
        """Change the number format of all weights but those that transformers would keep in float32: of routers."""
        of = None if self.config.block_type is None else family(self.config.block_type)
        kept = () if of is None else of.kept_in_float32(dtype)
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.float32 if any(part in name for part in kept) else dtype)

    @property
    def embeddings(self) -> nn.Module:
        return self._bound()[0]

    @property
    def lm(self) -> nn.Module:
        """From normed states to logits over the draft vocabulary."""
        return self._bound()[1]

    def _bound(self) -> tuple[nn.Module, nn.Module]:
        if self._shared is None:
            raise RuntimeError("the head has to be bound to a target first")
        return self._shared

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [.., F * Ht] as the rows of the head read them, [.., H]."""
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        fused: Tensor = self.fc(states) if self.config.fuses else states
        return fused

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        rows: GrowingLayer | None = None,
        mask: Tensor | None = None,
        end: int | None = None,
    ) -> Tensor:
        """Outputs [B, T, H], before the final norm.

        features: [B, T, H], fused states or what was fed back; tokens: [B, T], those that follow; positions: [B, T].
        rows: keys and values of the rows before, to which these are added; without them a causal pass of its own.
        mask: additive [T, S]; None where every row sees all keys. end: above every position, if that is known.
        """
        read, residual = self.combine(features, tokens, positions)
        if self._library is not None:
            return self._library(read, positions, rows, mask)
        end = int(positions.max()) + 1 if end is None else end
        output: Tensor = self.layers[0](read, residual, self.rotations(positions, read.dtype, end), rows, mask)
        return output

    def combine(self, features: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer reads, and what its result is added to."""
        config = self.config
        embedded: Tensor = self.embeddings(tokens).to(features.dtype)
        if config.zero_first_embedding:
            embedded = embedded * (positions != 0)[..., None]
        if config.combine == "concat":
            joined = self.fc(torch.cat([embedded, features], -1))
            return joined, joined
        embedded, normed = self.embedding_norm(embedded), self.feature_norm(features)
        if config.combine == "wide":
            return torch.cat([embedded, normed], -1), normed if config.norm_before_residual else features
        pair = [embedded, normed] if config.combine == "mtp" else [normed, embedded]
        joined = (self.join if config.combine == "joined" else self.fc)(torch.cat(pair, -1))
        return joined, joined

    def rotations(self, positions: Tensor, dtype: torch.dtype, end: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for positions below `end`, [.., T, head_dim] each."""
        return self._rotary(positions, dtype, end)

    def normed(self, output: Tensor) -> Tensor:
        """What the LM head reads, [.., H]."""
        result: Tensor = self.norm(output) if self.config.final_norm else output
        return result

    def feedback(self, output: Tensor) -> Tensor:
        """What the next row reads in place of the target's state, [.., H]."""
        return self.normed(output) if self.config.feedback == "normed" else output

    def logits(self, output: Tensor) -> Tensor:
        """Logits [.., Vd] of the token after the one that the row read."""
        result: Tensor = self.lm(self.normed(output))
        return result


@contextmanager
def _own_draws() -> Iterator[None]:
    """Torch draws first weights from the generator that all share: let it be the same ones, and leave that as it was.

    On the meta device, where heads are built to be filled from files, nothing is drawn.
    """
    if torch.get_default_device().type == "meta":
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def _block(config: HeadConfig) -> Block:
    width, wide = config.hidden_size, config.combine == "wide"
    attention = Attention(
        2 * width if wide else width,
        width,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        bias=config.attention_bias,
        qk_norm=config.qk_norm,
        eps=config.rms_eps,
    )
    inner = MLP(width, config.intermediate_size)
    return Block(attention, inner, width, config.rms_eps, input_norm=config.input_norm and not wide)
