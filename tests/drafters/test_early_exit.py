"""Early exit: drafts come from the first layers alone, and the target never notices."""

from __future__ import annotations

import pytest
import torch
from fakes import ARCHITECTURES, reference_decode, reference_logits, tiny_model, tiny_target
from torch import nn
from transformers import PreTrainedModel

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, EarlyExit, make_drafter
from specviz.errors import UserError
from specviz.models.target import Target

PROMPT = [3, 4, 5, 3, 4, 5, 3]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def shortened(architecture: str, layers: int) -> PreTrainedModel:
    """The same model with its last layers removed."""
    model = tiny_model(architecture)
    blocks = next(child for child in model.base_model.children() if isinstance(child, nn.ModuleList))
    del blocks[layers:]
    return model


def propose(target: Target, exit_layer: int, gamma: int, temperature: float = 0) -> Draft:
    sampler, rng = Sampler(temperature=temperature), torch.Generator().manual_seed(0)
    return EarlyExit(target, exit_layer).propose(Context(PROMPT, None), gamma, sampler, rng)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("exit_layer", [1, 2, 3])
def test_the_draft_is_what_the_first_layers_alone_would_say(architecture, exit_layer):
    target = tiny_target(architecture)
    target.prefill(PROMPT[:-1])
    draft = propose(target, exit_layer, 5)
    model = shortened(architecture, exit_layer)
    assert list(draft.tokens) == reference_decode(model, PROMPT, 5)
    expected = reference_logits(model, [*PROMPT, *draft.tokens])[len(PROMPT) - 1 : -1]
    torch.testing.assert_close(draft.logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("exit_layer", [1, 3])
@pytest.mark.parametrize("prompt", [[7], PROMPT])
def test_drafting_leaves_the_targets_cache_as_it_was(architecture, exit_layer, prompt):
    """Rows left behind would make the next pass silently wrong: its logits are compared, and the rows themselves."""
    target = tiny_target(architecture)
    target.prefill(prompt[:-1])
    before = memory(target)
    with target.early_exit(exit_layer) as step:
        for token in (prompt[-1], 9, 10):
            step(token)
        assert len(memory(target)) and (architecture == "hybrid" or len(target.cache) == len(prompt) + 2)
    after = memory(target)
    assert len(target.cache) == len(prompt) - 1
    for mine, expected in zip(after, before, strict=True):
        assert torch.equal(mine, expected)
    logits, _ = target.verify(prompt[-1], Draft.empty())
    torch.testing.assert_close(logits[0], reference_logits(target.model, prompt)[-1], rtol=1e-4, atol=1e-3)


def memory(target: Target) -> list[torch.Tensor]:
    """Copies of all rows and states; a layer that has read nothing counts as none."""
    copies = []
    for layer in target.cache.hf.layers:
        if hasattr(layer, "rows"):
            copies += [part[..., : layer.rows, :].clone() for part in (layer.keys, layer.values) if layer.rows]
        elif layer.has_previous_state[0]:
            copies += [layer.conv_states[0].clone(), layer.recurrent_states[0].clone()]
    return copies


def test_the_exits_q_is_the_distribution_drawn_from():
    target = tiny_target()
    target.prefill(PROMPT[:-1])
    draft = propose(target, 2, 4, temperature=1.5)
    torch.testing.assert_close(draft.q, Sampler(temperature=1.5).probs(draft.logits, PROMPT))


def test_gamma_0_reads_nothing():
    target = tiny_target()
    target.prefill(PROMPT[:-1])
    read = []
    target.model.base_model.register_forward_hook(lambda *_: read.append(1))
    assert len(propose(target, 2, 0)) == 0 and read == []


@pytest.mark.parametrize("exit_layer", [0, 4, -1])
def test_an_exit_layer_that_does_not_exist_is_refused(exit_layer):
    with pytest.raises(UserError, match="this target has 4 layers, so give 1 to 3"):
        make_drafter("early-exit", tiny_target(), {"exit_layer": exit_layer})


def test_a_model_without_a_list_of_layers_is_refused():
    target = tiny_target()
    base = target.model.base_model
    base.layers = nn.Sequential(*base.layers)
    with pytest.raises(UserError, match="llama models show no list of layers"):
        EarlyExit(target, 2)
