"""What trained drafters share with their target: its LM head, whole or some of its rows."""

from __future__ import annotations

from torch import Tensor, nn

from specviz.errors import UserError
from specviz.models.pack import PackedLinear, can_pack, weight_of
from specviz.models.target import Target


def check_sizes(target: Target, hidden_size: int, vocab_size: int) -> None:
    """Raise UserError if a drafter of these sizes was made for another target."""
    for what, own, theirs in (
        ("hidden size", hidden_size, int(target.config.hidden_size)),
        ("vocabulary size", vocab_size, target.vocab_size),
    ):
        if own != theirs:
            raise UserError(
                f"This drafter was made for another target: its {what} is {own} and that of {target.name} {theirs}; "
                "choose one that was made for this target."
            )


def shared_lm_head(target: Target, d2t: Tensor | None, *, packed: bool) -> nn.Module:
    """From states [.., H] to logits: the target's LM head, or those of its rows that d2t [Vd] names.

    packed: for decoding only, with the rows packed where the matrix library has kernels for it.
    """
    output: nn.Module = target.model.get_output_embeddings()
    if d2t is None:
        return output
    ids = d2t.to(target.device)
    rows, bias = weight_of(output, target.model)[ids], output.bias
    linear = nn.Linear(rows.shape[1], rows.shape[0], bias=bias is not None, device="meta", dtype=rows.dtype)
    linear.weight = nn.Parameter(rows, requires_grad=False)
    if isinstance(bias, Tensor):
        linear.bias = nn.Parameter(bias.detach()[ids], requires_grad=False)
    return PackedLinear(linear) if packed and can_pack(linear) else linear
