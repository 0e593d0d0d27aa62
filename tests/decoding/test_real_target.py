"""The default target in fp32: every drafter says what transformers' own model and cache say, on many prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from specviz.decoding.engine import Settings, decode
from specviz.drafters import make_drafter
from specviz.loaded import Loaded
from specviz.measure import first_divergence
from specviz.models.sources import locate
from specviz.models.text import decode as decoded
from specviz.prompts import encode
from specviz.trace import Step

pytestmark = pytest.mark.model

BUDGET = 24
END = "<|im_end|>"
CHATS = {
    "code": "Write a Python function `clamp(value, low, high)` and two asserts that test it.",
    "translation": "Translate into French: The library opens at nine, but the reading room stays closed on Mondays.",
    "summary": "Summarise in one sentence: The ferry left late because of fog. Passengers waited in the hall, where "
    "volunteers handed out tea. By noon the fog had lifted and the first boat sailed with every seat taken.",
    "list": "List the planets of the solar system, one per line, numbered.",
    "story": "Begin a short story about a lighthouse keeper who finds a letter in a bottle.",
    "editing": "Correct the spelling and repeat the whole sentence: Teh quick brwon fox jumps ovre the lazy dog.",
    "arithmetic": "What is 17 + 25? Then add 8 to the result. Show each step.",
    "JSON": 'Turn this into JSON with the keys "name", "age" and "city": Maria is 34 years old and lives in Porto.',
    "question": "Why does the moon always show the same side to the Earth?",
    "dialogue": "Write a dialogue between a customer and a baker about a cake that came without candles.",
    "repetition": "Repeat exactly: tick tock tick tock tick tock tick tock. Then repeat it again.",
    "unicode": "Répète mot pour mot : « Ça coûte 5 € – 한글 and 😀👩‍💻 » puis ajoute 😀😀.",
}
RAW = {"raw": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n"}
PROMPTS = list(CHATS | RAW)
SOME = PROMPTS[::3]  # for the drafters whose code is tested at length on tiny models
TREE = {"tree": True, "nodes": 6, "branches": 3}
DRAFTERS: dict[str, tuple[str, dict[str, object], int]] = {  # kind, settings, gamma
    "plain": ("plain", {}, 0),
    "ngram": ("ngram", {}, 5),
    "ngram tree": ("ngram", TREE, 5),
    "bare early exit": ("early-exit", {"exit_layer": 20}, 2),
    "itself": ("draft-model", {"source": "self"}, 4),
    "early-exit": ("early-exit", {}, 2),
    "draft-model": ("draft-model", {"source": "shipped"}, 3),
    "eagle": ("eagle", {}, 3),
    "eagle tree": ("eagle", TREE, 3),
    "mtp": ("mtp", {}, 3),
    "mtp tree": ("mtp", TREE, 3),
    "medusa": ("medusa", {}, 3),
    "medusa tree": ("medusa", TREE, 3),
    "ngram+eagle": ("ngram+eagle", {}, 4),
}
# Acceptance lengths that the trained ones have to pass.
FLOOR = {"early-exit": 1.2, "draft-model": 1.3, "eagle": 1.5, "mtp": 1.4, "medusa": 1.2, "ngram+eagle": 1.5}
TRAINED = [name for name in DRAFTERS if name.split()[0] in FLOOR]


@pytest.fixture(scope="module")
def bare_model(default_target: Loaded) -> PreTrainedModel:
    """The same weights as transformers loads them: nothing packed, nothing of ours around them."""
    folder = locate(default_target.pairing.target).path
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference(default_target: Loaded, bare_model: PreTrainedModel) -> Callable[[str], tuple[list[int], list[int]]]:
    """reference(name): a prompt's ids, and what transformers' model says after it with transformers' own cache."""
    target = default_target.target

    @cache
    @torch.inference_mode()
    def say(name: str) -> tuple[list[int], list[int]]:
        prompt = encode(target, (CHATS | RAW)[name], raw=name in RAW)
        end = target.tokenizer.convert_tokens_to_ids(END)
        own, ids, said = DynamicCache(config=bare_model.config), prompt, []
        while len(said) < BUDGET and end not in said:
            logits = bare_model(input_ids=torch.tensor([ids]), cache=own, use_cache=True, logits_to_keep=1).logits
            said.append(int(logits[0, -1].argmax()))
            ids = said[-1:]
        return prompt, said

    return say


