"""Drafters begin as parts of their target, whatever its family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes import VOCAB, tiny_target

from specviz.drafters.heads.reduced import read_reduced
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.training.beginning import Earlier, layers_of, norm_scale
from specviz.training.tasks import DraftModelTask, ExitTask, HeadTask, MedusaTask


def target(family: str) -> Target:
    """With norms that do not all multiply by 1."""
    found = tiny_target(family)
    found.model.requires_grad_(False)
    rng = torch.Generator().manual_seed(1)
    for name, parameter in found.model.named_parameters():
        if "norm" in name:
            parameter.add_(0.5 * torch.rand(parameter.shape, generator=rng))
    return found


def earlier(folder: Path, whole: Target) -> Earlier:
    return Earlier.read(folder, whole, lambda text: pytest.fail(text))


@pytest.mark.parametrize("family", ["llama", "mixed", "hybrid"])  # the last two, Gemma 3 and Qwen3.5, add 1
def test_an_adapter_begins_as_the_bare_exit(family: str) -> None:
    whole = target(family)
    adapter = ExitTask(whole, torch.arange(VOCAB), 2, 16).adapter
    states = 3 * torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(adapter.states(states), whole.model.base_model.norm(states))


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
@pytest.mark.parametrize("family", ["llama", "mixed"])
def test_a_head_begins_with_the_norms_of_the_last_layer(family: str, kind: str) -> None:
    whole = target(family)
    head = HeadTask(whole, torch.arange(VOCAB), kind, (4,), 2).head
    mine, theirs = head.layers[0], layers_of(whole.model)[-1]
    pairs = [(head.norm, whole.model.base_model.norm), (mine.post_attention_layernorm, theirs.post_attention_layernorm)]
    if kind == "mtp":
        pairs.append((mine.input_layernorm, theirs.input_layernorm))
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    for own, other in pairs:
        torch.testing.assert_close(own(states), other(states))


def test_an_eagle3_head_begins_by_handing_on_the_token_that_it_read() -> None:
    """Its output is the last state, what the attention heads pass on of their own rows' embeddings, and the MLP's."""
    whole = target("llama")
    head = HeadTask(whole, torch.arange(VOCAB), "eagle3", (1, 2, 4), 2).head
    width, size = head.config.hidden_size, head.config.head_dim
    attention = head.layers[0].self_attn
    readers = [index for index in range(head.config.num_heads) if index % 3 != 2 and (index + 1) * size <= width]
    assert readers
    drawn = torch.randn(6, width // size, size, generator=torch.Generator().manual_seed(3))
    embedded = 3 * torch.nn.functional.normalize(drawn, dim=-1).flatten(1)  # all of one length, in every head's part
    rows = torch.cat([embedded, torch.zeros(6, width)], -1)
    for index in readers:
        part = slice(index * size, (index + 1) * size)
        query, key, value = (getattr(attention, name)(rows)[:, part] for name in ("q_proj", "k_proj", "v_proj"))
        assert torch.equal((query @ key.T).argmax(-1), torch.arange(6)), "each row finds itself"
        torch.testing.assert_close(value, embedded[:, part])
        handed_on = value @ attention.o_proj.weight[:, part].T
        gain = head.norm.weight.square().mean().sqrt() / 2
        torch.testing.assert_close(handed_on[:, part], gain * embedded[:, part])


def test_a_joined_head_can_begin_as_a_trained_head_that_reads_the_last_state(tmp_path: Path) -> None:
    whole = target("llama")
    other = HeadTask(whole, torch.arange(VOCAB), "mtp", (4,), 2)
    rng = torch.Generator().manual_seed(4)
    for parameter in other.head.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=rng)
    other.write(tmp_path, {})
    begin_as = earlier(tmp_path, whole)
    head = HeadTask(whole, torch.arange(VOCAB), "eagle3", (1, 2, 4), 2, joined=True, begin_as=begin_as).head
    states, tokens = torch.randn(1, 5, 3 * 32, generator=rng), torch.tensor([[3, 1, 4, 1, 5]])
    places = torch.arange(5)[None]
    with torch.inference_mode():
        expected = other.head.normed(other.head(other.head.fuse(states[..., -32:]), tokens, places))
        torch.testing.assert_close(head.normed(head(head.fuse(states), tokens, places)), expected)


@pytest.mark.parametrize("kind", ["mtp", "medusa", "draft-model"])
def test_training_can_go_on_from_what_was_trained(tmp_path: Path, kind: str) -> None:
    """In the test above it begins as something else; here as the same."""
    whole, d2t = target("llama"), torch.arange(VOCAB)
    make = {
        "mtp": lambda **begin: HeadTask(whole, d2t, "mtp", (4,), 2, **begin),
        "medusa": lambda **begin: MedusaTask(whole, d2t, 2, 1, **begin),
        "draft-model": lambda **begin: DraftModelTask(whole, d2t, (0, 2), **begin),
    }[kind]
    trained = make()
    rng = torch.Generator().manual_seed(4)
    for parameter in trained.module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=rng)
    trained.write(tmp_path, {})
    again = make(begin_as=earlier(tmp_path, whole))
    assert all(torch.equal(a, b) for a, b in zip(again.module.parameters(), trained.module.parameters(), strict=True))
    anew = zip(make().module.parameters(), again.module.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in anew)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 2}, {"rope_theta": 77.0}, {"rms_norm_eps": 0.5}])
def test_a_draft_model_of_another_form_is_nothing_to_go_on_from(tmp_path: Path, changes: dict[str, object]) -> None:
    whole, d2t = target("llama"), torch.arange(VOCAB)
    DraftModelTask(whole, d2t, (0, 2)).write(tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    if "rope_theta" in changes:
        changes = {"rope_parameters": {**config["rope_parameters"], **changes}}
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=r"of another form|no draft model|another shape"):
        DraftModelTask(whole, d2t, (0, 2), begin_as=earlier(tmp_path, whole))


def test_medusa_heads_of_another_form_are_nothing_to_go_on_from(tmp_path: Path) -> None:
    whole, d2t = target("llama"), torch.arange(VOCAB)
    MedusaTask(whole, d2t, 2, 1).write(tmp_path, {})
    for heads, blocks in ((3, 1), (2, 2)):
        with pytest.raises(UserError, match="Medusa heads of another form"):
            MedusaTask(whole, d2t, heads, blocks, begin_as=earlier(tmp_path, whole))


def test_a_draft_model_of_other_layers_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    whole, d2t = target("llama"), torch.arange(VOCAB)
    DraftModelTask(whole, d2t, (0, 2)).write(tmp_path, {})
    with pytest.raises(UserError, match="--begin-as holds a draft model of another form"):
        DraftModelTask(whole, d2t, (0, 1, 2), begin_as=earlier(tmp_path, whole))


def test_what_a_joined_head_can_not_begin_as_is_refused(tmp_path: Path) -> None:
    whole = target("llama")
    HeadTask(whole, torch.arange(VOCAB), "eagle3", (1, 2, 4), 2).write(tmp_path, {})
    with pytest.raises(UserError, match="--begin-as holds no head that this one can begin as"):
        HeadTask(whole, torch.arange(VOCAB), "eagle3", (1, 2, 4), 2, joined=True, begin_as=earlier(tmp_path, whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_that_multiplies_by_its_weight_is_copied_bit_by_bit(dtype: torch.dtype) -> None:
    norm = target("llama").model.base_model.norm.to(dtype)
    assert torch.equal(norm_scale(norm), norm.weight)


def test_the_layers_of_a_draft_model_attend_as_those_they_begin_as(tmp_path: Path) -> None:
    whole = target("mixed")
    assert whole.config.layer_types == ["sliding_attention", "full_attention"] * 2
    task = DraftModelTask(whole, torch.arange(20), (1, 0, 3))
    task.write(tmp_path, {})
    for model in (task.model, read_reduced(tmp_path, whole)[0]):
        assert model.config.layer_types == ["full_attention", "sliding_attention", "full_attention"]
        assert [layer.self_attn.is_sliding for layer in layers_of(model)] == [False, True, False]
