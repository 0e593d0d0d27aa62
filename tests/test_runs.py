"""From a prompt to a prepared run: ids, header and warnings."""

import pytest
from fakes import chat_target, tiny_model

from specviz import runs
from specviz.decoding.engine import Settings
from specviz.errors import UserError
from specviz.presets import pairing
from specviz.trace import Trace


@pytest.fixture
def loaded():
    return runs.Loaded(pairing("smollm2-135m"), chat_target(), ())


def test_a_context_that_ends_before_the_budget_is_said(loaded):
    prompt = "x" * 250  # with the template's two tokens, 252 of 256 positions
    prepared = runs.prepare(loaded, "plain", {}, prompt, Settings(max_new_tokens=50, stop_tokens=frozenset()))
    trace = Trace(prepared.run, tuple(prepared.steps()))
    assert len(trace.tokens) == 256 - 252 + 1 and trace.finish_reason == "length"
    assert trace.warnings == ("tiny llama holds 256 tokens, so at most 5 new ones fit after this prompt.",)
    fits = runs.prepare(loaded, "plain", {}, prompt, Settings(max_new_tokens=5))
    assert fits.run.notes == ()


def test_prompts_that_cannot_be_read(loaded):
    with pytest.raises(UserError, match="empty"):
        runs.encode(loaded.target, " \n")
    with pytest.raises(UserError, match="the limit is"):
        runs.encode(loaded.target, "x" * (runs.MAX_PROMPT_CHARS + 1))
    loaded.target.tokenizer.chat_template = None
    with pytest.raises(UserError, match="use the raw prompt"):
        runs.encode(loaded.target, "x")
    assert runs.encode(loaded.target, "x", raw=True) == loaded.target.tokenizer.encode("x")


def test_the_header_is_enough_to_do_the_run_again(loaded):
    settings = Settings(gamma=3, max_new_tokens=9, seed=4, stop_strings=("zz",))
    first = runs.prepare(loaded, "ngram", {"ngram_max": 2}, "abab", settings)
    header = first.run
    again = Settings(
        gamma=header.gamma,
        max_new_tokens=header.max_new_tokens,
        seed=header.seed,
        stop_strings=header.stop_strings,
        stop_tokens=frozenset(header.stop_tokens),
    )
    second = runs.prepare(
        loaded, header.drafter, header.drafter_settings, header.prompt_text, again, raw_prompt=not header.chat_template
    )
    tokens = [[token for step in run.steps() for token in step.committed] for run in (first, second)]
    assert tokens[0] == tokens[1]
    assert header.weights == {loaded.target.name: loaded.target.weights}
    assert {"torch", "transformers", "specviz", "python", "linear layers"} == set(header.versions)


def test_one_load_per_pairing_device_and_format(monkeypatch):
    loads = []
    monkeypatch.setattr(runs, "_load", lambda *arguments: loads.append(arguments) or object())
    monkeypatch.setattr(runs, "_loaded", {})
    first = runs.load("smollm2-135m", device="cpu", dtype="float32")
    assert runs.load("smollm2-135m", device="cpu", dtype="float32") is first
    assert runs.load("smollm2-135m", device="cpu", dtype="bfloat16") is not first
    assert len(loads) == 2


def test_limits_on_the_prompt_are_said_before_anything_runs(loaded):
    with pytest.raises(UserError, match="has 302 tokens; tiny llama reads at most 256"):
        runs.prepare(loaded, "plain", {}, "x" * 300, Settings())
    with pytest.raises(UserError, match="has 102 tokens; this page takes 64"):
        runs.prepare(loaded, "plain", {}, "x" * 100, Settings(), max_prompt_tokens=64)


def test_the_header_identifies_a_draft_model_by_its_weights(loaded, tmp_path):
    hashes = []
    for seed in (1, 1, 2):
        folder = tmp_path / f"small-{len(hashes)}"
        tiny_model("llama", seed, vocab_size=loaded.target.vocab_size, num_hidden_layers=1).save_pretrained(folder)
        loaded.target.tokenizer.save_pretrained(folder)
        run = runs.prepare(loaded, "draft-model", {"source": str(folder)}, "abc", Settings()).run
        hashes.append(run.weights[folder.name])
        assert run.drafter_settings == {"source": folder.name}, "no path of this machine in a trace"
    assert len(hashes[0]) == 64 and hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("where", ["prompt", "stop"])
def test_bytes_that_are_no_text_are_refused(loaded, where):
    prompt, stop = ("caf\udce9", ()) if where == "prompt" else ("cafe", ("\udcff",))
    with pytest.raises(UserError, match="not UTF-8"):
        runs.prepare(loaded, "plain", {}, prompt, Settings(stop_strings=stop))
