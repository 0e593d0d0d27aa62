"""From a prompt to a prepared run: ids, header and warnings."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import heads_on_disk
import pytest
import torch
from fakes import chat_target, tiny_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specviz import loaded as loading
from specviz import memory, runs
from specviz.decoding.engine import Settings
from specviz.drafters import Assistant, Weights, shipped
from specviz.drafters.heads import kept
from specviz.drafters.heads.files import config
from specviz.errors import UserError
from specviz.loaded import Loaded, load
from specviz.models.heads import stored_bytes
from specviz.planning.states import lent_bytes
from specviz.presets import DrafterPreset, ModelSource, Pairing, pairing
from specviz.prompts import MAX_PROMPT_CHARS, Turn, encode
from specviz.trace import Trace


@pytest.fixture
def loaded():
    return Loaded(pairing("smollm2-135m"), chat_target(), ())


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
        encode(loaded.target, " \n")
    with pytest.raises(UserError, match="the limit is"):
        encode(loaded.target, "x" * (MAX_PROMPT_CHARS + 1))
    loaded.target.tokenizer.chat_template = None
    with pytest.raises(UserError, match="use the raw prompt"):
        encode(loaded.target, "x")
    assert encode(loaded.target, "x", raw=True) == loaded.target.tokenizer.encode("x")


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


def saved(folder, seed, **overrides):
    """A tiny model that reads bytes, as somebody might have it on disk."""
    tokenizer = chat_target().tokenizer
    tiny_model("llama", seed, vocab_size=len(tokenizer), **overrides).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSource(folder.name, folder.name, "none", path=folder)


@pytest.fixture
def own(tmp_path):
    """A pairing of two folders: a target, and a smaller model that drafts."""
    target, small = saved(tmp_path / "large", 1), saved(tmp_path / "small", 2, num_hidden_layers=1)
    drafters = (
        DrafterPreset("plain", "None", {}, ""),
        DrafterPreset("draft-model", "Small", {"gamma": 3}, "", small),
    )
    return Pairing("own", "Own", target, drafters, 1, "cpu")


def test_a_pairing_of_two_models_runs_and_the_header_names_both(own):
    drafts = own.drafters[1].model
    loaded = load(own, drafts, device="cpu", dtype="float32")
    assert loaded.assistant.model.config.num_hidden_layers == 1 and loaded.drafts == drafts
    settings = Settings(gamma=3, max_new_tokens=12, stop_tokens=frozenset())
    prepared = runs.prepare(loaded, "draft-model", {}, "abc", settings)
    plain = runs.prepare(loaded, "plain", {}, "abc", settings)
    tokens = [[token for step in each.steps() for token in step.committed] for each in (prepared, plain)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 12
    assert prepared.run.drafter_settings == {"source": "small"}, "no path of this machine in a trace"
    assert list(prepared.run.weights) == ["large", "small"] and plain.run.drafter_settings == {}
    hashes = list(prepared.run.weights.values())
    assert [len(each) for each in hashes] == [64, 64] and hashes[0] != hashes[1]


def test_two_models_of_one_name_are_told_apart(own, tmp_path):
    (tmp_path / "more").mkdir()
    other = saved(tmp_path / "more" / "large", 3, num_hidden_layers=1)
    own = replace(own, drafters=(DrafterPreset("draft-model", "Other", {}, "", other),))
    loaded = load(own, other, device="cpu", dtype="float32")
    run = runs.prepare(loaded, "draft-model", {}, "abc", Settings()).run
    assert run.weights == {"large": loaded.target.weights, "large (the drafter)": loaded.assistant.weights}
    assert run.drafter_settings == {"source": "large (the drafter)"}


def test_what_has_to_be_said_of_a_model_stays_with_it(own):
    drafts = own.drafters[1].model
    alone = replace(load(own, device="cpu", dtype="float32"), target_notes=("target",))
    both = load(own, drafts, device="cpu", dtype="float32", having=[alone])
    both = replace(both, assistant=replace(both.assistant, notes=("drafter",)))
    assert load(own, device="cpu", dtype="float32", having=[both]).notes == ("target",)
    assert load(own, drafts, device="cpu", dtype="float32", having=[both]).notes == ("target", "drafter")
    run = runs.prepare(both, "draft-model", {}, "abc", Settings()).run
    assert run.notes[:2] == ("target", "drafter")


def test_room_is_kept_for_the_model_that_drafts_and_only_if_it_is_still_to_come(own, monkeypatch):
    drafts, reserves, place = own.drafters[1].model, [], loading.place_model
    monkeypatch.setattr(
        loading, "place_model", lambda *a, reserve=0, **k: reserves.append(reserve) or place(*a, reserve=reserve, **k)
    )
    load(own, device="cpu", dtype="float32")
    load(own, drafts, device="cpu", dtype="float32")
    load(own, own.target, device="cpu", dtype="float32")
    alone, with_small, _, with_itself, _ = reserves
    assert alone == 0 < with_small < with_itself


def test_models_that_do_not_fit_each_other_are_refused_before_weights_are_read(own, monkeypatch):
    drafts = own.drafters[1].model
    (drafts.path / "tokenizer.json").unlink()
    words = Tokenizer(models.WordLevel({"<unk>": 0, "abc": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(drafts.path)
    there = load(own, device="cpu", dtype="float32")
    monkeypatch.setattr(loading, "load_model", None)
    for having in ([], [there]):
        with pytest.raises(UserError, match="small has another tokenizer than large"):
            load(own, drafts, device="cpu", dtype="float32", having=having)


def test_what_is_in_memory_serves_again_and_no_other(own):
    drafts = own.drafters[1].model
    alone = load(own, device="cpu", dtype="float32")
    assert alone.assistant is None and alone.drafts is None
    both = load(own, drafts, device="cpu", dtype="float32", having=[alone])
    assert both.target is alone.target and both.assistant is not None
    again = load(replace(own, id="other"), drafts, device="cpu", dtype="float32", having=[alone, both])
    assert (again.target, again.assistant, again.pairing.id) == (both.target, both.assistant, "other")
    without = load(own, device="cpu", dtype="float32", having=[both])
    assert without.target is both.target and without.assistant is None and without.drafts is None
    other = load(own, drafts, device="cpu", dtype="bfloat16", having=[both])
    assert other.target is not both.target and other.assistant is not both.assistant


def test_limits_on_the_prompt_are_said_before_anything_runs(loaded):
    with pytest.raises(UserError, match="has 302 tokens; tiny llama reads at most 256"):
        runs.prepare(loaded, "plain", {}, "x" * 300, Settings())
    with pytest.raises(UserError, match="has 102 tokens; this page takes 64"):
        runs.prepare(loaded, "plain", {}, "x" * 100, Settings(), max_prompt_tokens=64)


@pytest.mark.parametrize("where", ["prompt", "stop"])
def test_bytes_that_are_no_text_are_refused(loaded, where):
    prompt, stop = ("caf\udce9", ()) if where == "prompt" else ("cafe", ("\udcff",))
    with pytest.raises(UserError, match="not UTF-8"):
        runs.prepare(loaded, "plain", {}, prompt, Settings(stop_strings=stop))


# --- conversations -------------------------------------------------------------------------------------------------

HISTORY = (Turn("abc", "de"), Turn("f", "ghé"))


def test_a_conversation_is_the_template_over_all_turns(loaded):
    """The template of the tiny target brackets every message."""
    tokenizer = loaded.target.tokenizer
    ids = encode(loaded.target, "xy", history=HISTORY)
    expected = "<s>abc</s><s>de</s><s>f</s><s>ghé</s><s>xy</s>"
    assert ids == tokenizer.encode(expected, add_special_tokens=False)
    assert encode(loaded.target, "xy") == tokenizer.encode("<s>xy</s>", add_special_tokens=False)


def test_roles_alternate_and_the_target_is_asked_to_go_on(loaded):
    tokenizer = loaded.target.tokenizer
    each = "{% for m in messages %}{{ m['role'] }}={{ m['content'] }};{% endfor %}"
    tokenizer.chat_template = each + "{% if add_generation_prompt %}>{% endif %}"
    ids = encode(loaded.target, "xy", history=HISTORY)
    assert tokenizer.decode(ids) == "user=abc;assistant=de;user=f;assistant=ghé;user=xy;>"


def test_a_raw_conversation_is_everything_in_a_row(loaded):
    ids = encode(loaded.target, "xy", raw=True, history=HISTORY)
    assert ids == loaded.target.tokenizer.encode("abcdefghéxy", add_special_tokens=False)


def test_the_header_shows_the_whole_conversation(loaded):
    chat = runs.prepare(loaded, "plain", {}, "xy", Settings(), history=HISTORY)
    assert chat.run.prompt_text == "User: abc\n\nAssistant: de\n\nUser: f\n\nAssistant: ghé\n\nUser: xy"
    assert list(chat.run.prompt) == chat.prompt == encode(loaded.target, "xy", history=HISTORY)
    raw = runs.prepare(loaded, "plain", {}, "xy", Settings(), history=HISTORY, raw_prompt=True)
    assert raw.run.prompt_text == "abcdefghéxy" and not raw.run.chat_template
    alone = runs.prepare(loaded, "plain", {}, "xy", Settings())
    assert alone.run.prompt_text == "xy"


def test_conversations_that_cannot_be_read(loaded):
    with pytest.raises(UserError, match="The prompt is empty"):
        encode(loaded.target, " ", history=HISTORY)
    with pytest.raises(UserError, match="The conversation holds bytes that are not UTF-8"):
        encode(loaded.target, "x", history=[Turn("caf\udce9", "y")])
    half = "x" * (MAX_PROMPT_CHARS // 2)
    for raw in (False, True):
        with pytest.raises(UserError, match=r"The conversation has \d+ characters; the limit is"):
            encode(loaded.target, "x", raw=raw, history=[Turn(half, half)])


# --- turns on a device, and its memory -----------------------------------------------------------------------------


def test_two_targets_on_one_device_take_turns(loaded):
    other = Loaded(pairing("smollm2-135m"), chat_target(1), ())
    assert other.target is not loaded.target and other.lock is loaded.lock
    assert isinstance(loaded.lock, type(threading.Lock()))
    with loaded.lock:
        assert not other.lock.acquire(blocking=False)
    elsewhere = replace(loaded, target=SimpleNamespace(device=torch.device("cuda", 1)))
    assert elsewhere.lock is not loaded.lock
    assert replace(loaded, target=SimpleNamespace(device=torch.device("cuda", 1))).lock is elsewhere.lock


def test_the_budget_is_the_estimate_and_what_the_device_has(loaded, monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "available_bytes", lambda device: asked.append(device) or 10**9)
    settings = Settings(gamma=3, max_new_tokens=20)
    target = loaded.target

    def estimate(prompt, drafter=None):
        tokens = len(prompt) + 20
        need = memory.estimate(
            target.config,
            drafter_config=drafter,
            dtype_bytes=4,
            context_tokens=tokens,
            gamma=3,
            available=10**9,
            on_cpu=True,
        )
        return replace(need, available=10**9 + need.weights_target + need.weights_drafter + need.runtime)

    plain = runs.prepare(loaded, "plain", {}, "abc", settings)
    assert runs.budget(plain) == estimate(plain.prompt), "what is loaded is needed, and there"
    assert asked == [torch.device("cpu")]
    need = runs.budget(plain)
    assert runs.estimated_bytes(plain) == need.expected - need.runtime, "what runs before a run is none of its own"

    own = runs.budget(runs.prepare(loaded, "draft-model", {"source": "self"}, "abc", settings))
    twice = estimate(plain.prompt, target.config)
    alone = estimate(plain.prompt)
    more = {"kv": twice.kv, "logits": twice.logits, "activations": twice.activations, "headroom": own.headroom}
    assert own == replace(alone, **more), "two caches, the same weights"

    small = tiny_model("llama", vocab_size=target.vocab_size, num_hidden_layers=1)
    with_it = replace(loaded, assistant=Assistant(small, target.tokenizer, "small"))
    other = runs.budget(runs.prepare(with_it, "draft-model", {}, "abc", settings))
    assert other == estimate(plain.prompt, small.config) and other.weights_drafter > 0


@pytest.fixture
def trained(loaded, tmp_path, monkeypatch):
    """The same with trained drafters that are shipped for it, one of which, a head, is named as well."""
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    monkeypatch.setattr(kept, "_kept", [])
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10**9)
    for kind in ("draft-model", "early-exit", "eagle"):
        heads_on_disk.write(kind, tmp_path / "tiny" / kind, loaded.target.model, target=loaded.target.name)
    return replace(loaded, head=Weights(tmp_path / "tiny" / "eagle", "eagle"))


def stored(loaded, kind):
    """In 16 bits, with the rows of the target's LM head that the drafter has copied."""
    folder = loaded.head.path.parent / kind
    return stored_bytes(folder) + lent_bytes(config(folder))


