"""Early exit: drafts come from the first layers alone, and the target never notices."""

from __future__ import annotations

import pytest
import torch
from fakes import ARCHITECTURES, VOCAB, reference_decode, reference_logits, tiny_model, tiny_target
from torch import nn
from torch.nn.functional import rms_norm, silu
from trained import DRAFT_IDS, GIVEN, context, exit_adapter, masked
from transformers import PreTrainedModel

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, EarlyExit, Weights, make_drafter
from specviz.drafters.heads.adapter import ExitAdapter, write_adapter
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


@pytest.mark.parametrize(
    ("exit_layer", "said"),
    [(0, "exit_layer is 0; give a whole number"), (4, "this target has 4 layers, so give 1 to 3")],
)
def test_an_exit_layer_that_does_not_exist_is_refused(exit_layer, said):
    with pytest.raises(UserError, match=said):
        make_drafter("early-exit", tiny_target(), {"exit_layer": exit_layer})


def test_a_model_without_a_list_of_layers_is_refused():
    target = tiny_target()
    base = target.model.base_model
    base.layers = nn.Sequential(*base.layers)
    with pytest.raises(UserError, match="llama models show no list of layers"):
        EarlyExit(target, 2)


# --- with an adapter ----------------------------------------------------------------------------------------------


def identity(target: Target, exit_layer: int, *, reduced: bool) -> ExitAdapter:
    """An adapter that adds nothing: what follows is the target's own norm and LM head."""
    adapter = exit_adapter(exit_layer, reduced=reduced)
    adapter.adapter.down.weight.zero_()
    adapter.norm.weight.copy_(target.model.base_model.norm.weight)
    return adapter


def guessed(target: Target, adapter: ExitAdapter, gamma: int = 5, **settings: float) -> Draft:
    target.prefill(PROMPT[:-1])
    drafter = EarlyExit(target, weights=GIVEN, adapter=adapter, **settings)
    return drafter.propose(Context(PROMPT, None), gamma, Sampler(), torch.Generator())


@pytest.mark.parametrize("exit_layer", [1, 3])
def test_an_adapter_that_adds_nothing_is_the_bare_exit(exit_layer):
    target = tiny_target()
    target.prefill(PROMPT[:-1])
    bare = propose(target, exit_layer, 5)
    draft = guessed(target, identity(target, exit_layer, reduced=False))
    assert draft.tokens == bare.tokens
    torch.testing.assert_close(draft.logits, bare.logits, rtol=1e-4, atol=1e-3)
    first = guessed(target, identity(target, exit_layer, reduced=True), gamma=1)
    torch.testing.assert_close(first.logits, masked(bare.logits[:1]), rtol=1e-4, atol=1e-3)


def test_an_adapter_computes_what_its_tensors_say():
    target, adapter = tiny_target(), exit_adapter(2)
    draft = guessed(target, adapter)
    x = context(target, [*PROMPT, *draft.tokens], layer=2).hidden[len(PROMPT) - 1 :]  # states of layer 2
    w = dict(adapter.state_dict())
    inner = silu(rms_norm(x, (32,), w["adapter.norm.weight"], 1e-6) @ up(adapter).T)
    x = rms_norm(x + inner @ down(adapter).T, (32,), w["norm.weight"], 1e-6)
    expected = masked(x @ target.model.get_output_embeddings().weight.T)
    torch.testing.assert_close(draft.logits, expected, rtol=1e-4, atol=1e-3)
    assert list(draft.tokens) == expected.argmax(-1).tolist()


def up(adapter: ExitAdapter) -> torch.Tensor:
    """[I, H]; packed when it was bound, so taken from a twin."""
    return exit_adapter(adapter.exit_layer).adapter.up.weight


def down(adapter: ExitAdapter) -> torch.Tensor:
    return exit_adapter(adapter.exit_layer).adapter.down.weight


