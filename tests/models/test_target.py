"""The target's three calls: prefill, verify, keep. What they leave in the cache equals a fresh reading, row by row."""

from __future__ import annotations

import pytest
import torch
from fakes import ARCHITECTURES, VOCAB, byte_tokenizer, reference_logits, tiny_model, tiny_target
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.decoding.draft import ROOT, Draft
from specviz.errors import Cancelled, UserError
from specviz.models import target as target_module
from specviz.models.target import Target, exit_view

PROMPT = [3, 4, 5, 6, 7, 8, 9]
TREE = Draft((10, 11, 12, 13, 14, 15), (ROOT, ROOT, 0, 0, 1, 3), torch.zeros(6, VOCAB))
TREE_PATHS = [(), (0,), (1,), (0, 2), (0, 3), (1, 4), (0, 3, 5)]
TREE_ARCHITECTURES = [name for name in ARCHITECTURES if name != "hybrid"]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def chain(*tokens: int) -> Draft:
    return Draft.chain(tokens, torch.zeros(len(tokens), VOCAB))


def kv(target: Target) -> list[torch.Tensor]:
    """Keys and values of all layers that have any."""
    layers = [layer for layer in target.cache.hf.layers if hasattr(layer, "rows")]
    return [states for layer in layers for states in (layer.keys, layer.values)]


def states(target: Target) -> list[torch.Tensor]:
    layers = [layer for layer in target.cache.hf.layers if hasattr(layer, "recurrent_states")]
    return [state for layer in layers for state in (layer.conv_states[0], layer.recurrent_states[0])]


def assert_same_memory(target: Target, tokens: list[int]) -> None:
    """The target remembers exactly these tokens, as a fresh target does that has read them in one go."""
    fresh = Target(target.model)
    fresh.prefill(tokens)
    assert len(target.cache) == len(tokens)
    for mine, expected in zip([*kv(target), *states(target)], [*kv(fresh), *states(fresh)], strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_keep_of_a_chain_leaves_the_cache_of_a_fresh_prefill(architecture, accepted):
    target = tiny_target(architecture)
    target.prefill(PROMPT[:-1])
    target.verify(PROMPT[-1], chain(10, 11, 12))
    rerun = target.keep(range(accepted))
    assert_same_memory(target, [*PROMPT, 10, 11, 12][: len(PROMPT) + accepted])
    assert rerun == (1 + accepted if architecture == "hybrid" and accepted < 3 else 0)


@pytest.mark.parametrize("architecture", TREE_ARCHITECTURES)
@pytest.mark.parametrize("path", TREE_PATHS)
def test_keep_of_a_tree_leaves_the_cache_of_a_fresh_prefill(architecture, path):
    target = tiny_target(architecture)
    target.prefill(PROMPT[:-1])
    target.verify(PROMPT[-1], TREE)
    assert target.keep(path) == 0
    assert_same_memory(target, [*PROMPT, *TREE.take(path)])


def test_the_cache_comparison_notices_a_wrong_branch():
    target = tiny_target()
    target.prefill(PROMPT[:-1])
    target.verify(PROMPT[-1], TREE)
    target.keep((0, 2))
    with pytest.raises(AssertionError):
        assert_same_memory(target, [*PROMPT, *TREE.take((0, 3))])


@pytest.mark.parametrize("architecture", TREE_ARCHITECTURES)
@pytest.mark.parametrize("prompt", [[7], PROMPT, PROMPT * 3])
def test_a_tree_gives_each_node_the_logits_of_its_own_path(architecture, prompt):
    target = tiny_target(architecture)
    target.prefill(prompt[:-1])
    logits, _ = target.verify(prompt[-1], TREE)
    for path in TREE_PATHS:
        alone = reference_logits(target.model, [*prompt, *TREE.take(path)])[-1]
        torch.testing.assert_close(logits[path[-1] + 1 if path else 0], alone, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_chain_gives_each_node_the_logits_of_its_prefix(architecture):
    target = tiny_target(architecture)
    target.prefill(PROMPT[:-1])
    logits, hidden = target.verify(PROMPT[-1], chain(10, 11, 12))
    expected = reference_logits(target.model, [*PROMPT, 10, 11, 12])[-4:]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)
    assert hidden is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_verify_goes_on_where_keep_left_off(architecture):
    """Several rounds of rejections, so that an error in one row would show in the next round's logits."""
    target = tiny_target(architecture)
    tokens = [5]
    target.prefill([])
    for round_, accepted in enumerate([0, 2, 3, 1, 0, 3]):
        drafted = [(7 * round_ + offset) % VOCAB for offset in range(3)]
        logits, _ = target.verify(tokens[-1], chain(*drafted))
        expected = reference_logits(target.model, [*tokens, *drafted])[-4:]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)
        target.keep(range(accepted))
        tokens += [*drafted[:accepted], round_]