def needed(loaded, kind, **settings):
    return runs.needs(loaded, kind, settings, 3, 50)


def test_a_draft_model_without_a_source_is_the_shipped_one_where_there_is_one(trained, tmp_path, monkeypatch):
    alone = replace(trained, head=None)
    shipped_one = needed(alone, "draft-model")
    assert needed(alone, "draft-model", source="shipped") == needed(alone, "draft-model", source="tiny/draft-model")
    assert shipped_one.weights_drafter == 2 * stored(trained, "draft-model"), "in float32 twice its file's 16 bits"
    itself = needed(alone, "draft-model", source="self")
    assert itself.weights_drafter == 0 and itself.kv == 2 * needed(alone, "plain").kv
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "nothing")
    assert needed(alone, "draft-model") == itself
    prepared = runs.prepare(alone, "draft-model", {}, "abc", Settings())
    assert prepared.drafter.model is alone.target.model, "as the run has it"


def test_each_part_counts_the_weights_that_it_reads(trained):
    at_hand = replace(trained, head=None)
    both = needed(at_hand, "ngram+early-exit+draft-model", exit_layer=3)
    assert both.weights_drafter == 2 * (stored(trained, "early-exit") + stored(trained, "draft-model"))
    for left_out in ({"exit_layer": 2}, {"exit_layer": 3, "adapter": False}):
        assert needed(at_hand, "early-exit", **left_out).weights_drafter == 0
    with_self = needed(at_hand, "eagle+draft-model", **{"draft-model.source": "self"})
    assert with_self.weights_drafter == 2 * stored(trained, "eagle"), "the head, and no target again"