def run(loaded: Loaded, name: str, prompt: list[int], **settings: object) -> list[Step]:
    kind, own, gamma = DRAFTERS[name]
    drafter = make_drafter(kind, loaded.target, own)
    chosen = Settings(**{"gamma": gamma, "max_new_tokens": BUDGET, **settings})
    return list(decode(loaded.target, drafter, prompt, chosen))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


@pytest.mark.parametrize(
    ("drafter", "name"),
    [(drafter, name) for drafter in DRAFTERS for name in (SOME if drafter in TRAINED else PROMPTS)],
)
def test_output_equals_transformers_own(default_target, reference, drafter, name):
    prompt, expected = reference(name)
    steps = run(default_target, drafter, prompt)
    assert tokens(steps) == expected
    assert "".join(piece for step in steps for piece in step.text) == decoded(default_target.target.tokenizer, expected)
    if drafter == "itself":
        assert all(node.outcome in ("accepted", "cut") for step in steps for node in step.nodes)
        assert sum(step.num_accepted for step in steps) > len(expected) / 2


def test_drafts_of_every_kind_are_partly_accepted_and_partly_rejected(default_target, reference):
    """Otherwise the equality above would show little. Prompts whose drafts do both."""
    for drafter, name in (("ngram", "editing"), ("bare early exit", "code")):
        outcomes = {node.outcome for step in run(default_target, drafter, reference(name)[0]) for node in step.nodes}
        assert {"accepted", "rejected"} <= outcomes, drafter


@pytest.mark.parametrize("drafter", TRAINED)
def test_the_trained_drafters_that_come_along_are_right_often_enough(default_target, reference, drafter):
    """Well below what they reach, and well above what a head reads wrongly, or of other weights, would."""
    steps = [step for name in SOME for step in run(default_target, drafter, reference(name)[0])]
    assert 1 + sum(step.num_accepted for step in steps) / len(steps) > FLOOR[drafter.split()[0]]
    assert any(node.outcome == "rejected" for step in steps for node in step.nodes)


def test_the_reference_agrees_with_a_forward_pass_without_a_cache(bare_model, reference):
    for name in ("translation", "raw"):
        prompt, expected = reference(name)
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *expected[:-1]]])
            logits = bare_model(input_ids=ids, use_cache=False).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == expected


@pytest.mark.parametrize("name", CHATS)
def test_prompt_ids_are_those_of_the_chat_template_and_nothing_more(default_target, name):
    """The beginning token is one that the template writes itself, several times; encoding must not add another."""
    tokenizer = default_target.target.tokenizer
    ids = encode(default_target.target, CHATS[name])
    turn = [{"role": "user", "content": CHATS[name]}]
    template = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == list(template)
    written = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    assert decoded(tokenizer, ids) == written
    assert ids.count(tokenizer.bos_token_id) == written.count(tokenizer.bos_token) == 3
    assert ids[:2].count(tokenizer.bos_token_id) == 1


def test_a_raw_prompt_is_its_text_and_nothing_more(default_target):
    tokenizer = default_target.target.tokenizer
    ids = encode(default_target.target, RAW["raw"], raw=True)
    assert decoded(tokenizer, ids) == RAW["raw"]
    assert tokenizer.bos_token_id not in ids


def test_the_end_of_a_turn_ends_the_run(default_target):
    prompt = encode(default_target.target, "Say the word yes and nothing else.")
    for drafter in ("plain", "ngram", "itself"):
        steps = run(default_target, drafter, prompt, max_new_tokens=60)
        assert steps[-1].cut == "stop_token"
        assert decoded(default_target.target.tokenizer, tokens(steps)[-1:]) == END


def test_bf16_parts_from_plain_output_only_at_a_near_tie(default_target_bf16):
    """vllm#7627, EAGLE#212: half precision flips near ties between passes of different width, and nothing else."""
    target = default_target_bf16.target
    settings = Settings(gamma=5, max_new_tokens=64)
    for name in ("dialogue", "question"):
        prompt = encode(target, CHATS[name])
        plain, drafted = (
            tokens(list(decode(target, make_drafter(kind, target, {}), prompt, settings, detail=False)))
            for kind in ("plain", "ngram")
        )
        divergence = first_divergence(target, prompt, plain, drafted, settings)
        assert divergence is None or divergence.near_tie, divergence
