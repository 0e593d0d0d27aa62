"""MTP layers and DFlash models are given what transformers' own loop gives them, and draft the same."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload
from assistants import dflash_model, library, load_target, pair, save_mtp_checkpoint
from fakes import VOCAB, reference_decode, tiny_target
from locks import is_held
from transformers import GenerationConfig
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator, MTPCandidateGenerator

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Assistant, Context, Library
from specviz.errors import UserError
from specviz.memory import count_mtp_parameters
from specviz.models.alone import loading_alone
from specviz.models.pack import is_packed, pack
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4]
SETTINGS = Settings(gamma=8, max_new_tokens=40, stop_tokens=frozenset())
GENERATORS = {
    "mtp, 1 layer": MTPCandidateGenerator,
    "mtp, 3 layers": MTPCandidateGenerator,
    "dflash": DFlashTokenCandidateGenerator,
}
every_head = pytest.mark.parametrize("name", GENERATORS)


def committed(steps) -> list[int]:
    return [token for step in steps for token in step.committed]


def drafted_anew(name: str, prompt: list[int], start: int, gamma: int) -> Draft:
    """A greedy draft of a generator that has not drafted before, after so many tokens."""
    target, drafter = library(name)
    tokens = [*prompt, *reference_decode(target.model, prompt, start - len(prompt))]
    with torch.inference_mode():
        ctx = Context(tokens, target.prefill(tokens[:-1], drafter.hidden_layers))
        return drafter.propose(ctx, gamma, Sampler(), torch.Generator())


# --- parity ---------------------------------------------------------------------------------------------------------


def transformers_drafts(name: str, prompt: list[int], monkeypatch) -> dict[int, list[int]]:
    """What transformers drafts in its own greedy loop, by the number of tokens before the draft."""
    target, method, assistant = pair(name)
    drafts = {}
    original = GENERATORS[name].get_candidates

    def noting(self, input_ids, **kwargs):
        candidates, logits = original(self, input_ids, **kwargs)
        drafts[input_ids.shape[1]] = candidates[0, input_ids.shape[1] :].tolist()
        return candidates, logits

    monkeypatch.setattr(GENERATORS[name], "get_candidates", noting)
    how = {"use_mtp": True} if method == "mtp" else {"speculation_type": "dflash"}
    more = {"assistant_model": assistant.model} if assistant else {}
    config = GenerationConfig(max_new_tokens=40, do_sample=False, **how)
    output = target.model.generate(torch.tensor([prompt]), generation_config=config, **more)
    monkeypatch.undo()
    assert output[0, len(prompt) :].tolist() == reference_decode(target.model, prompt, 40)
    return drafts


@pytest.mark.parametrize("prompt", [PROMPT, [9, 1, 7, 7, 2, 9, 1, 7] * 4])
@every_head
def test_the_drafts_are_those_of_transformers_own_loop(name, prompt, monkeypatch):
    theirs = transformers_drafts(name, prompt, monkeypatch)
    assert theirs.pop(len(prompt)) == [], "its first pass drafts nothing"
    drafts = [drafted for drafted in theirs.values() if drafted]
    assert len(drafts) >= 8
    for start, drafted in theirs.items():
        if drafted:  # near its end it drafts nothing
            assert list(drafted_anew(name, prompt, start, 8).tokens) == drafted


class Noting(Library):
    """Keeps its drafts, by the number of tokens before them, and drafts in some steps only, as a gamma policy may."""

    def __init__(self, *pair: object, skips: bool) -> None:
        super().__init__(*pair)
        self.skips, self.drafts = skips, {}

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        start = len(ctx.tokens)
        self.drafts[start] = super().propose(ctx, 0 if self.skips and start % 5 > 1 else gamma, sampler, rng)
        return self.drafts[start]


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@every_head
def test_a_draft_depends_on_the_tokens_alone_not_on_earlier_drafts(name, gamma, skips):
    """So the caches hold what a generator that reads everything anew puts there, whatever was accepted or skipped."""
    target, method, assistant = pair(name)
    drafter = Noting(target, method, assistant, skips=skips)
    assert len(list(decode(target, drafter, PROMPT, replace(SETTINGS, gamma=gamma)))) > 10
    drafts = {start: draft for start, draft in drafter.drafts.items() if len(draft)}
    assert len(drafts) >= 5 and {draft.note for draft in drafter.drafts.values()} == {None}
    for start, draft in drafts.items():
        anew = drafted_anew(name, PROMPT, start, len(draft))
        assert anew.tokens == draft.tokens
        torch.testing.assert_close(draft.logits, anew.logits, rtol=1e-4, atol=1e-4)


def test_no_hidden_state_no_draft():
    target, drafter = library("dflash")
    steps = list(decode(target, drafter, [3], SETTINGS))
    assert steps[0].note == "Before the target's first pass there is no hidden state to draft from."
    assert not steps[0].nodes and steps[1].nodes and steps[1].note is None


# --- multi-token prediction -----------------------------------------------------------------------------------------


def test_each_layer_drafts_one_token():
    for name, depth in (("mtp, 1 layer", 1), ("mtp, 3 layers", 3)):
        target, drafter = library(name)
        steps = list(decode(target, drafter, PROMPT, SETTINGS))
        assert {len(step.nodes) for step in steps[:-3]} == {depth}


def test_the_weights_are_read_once_and_a_run_shares_them(monkeypatch):
    target, drafter = library("mtp, 3 layers")
    monkeypatch.setattr(MTPCandidateGenerator, "__init__", None)  # would fail
    runs = [drafter.method.start(Sampler()) for _ in range(2)]
    assert runs[0].generator.mtp_model is runs[1].generator.mtp_model
    assert runs[0].generator.mtp_cache is not runs[1].generator.mtp_cache
    assert runs[0].generator.mtp_model.embed_tokens is target.model.get_input_embeddings()


@pytest.mark.parametrize("family", ["mellum", "glm4_moe"])
def test_one_copy_of_the_weights_serves_a_target_and_goes_with_it(family, tmp_path):
    target = load_target(save_mtp_checkpoint(tmp_path, family))
    with ThreadPoolExecutor(5) as visitors:
        drafters = list(visitors.map(Library, [target] * 5, ["mtp"] * 5))
    layers = [drafter.method.start(Sampler()).generator.mtp_model for drafter in drafters]
    assert len({id(each) for each in layers}) == 1
    assert count_mtp_parameters(target.model.config) == sum(weight.numel() for weight in layers[0].layers.parameters())
    other = Library(load_target(tmp_path), "mtp")
    assert other.method.start(Sampler()).generator.mtp_model is not layers[0]
    watched = [weakref.ref(thing) for thing in (target.model, layers[0])]
    del target, drafters, layers
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_the_weights_are_read_alone(tmp_path, monkeypatch):
    """Transformers alters the whole process meanwhile."""
    target = load_target(save_mtp_checkpoint(tmp_path, "mellum"))
    original, held = torch.set_default_dtype, []

    def watched(dtype: torch.dtype) -> None:
        held.append(is_held(loading_alone))
        original(dtype)

    monkeypatch.setattr(torch, "set_default_dtype", watched)
    Library(target, "mtp")
    assert held and all(held)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["universal", *GENERATORS])
def test_a_model_that_loads_meanwhile_changes_nothing(name, temperature):
    """Torch's default dtype, which it sets for all threads, is in no draft and no decision."""
    target, drafter = library(name)

    def steps() -> list[Step]:
        run = decode(target, drafter, PROMPT, replace(SETTINGS, sampler=Sampler(temperature)))
        return [replace(step, seconds=None, prefill_s=None) for step in run]

    expected = steps()
    assert any(step.nodes for step in expected)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert steps() == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_packed_weights_draft_the_same(tmp_path):
    folder = save_mtp_checkpoint(tmp_path, "glm4_moe")
    target = load_target(folder, packed=True)
    if not is_packed(target.model):
        pytest.skip("this build of torch has no packed kernels")
    steps = list(decode(target, Library(target, "mtp"), PROMPT, SETTINGS))
    plain = list(decode(*library("mtp, 3 layers"), PROMPT, SETTINGS))
    assert [[node.token for node in step.nodes] for step in steps] == [[n.token for n in step.nodes] for step in plain]


