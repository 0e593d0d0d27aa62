"""What a head shares with its target, and which targets it refuses."""

from __future__ import annotations

import pytest
import torch
from fakes import tiny_target
from tiny_heads import COMBINES, head_config, random_head

from specviz.drafters.heads.head import Head
from specviz.errors import UserError
from specviz.models.pack import is_packed

STATES = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
TOKENS, POSITIONS = torch.tensor([[3, 1, 4, 1, 5, 2]]), torch.arange(6)[None]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_it_shares_embedding_and_lm_head_and_does_not_count_them_as_its_own():
    target = tiny_target()
    head = random_head(target).bind(target)
    assert head.embeddings is target.model.get_input_embeddings()
    assert head.lm is target.model.get_output_embeddings()
    assert not any(name.startswith(("embed_tokens", "lm_head")) for name in head.state_dict())


def test_of_a_reduced_vocabulary_it_shares_the_rows():
    target = tiny_target()
    head = random_head(target, draft_ids=[2, 3, 9]).bind(target)
    whole = target.model.get_output_embeddings().weight
    assert torch.equal(head.lm.weight, whole[[2, 3, 9]])
    torch.testing.assert_close(head.logits(STATES), (head.norm(STATES) @ whole.T)[..., [2, 3, 9]])
    assert head.vocabulary.to_target(torch.arange(3)).tolist() == [2, 3, 9]


def test_what_it_has_of_its_own_it_uses():
    target = tiny_target()
    head = Head(head_config(target, "mtp", draft_vocab_size=5), own_embedding=True, own_lm_head=True).bind(target)
    assert head.embeddings is head.embed_tokens and head.lm is head.lm_head
    assert head.logits(STATES).shape == (1, 6, 5)


@pytest.mark.parametrize("combine", COMBINES)
def test_packed_weights_compute_the_same(combine):
    target = tiny_target()
    plain = random_head(target, combine, draft_ids=[1, 2, 9]).bind(target)
    packed = random_head(target, combine, draft_ids=[1, 2, 9]).bind(target, packed=True)
    assert is_packed(packed) and not is_packed(plain)
    states = STATES.repeat(1, 1, len(plain.config.hidden_layers))
    results = [head.logits(head(head.fuse(states), TOKENS, POSITIONS)) for head in (plain, packed)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_joined_head_fuses_the_states_once_and_its_layer_reads_them_with_the_embedding():
    target = tiny_target()
    head = random_head(target, "joined").bind(target)
    states = STATES.repeat(1, 1, 3)
    normed = head.feature_norm(states @ head.fc.weight.T)
    embedded = head.embedding_norm(target.model.get_input_embeddings()(TOKENS))
    joined = torch.cat([normed, embedded], -1) @ head.join.weight.T
    layer = head.layers[0]
    assert layer.input_layernorm is not None
    expected = layer(joined, joined, head.rotations(POSITIONS, joined.dtype, 6), None, None)
    torch.testing.assert_close(head(head.fuse(states), TOKENS, POSITIONS), expected)
    normed = head.feature_norm(head.feedback(expected))  # what is fed back is not fused again
    joined = torch.cat([normed, embedded], -1) @ head.join.weight.T
    again = layer(joined, joined, head.rotations(POSITIONS, joined.dtype, 6), None, None)
    torch.testing.assert_close(head(head.feedback(expected), TOKENS, POSITIONS), again)


@pytest.mark.parametrize("feedback", ["output", "normed"])
def test_what_is_fed_back_is_the_output_before_or_after_the_norm(feedback):
    target = tiny_target()
    head = random_head(target, feedback=feedback).bind(target)
    assert torch.equal(head.feedback(STATES), head.norm(STATES) if feedback == "normed" else STATES)
    assert torch.equal(head.logits(STATES), target.model.get_output_embeddings()(head.norm(STATES)))


def test_without_a_final_norm_the_output_goes_to_the_lm_head_as_it_is():
    target = tiny_target()
    head = random_head(target, "concat").bind(target)
    assert torch.equal(head.logits(STATES), target.model.get_output_embeddings()(STATES))


def test_the_first_embedding_counts_as_zero_where_the_family_says_so():
    target = tiny_target()
    outputs = []
    for first in (3, 8):
        tokens = TOKENS.clone()
        tokens[0, 0] = first
        heads = (random_head(target, "mtp", zero_first_embedding=zero).bind(target) for zero in (True, False))
        outputs.append([head(STATES, tokens, POSITIONS) for head in heads])
    assert torch.equal(outputs[0][0], outputs[1][0]) and not torch.equal(outputs[0][1], outputs[1][1])
    later = [
        random_head(target, "mtp", zero_first_embedding=True).bind(target)(STATES, t, POSITIONS + 1)
        for t in (TOKENS, TOKENS + 1)
    ]
    assert not torch.equal(*later)


def test_it_takes_the_targets_number_format():
    target = tiny_target()
    target.model.bfloat16()
    head = random_head(target, draft_ids=[1, 2]).bind(target)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16}
    assert head.d2t.dtype == torch.int64
    output = head(head.fuse(STATES.repeat(1, 1, 3).bfloat16()), TOKENS, POSITIONS)
    assert output.dtype == head.logits(output).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"target_hidden_size": 64}, "its hidden size is 64 and that of tiny llama 32"),
        ({"vocab_size": 99}, "its vocabulary size is 99 and that of tiny llama 31"),
        ({"hidden_layers": (2, 3, 5)}, "reads layer 5, and tiny llama has 4"),
        ({"hidden_size": 16}, "another width than its target and no embeddings of its own"),
    ],
)
def test_a_target_of_other_sizes_is_refused(changes, problem):
    target = tiny_target()
    with pytest.raises(UserError, match=problem):
        Head(head_config(target, **changes)).bind(target)


def test_it_has_to_be_bound():
    with pytest.raises(RuntimeError, match="has to be bound"):
        random_head(tiny_target()).logits(STATES)