def test_the_targets_lm_head_is_not_asked_when_an_adapter_answers():
    target = tiny_target()
    asked = []
    target.model.get_output_embeddings().register_forward_hook(lambda *_: asked.append(1))
    assert len(guessed(target, exit_adapter())) == 5 and asked == []
    propose(target, 2, 5)
    assert len(asked) == 5


@pytest.mark.parametrize("architecture", ["llama", "mixed", "gpt2", "gpt-neox", "hybrid"])
def test_greedy_output_with_an_adapter_is_the_targets(architecture):
    target = tiny_target(architecture)
    drafter = EarlyExit(target, weights=GIVEN, adapter=exit_adapter())
    settings = Settings(gamma=3, max_new_tokens=16, stop_tokens=frozenset())
    steps = list(decode(target, drafter, PROMPT, settings))
    assert [token for step in steps for token in step.committed] == reference_decode(target.model, PROMPT, 16)
    assert len(steps[0].nodes) == 3 and all(step.nodes for step in steps[:-1])
    assert {node.token for step in steps for node in step.nodes} <= set(DRAFT_IDS.tolist())


def test_drafting_ends_with_the_first_token_the_exit_is_unsure_of():
    target = tiny_target()
    whole = guessed(target, exit_adapter())
    chances = torch.softmax(whole.logits, -1).amax(-1)
    threshold = float(chances[:3].min()) + 1e-4
    expected = next(i for i, chance in enumerate(chances, 1) if chance < threshold)
    assert guessed(target, exit_adapter(), confidence=threshold).tokens == whole.tokens[:expected]
    bare = EarlyExit(target, 2, confidence=1.0)
    target.prefill(PROMPT[:-1])
    assert len(bare.propose(Context(PROMPT, None), 5, Sampler(), torch.Generator())) == 1


def test_a_model_without_a_final_norm_takes_no_adapter():
    target = tiny_target()
    target.model.base_model.last = target.model.base_model.norm
    del target.model.base_model.norm
    with pytest.raises(UserError, match="show no final norm"), target.early_exit(2, head=lambda state: state):
        pass


def test_the_exit_layer_is_the_adapters_and_no_other(tmp_path):
    target = tiny_target()
    write_adapter(exit_adapter(3), tmp_path, {"target": "tiny llama"})
    weights = Weights(tmp_path, "ours", "sha256:1")
    drafter = make_drafter("early-exit", target, {}, weights)
    assert isinstance(drafter, EarlyExit)
    assert (drafter.exit_layer, drafter.name, drafter.weights) == (3, "ours", "sha256:1")
    assert make_drafter("early-exit", target, {"exit_layer": 3}, weights).adapter is not None
    with pytest.raises(UserError, match=r"an exit after layer 3, not 2; leave the exit layer out, or switch"):
        make_drafter("early-exit", target, {"exit_layer": 2}, weights)
    bare = make_drafter("early-exit", target, {"exit_layer": 2, "adapter": False}, weights)
    assert (bare.exit_layer, bare.adapter, bare.name, bare.weights) == (2, None, "", "")


def test_without_an_adapter_the_exit_layer_has_to_be_said():
    with pytest.raises(UserError, match="after which of the 4 layers to leave; give the exit layer"):
        make_drafter("early-exit", tiny_target(), {})


def test_trees_are_refused():
    with pytest.raises(UserError, match="early-exit drafts chains only; leave out 'tree', or draft with ngram, eagle"):
        make_drafter("early-exit", tiny_target(), {"exit_layer": 2, "tree": True})


def test_the_adapter_of_another_target_is_refused(tmp_path):
    write_adapter(exit_adapter(3), tmp_path, {"target": "Other-1B", "target_vocab_size": VOCAB + 1})
    with pytest.raises(UserError, match=f"for Other-1B, whose vocabulary size is another .*{VOCAB + 1}, here {VOCAB}"):
        EarlyExit(tiny_target(), weights=Weights(tmp_path, "ours"))