@pytest.mark.parametrize("part", ["mtp.fc.", "mtp."])
def test_a_checkpoint_without_the_mtp_weights_is_refused(part, tmp_path):
    target = load_target(save_mtp_checkpoint(tmp_path, "mellum", drop=part))
    with pytest.raises(UserError, match=r"layers of tiny MTP can't be loaded \(.*missing.*\); choose another drafter"):
        Library(target, "mtp")


def test_layers_whose_kind_the_config_does_not_tell_are_refused():
    """As in hybrid models whose layers differ: transformers can't know which kind the extra ones are."""
    target = tiny_target("hybrid")
    target.config.num_mtp_layers = 1
    target.config.dtype = torch.float32
    target.model.config.name_or_path = str(Path(__file__).parent)
    with pytest.raises(UserError, match=r"can't be loaded \(.*ambiguous\); choose another drafter"):
        Library(target, "mtp")


def test_a_target_that_was_not_loaded_from_a_folder_is_refused():
    target = tiny_target()
    target.config.num_mtp_layers = 1
    for where in ("", "some/repository"):
        target.model.config.name_or_path = where
        with pytest.raises(UserError, match="read from its folder, and it was not loaded from one; choose another"):
            Library(target, "mtp")


# --- DFlash ---------------------------------------------------------------------------------------------------------


def blocks(**settings: object) -> Assistant:
    return Assistant(dflash_model(**settings), None, "blocks")


