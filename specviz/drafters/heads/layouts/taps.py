"""Which states of the target a head reads, in our numbering: transformers' `hidden_states`, 0 the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafters.heads.layouts.settings import Options, TargetSizes
from specviz.errors import UserError
from specviz.refusals import brief

FEWEST_LAYERS = 7  # of a target for which the usual three layers differ


def usual_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs EAGLE-3 heads read where their config names none."""
    return 2, num_layers // 2, num_layers - 3


def tapped_layers(
    ids: object, target: TargetSizes, where: str, options: Options, convention: str | None
) -> tuple[int, ...]:
    """The hidden layers for the ids in a config, None for the usual ones.

    Engines number the taps in two ways: vLLM by the layer that the state enters ("input"), SGLang by the one that it
    leaves ("output"), https://github.com/sgl-project/sglang/pull/25454. convention: the file's, None where it leaves
    that open and the user has to say. Raises UserError for ids that can't be used.
    """
    if ids is None:
        if target.num_layers < FEWEST_LAYERS:
            raise UserError(
                f"The drafter in {where} names no layers of its target, and the usual ones need at least "
                f"{FEWEST_LAYERS}; this target has {target.num_layers}, so add eagle_aux_hidden_state_layer_ids."
            )
        return usual_layers(target.num_layers)
    if not isinstance(ids, list) or not ids or not all(type(index) is int for index in ids):
        raise UserError(f"The drafter in {where} names {brief(ids)} as its target's layers; that should be numbers.")
    convention = convention or options.aux_convention
    if convention is None:
        raise UserError(
            f"The drafter in {where} names its target's layers {brief(ids)} without saying how they are counted, so "
            "give aux_convention (--aux-convention): input if they are the layers that the states enter (vLLM), output "
            "if they are those that the states leave (SGLang, SpecForge)."
        )
    layers = [index + (convention == "output") for index in ids]
    if layers != sorted(set(layers)):
        raise UserError(f"The drafter in {where} names its target's layers {brief(ids)}, which do not rise; fix that.")
    _check_range(layers, target, where)
    if layers[-1] == target.num_layers:
        raise UserError(
            f"The drafter in {where} reads the last layer's output before the final norm, which transformers does not "
            "give; choose a drafter that reads earlier layers."
        )
    return tuple(layers)


def own_layers(ids: object, target: TargetSizes, where: str) -> tuple[int, ...]:
    """The hidden layers that a head of ours names, in our numbering; the last is the state after the final norm."""
    if not isinstance(ids, Sequence) or not ids or not all(type(index) is int for index in ids):
        raise UserError(f"The drafter in {where} names {brief(ids)} as hidden_layers; that should be numbers.")
    _check_range(list(ids), target, where)
    return tuple(ids)


def _check_range(layers: Sequence[int], target: TargetSizes, where: str) -> None:
    if min(layers) < 0 or max(layers) > target.num_layers:
        raise UserError(
            f"The drafter in {where} was made for another target: it reads the states {brief(list(layers))}, and this "
            f"target has 0 to {target.num_layers}."
        )