@pytest.mark.parametrize("architecture", ["sliding", "mixed"])
def test_a_tree_deeper_than_the_window_sees_only_the_window(architecture):
    target = tiny_target(architecture)
    prompt = [(3 * place) % VOCAB for place in range(12)]
    target.prefill(prompt[:-1])
    tokens = tuple((5 * place + 1) % VOCAB for place in range(11))
    draft = Draft((*tokens, 30), (*range(-1, 10), ROOT), torch.zeros(12, VOCAB))
    logits, _ = target.verify(prompt[-1], draft)
    expected = reference_logits(target.model, [*prompt, *tokens])[-12:]
    torch.testing.assert_close(logits[:12], expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(logits[12], reference_logits(target.model, [*prompt, 30])[-1], rtol=1e-4, atol=1e-3)


def test_a_recurrent_target_refuses_a_tree_and_stays_usable():
    target = tiny_target("hybrid")
    target.prefill(PROMPT[:-1])
    with pytest.raises(UserError, match="use a chain"):
        target.verify(PROMPT[-1], TREE)
    target.verify(PROMPT[-1], chain(10))
    target.keep((0,))
    assert_same_memory(target, [*PROMPT, 10])


def test_a_target_without_positions_takes_chains_and_refuses_trees():
    """MPT places tokens by their column in the cache, which in a tree is not their depth."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("mpt", vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)
    target = Target(AutoModelForCausalLM.from_config(config).float())
    target.prefill(PROMPT[:-1])
    logits, _ = target.verify(PROMPT[-1], chain(10, 11))
    expected = reference_logits(target.model, [*PROMPT, 10, 11])[-3:]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    target.keep(())
    with pytest.raises(UserError, match="use a chain"):
        target.verify(PROMPT[-1], TREE)


def test_a_model_that_takes_no_cache_is_refused_at_load():
    config = AutoConfig.for_model(
        "rwkv", vocab_size=VOCAB, hidden_size=32, attention_hidden_size=32, intermediate_size=64, num_hidden_layers=2
    )
    with pytest.raises(UserError, match="rwkv takes no cache"):
        Target(AutoModelForCausalLM.from_config(config))


def test_a_model_that_leaves_the_cache_empty_is_refused_at_its_first_pass():
    """It would forget the prompt without a word."""
    target = tiny_target()
    target.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "cache": None, "use_cache": False}), with_kwargs=True
    )
    target.prefill(PROMPT[:-1])
    with pytest.raises(UserError, match="tiny llama does not keep what it reads"):
        target.verify(PROMPT[-1], Draft.empty())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [1, 3, 6, 100])
def test_prefill_in_chunks_reads_the_same(architecture, chunk, monkeypatch):
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", chunk)
    target = tiny_target(architecture)
    hidden = target.prefill(PROMPT, (0, 2))
    assert_same_memory_in_one_chunk(target, monkeypatch)
    whole = tiny_target(architecture)
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 1024)
    torch.testing.assert_close(hidden, whole.prefill(PROMPT, (0, 2)), rtol=1e-4, atol=1e-4)


def assert_same_memory_in_one_chunk(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(target_module, "PREFILL_CHUNK", 1024)
        assert_same_memory(target, PROMPT)


def test_prefill_starts_anew():
    target = tiny_target()
    target.prefill([1, 2, 3])
    target.verify(4, chain(5))  # and no keep
    target.prefill(PROMPT)
    assert_same_memory(target, PROMPT)
    with pytest.raises(RuntimeError, match="keep"):
        target.keep(())


def test_an_empty_prefill_is_fine():
    target = tiny_target()
    assert target.prefill([]) is None
    hidden = target.prefill([], (0, 4))
    assert hidden is not None and hidden.shape == (0, 64)
    assert len(target.cache) == 0


def test_hidden_rows_follow_the_index_convention():
    """0: what enters the first layer; i: what leaves the i-th; the last one after the final norm."""
    target = tiny_target()
    outputs: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(target.model.base_model.layers):
        layer.register_forward_hook(lambda module, args, out, index=index: outputs.__setitem__(index, out))
    hidden = target.prefill(PROMPT, (0, 1, 3, 4))
    assert hidden is not None and hidden.shape == (len(PROMPT), 4 * 32)
    embedded = target.model.get_input_embeddings()(torch.tensor(PROMPT))
    last = target.model.base_model.norm(outputs[3][0])
    for part, expected in zip(hidden.split(32, -1), (embedded, outputs[0][0], outputs[2][0], last), strict=True):
        torch.testing.assert_close(part, expected)


def test_hidden_rows_of_a_tree_belong_to_its_nodes():
    target = tiny_target()
    target.prefill(PROMPT[:-1], (2, 4))
    _, hidden = target.verify(PROMPT[-1], TREE)
    assert hidden is not None and hidden.shape == (7, 64)
    for path in TREE_PATHS:
        ids = torch.tensor([[*PROMPT, *TREE.take(path)]])
        layers = target.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        expected = torch.cat([layers[2][0, -1], layers[4][0, -1]])
        torch.testing.assert_close(hidden[path[-1] + 1 if path else 0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_numbers_are_one_sentence(spoiled):
    target = tiny_target()
    target.model.lm_head.weight.fill_(0)
    target.model.lm_head.register_forward_hook(lambda module, args, out: out.fill_(spoiled))
    target.prefill(PROMPT[:-1])
    with pytest.raises(UserError, match="tiny llama returned logits that are not numbers after 7 tokens") as error:
        target.verify(PROMPT[-1], Draft.empty())
    assert "--dtype float32" in str(error.value)


def test_one_spoiled_row_of_a_draft_is_noticed():
    target = tiny_target()

    def spoil(module: object, args: object, out: torch.Tensor) -> torch.Tensor:
        out[0, 2, 5] = torch.nan
        return out

    target.model.lm_head.register_forward_hook(spoil)
    target.prefill(PROMPT[:-1])
    with pytest.raises(UserError, match="not numbers"):
        target.verify(PROMPT[-1], chain(1, 2, 3))


def test_a_token_that_is_ruled_out_is_no_error():
    """-inf is how a model masks tokens it never says."""
    target = tiny_target()

    def mask(module: object, args: object, out: torch.Tensor) -> torch.Tensor:
        out[..., 5] = -torch.inf
        return out

    target.model.lm_head.register_forward_hook(mask)
    target.prefill(PROMPT[:-1])
    logits, _ = target.verify(PROMPT[-1], Draft.empty())
    assert logits[0, 5] == -torch.inf


def test_stop_tokens_come_from_generation_config_config_and_tokenizer():
    model = tiny_model()
    assert Target(model).stop_tokens == frozenset()
    model.generation_config.eos_token_id = [4, 5]
    model.config.eos_token_id = 6
    assert Target(model).stop_tokens == {4, 5, 6}
    assert Target(model, byte_tokenizer()).stop_tokens == {4, 5, 6, byte_tokenizer().eos_token_id}


def test_what_a_target_says_of_itself():
    target = tiny_target("gpt2")
    assert (target.vocab_size, target.max_tokens) == (VOCAB, 256)
    assert (target.dtype, target.device) == (torch.float32, torch.device("cpu"))
    assert Target(tiny_model()).name == "llama"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exit_view_is_the_first_layers_of_the_same_model(architecture):
    model = tiny_model(architecture)
    view = exit_view(model, 3)
    assert view.config is model.config and model.config.num_hidden_layers == 4
    assert {id(p) for p in view.parameters()} < {id(p) for p in model.parameters()}
    shortened = tiny_model(architecture)
    blocks = next(m for m in shortened.base_model.children() if isinstance(m, torch.nn.ModuleList))
    del blocks[3]
    assert torch.equal(
        view(input_ids=torch.tensor([PROMPT]), use_cache=False).logits, reference_logits(shortened, PROMPT)[None]
    )
    assert not torch.equal(reference_logits(model, PROMPT), reference_logits(shortened, PROMPT))


@pytest.mark.parametrize("layer", [-1, 0, 4, 5])
def test_an_exit_layer_that_is_none_is_refused(layer):
    with pytest.raises(UserError, match="this target has 4 layers, so give 1 to 3"):
        exit_view(tiny_model(), layer)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_reads_what_leaves_the_exit_layer_before_the_final_norm(architecture):
    target, tokens = tiny_target(architecture), [*PROMPT, 8, 2]
    target.prefill(PROMPT[:-1])
    read: list[torch.Tensor] = []

    def head(state: torch.Tensor) -> torch.Tensor:
        read.append(state)
        return state * 2

    with target.early_exit(3, head=head) as step:
        answers = [step(token) for token in tokens[len(PROMPT) - 1 :]]
    whole = target.model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    expected = whole.hidden_states[3][0, len(PROMPT) - 1 :]
    torch.testing.assert_close(torch.stack(read), expected, rtol=1e-4, atol=1e-3)
    assert all(torch.equal(answer, state * 2) for answer, state in zip(answers, read, strict=True))
    assert_same_memory(target, PROMPT[:-1])


def test_a_long_prompt_can_be_stopped_while_it_is_read(monkeypatch):
    monkeypatch.setattr("specviz.models.target.PREFILL_CHUNK", 4)
    target, asked = tiny_target(), []

    def should_stop():
        asked.append(len(target.cache))
        return len(target.cache) == 8

    with pytest.raises(Cancelled):
        target.prefill(list(range(20)), (), should_stop)
    assert asked == [0, 4, 8]
    target.prefill(list(range(20)))
    assert len(target.cache) == 20, "the next run starts anew"