def test_a_block_is_shortened_to_gamma():
    target = tiny_target()
    drafter = Library(target, "dflash", blocks(block_size=6))
    for gamma, expected in ((1, 1), (4, 4), (5, 5), (9, 5)):
        steps = list(decode(target, drafter, PROMPT, replace(SETTINGS, gamma=gamma, max_new_tokens=20)))
        assert max(len(step.nodes) for step in steps) == expected


def test_the_draft_models_last_position_is_used_and_none_beyond():
    target = tiny_target()
    drafter = Library(target, "dflash", blocks(max_position_embeddings=24))
    last = []
    drafter.model.register_forward_pre_hook(
        lambda module, args, kwargs: last.append(int(kwargs["position_ids"].max())), with_kwargs=True
    )
    steps = list(decode(target, drafter, PROMPT, SETTINGS))
    assert committed(steps) == reference_decode(target.model, PROMPT, 40)
    assert max(last) == 23
    for step in steps[:-1]:
        assert bool(step.nodes) == (step.start <= 21)
        assert bool(step.note) == (step.start > 21)
    assert steps[-2].note == "blocks drafts after at most 21 tokens; beyond them nothing is drafted."


def test_a_packed_lm_head_drafts_the_same():
    """It has no weight to ask for its device."""
    drafts = []
    for packed in (False, True):
        target = tiny_target()
        if packed and not pack(target.model):
            pytest.skip("this build of torch has no packed kernels")
        steps = list(decode(target, Library(target, "dflash", blocks()), PROMPT, SETTINGS))
        assert {step.note for step in steps} == {None}
        drafts.append([[node.token for node in step.nodes] for step in steps])
    assert drafts[0] == drafts[1]


@torch.inference_mode()
def test_the_hidden_rows_reach_the_layers_they_belong_to():
    """Two layers in each other's place is another draft model."""
    target = tiny_target()
    hidden = target.prefill(PROMPT[:-1], (1, 4))
    seen = []
    drafter = Library(target, "dflash", blocks(target_layer_ids=[0, 3]))
    drafter.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["context_hidden_states"]), with_kwargs=True
    )
    drafter.propose(Context(PROMPT, hidden), 2, Sampler(), torch.Generator())
    states = target.model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[1], states[4]], -1)[:, :-1]
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_embeddings_keep_their_norm():
    """transformers takes it off for a moment, where another thread may be reading."""
    target = tiny_target()
    embeddings = target.model.get_input_embeddings()
    embeddings.embed_norm = torch.nn.LayerNorm(32)
    norms, drafter = [], Library(target, "dflash", blocks())
    drafter.model.register_forward_pre_hook(lambda *_: norms.append(embeddings.embed_norm))
    original = torch.nn.Embedding.forward

    def reading(self, ids):
        norms.append(embeddings.embed_norm)
        return original(self, ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Embedding, "forward", reading)
        draft = drafter.propose(Context(PROMPT, torch.randn(4, 96)), 3, Sampler(), torch.Generator())
    assert len(draft) == 3 and len(norms) >= 2
    assert {id(norm) for norm in norms} == {id(embeddings.embed_norm)}
    assert isinstance(embeddings.embed_norm, torch.nn.LayerNorm)


@torch.inference_mode()
def test_the_norm_is_off_where_accelerate_runs_the_embeddings():
    """Its hook runs the original module's children, unless the copy has one of its own."""

    class Normed(torch.nn.Embedding):
        def forward(self, ids):
            return self.embed_norm(super().forward(ids))

    given = []
    for hooked in (False, True):
        target = tiny_target()
        embeddings = target.model.get_input_embeddings()
        embeddings.__class__, embeddings.embed_norm = Normed, torch.nn.LayerNorm(32)
        drafter = Library(target, "dflash", blocks())
        drafter.model.register_forward_pre_hook(
            lambda module, args, kwargs: given.append(kwargs["noise_embeds"]), with_kwargs=True
        )
        if hooked:
            cpu_offload(target.model, execution_device=torch.device("cpu"))
        assert len(drafter.propose(Context(PROMPT, torch.zeros(4, 96)), 3, Sampler(), torch.Generator())) == 3
    plain = tiny_target().model.get_input_embeddings()(torch.tensor([[PROMPT[-1], *[VOCAB - 1] * 3]]))
    assert torch.equal(given[0], plain) and torch.equal(given[1], plain)


def test_logits_that_are_not_numbers_cost_the_draft_alone():
    target = tiny_target()
    drafter = Library(target, "dflash", blocks())
    drafter.model.norm.register_forward_hook(lambda module, args, output: torch.full_like(output, torch.nan))
    steps = list(decode(target, drafter, PROMPT, replace(SETTINGS, sampler=Sampler(1.0))))
    assert len(committed(steps)) == 40 and not any(step.nodes for step in steps)
    assert steps[0].note == (
        "Transformers' generator failed (its logits leave no token to choose); nothing was drafted in this step."
    )