def test_a_head_is_in_memory_already_once_it_was_read(trained):
    first, size = needed(trained, "eagle"), 2 * stored(trained, "eagle")
    assert first.weights_drafter == size
    there = 10**9 + first.weights_target + first.runtime
    assert first.available == there, "the head has yet to find room"
    prepared = runs.prepare(trained, "eagle", {}, "abc", Settings())
    assert runs.budget(prepared).available == there + size
    del prepared
    assert needed(trained, "eagle") == replace(first, available=first.available + size), "it is kept"
    exits = needed(replace(trained, head=None), "early-exit", exit_layer=3)
    assert exits.available == 10**9 + exits.weights_target + exits.runtime, "an adapter is read for each run"


@pytest.mark.parametrize(
    ("kind", "settings", "nodes"),
    [
        ("ngram", {}, 3),
        ("ngram", {"tree": False, "nodes": 40}, 3),
        ("ngram", {"tree": True, "nodes": 2}, 3),  # a chain's draft length, gamma, is the depth of a tree
        ("ngram", {"tree": True}, 8),
        ("ngram", {"tree": True, "nodes": 40}, 40),
        ("ngram+eagle", {"eagle.tree": True, "nodes": 40}, 40),
        ("ngram+eagle", {"tree": True, "ngram.nodes": 20, "eagle.nodes": 30}, 30),
        ("ngram+eagle", {"ngram.tree": True, "ngram.nodes": 20, "eagle.nodes": 30}, 20),
    ],
)
def test_a_tree_needs_room_for_all_its_nodes(trained, kind, settings, nodes):
    need, width = needed(trained, kind, **settings), trained.target.vocab_size
    rows = 2 if "eagle" in kind else 1  # of the target, and of the head
    assert need.logits == (nodes + 1) * rows * width * 4


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.x.y }}", ".* has no .*"),
        ("{% if %}", ".*"),
    ],
)
def test_a_chat_template_that_fails_is_one_sentence(loaded, template, reason):
    loaded.target.tokenizer.chat_template = template
    expected = rf"^The chat template of tiny llama can't be used \({reason}\), so use the raw prompt\.$"
    with pytest.raises(UserError, match=expected):
        encode(loaded.target, "x")
    assert encode(loaded.target, "x", raw=True) == loaded.target.tokenizer.encode("x")
