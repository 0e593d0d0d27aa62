"""A decoder layer as Llama has it, with what heads vary: a wider input, biases, norms of queries and keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.models.cache import GrowingLayer
from specviz.refusals import brief

MOST_FACTOR = 1e6  # of rotations, far above any that is in use
CHUNK = 1024  # positions by which the table of rotations grows
# How positions are scaled, as transformers names it. Others ("longrope") turn all rows anew as a text grows, those
# that are kept included. "dynamic" does so only beyond the positions that a head was made for.
PART = "partial_rotary_factor"  # what share of a head turns
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        return F.rms_norm(states.float(), (states.shape[-1],), eps=self.eps).to(states.dtype) * self.weight


class Rotary:
    """Cosines and sines by position, [.., T, head_dim] each, looked up in a table."""

    def __init__(self, head_dim: int, theta: float, scaling: dict[str, object] | None, max_positions: int) -> None:
        """scaling: as config files have it, with its `rope_type`. Raises ValueError if that is not in ROPE_TYPES, if
        only a part of each head is to turn, if its values make no pairs, or if their angles are no numbers.
        """
        rope = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
        if rope["rope_type"] not in ROPE_TYPES:
            known = ", ".join(ROPE_TYPES)
            raise ValueError(f"its positions are scaled by {brief(rope['rope_type'])}, and those known are {known}")
        if rope.get(PART, 1) != 1:
            raise ValueError(f"it turns {brief(rope[PART])} of each head by its position, and only the whole is known")
        if head_dim % 2:
            raise ValueError(f"its heads have {head_dim} values, and positions turn pairs of them")
        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=rope,
        )
        with torch.device("cpu"):  # no weights: computed here and now, also where a head is built without storage
            self._compute = LlamaRotaryEmbedding(config)
        factors = [*self._compute.inv_freq.tolist(), self._compute.attention_scaling]
        if not all(0 < factor < MOST_FACTOR for factor in factors):  # NaN is not
            raise ValueError(f"its positions are scaled by {brief(scaling)}, which gives no angles")
        self._max_positions = max_positions
        self._table: tuple[Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor, dtype: torch.dtype, end: int) -> tuple[Tensor, Tensor]:
        """positions: int64 [.., T] below `end`. Returns two tensors [.., T, head_dim]."""
        table = self._table
        if table is None or len(table[0]) < end or table[0].dtype != dtype or table[0].device != positions.device:
            rows = max(end, min(-(-end // CHUNK) * CHUNK, self._max_positions))
            like = torch.empty(0, dtype=dtype, device=positions.device)
            cos, sin = self._compute.to(positions.device)(like, torch.arange(rows, device=positions.device)[None])
            self._table = table = cos[0], sin[0]
        return table[0][positions], table[1][positions]


class Attention(nn.Module):
    """Grouped-query attention over the rows of one sequence, or over a batch of causal ones."""

    def __init__(
        self,
        in_width: int,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool,
        qk_norm: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = nn.Linear(in_width, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(in_width, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(in_width, num_kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, width, bias=False)
        self.q_norm = RMSNorm(head_dim, eps) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, eps) if qk_norm else None

    def project(self, states: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, d], keys and values [B, kv_heads, T, d] of states [B, T, in_width], rotated."""
        batch, length, _ = states.shape
        q = self.q_proj(states).view(batch, length, self.num_heads, self.head_dim)
        k = self.k_proj(states).view(batch, length, self.num_kv_heads, self.head_dim)
        v = self.v_proj(states).view(batch, length, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = (part.unsqueeze(-3) for part in rotary)
        return _rotated(q.transpose(1, 2), cos, sin), _rotated(k.transpose(1, 2), cos, sin), v.transpose(1, 2)

    def forward(
        self, states: Tensor, rotary: tuple[Tensor, Tensor], rows: GrowingLayer | None, mask: Tensor | None
    ) -> Tensor:
        """mask: additive, [T, S]; None where every row sees all keys (or, without `rows`, all before it)."""
        q, k, v = self.project(states, rotary)
        batch, length = states.shape[:2]
        if rows is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
            return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]
        k, v = rows.update(k, v)
        # The queries that share a key head go through as rows of one product: keys and values are not repeated.
        groups = self.num_heads // self.num_kv_heads
        q = q.reshape(batch, self.num_kv_heads, groups * length, self.head_dim)
        mask = mask if mask is None or groups == 1 else mask.repeat(groups, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = mixed.view(batch, self.num_heads, length, self.head_dim).transpose(1, 2)
        return self.o_proj(mixed.reshape(batch, length, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return result


class Block(nn.Module):
    """Attention and MLP with their residuals. Without `input_norm` its input comes normed, or is not to be."""

    def __init__(self, attention: Attention, mlp: MLP, width: int, eps: float, *, input_norm: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width, eps) if input_norm else None
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = mlp

    def forward(
        self,
        states: Tensor,
        residual: Tensor,
        rotary: tuple[Tensor, Tensor],
        rows: GrowingLayer | None,
        mask: Tensor | None,
    ) -> Tensor:
        """states: what the attention reads, [B, T, in_width]; residual: what its result is added to, [B, T, H]."""
        read = states if self.input_layernorm is None else self.input_layernorm(states)
        return self.finish(residual + self.self_attn(read, rotary, rows, mask))

    def finish(self, states: Tensor) -> Tensor:
        """The MLP's half, after the attention's."""
        result: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return result


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """states: [B, heads, T, d]; cos, sin: [.., 1, T, d]."""
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat([-second, first], -1) * sin
