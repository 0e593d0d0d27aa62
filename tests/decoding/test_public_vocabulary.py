"""Bugs reported in other engines (vocabularies and tokenizers), one test each; the docstring says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fakes import (
    byte_tokenizer,
    reference_decode,
    tiny_model,
    tiny_target,
)
from public_cases import PROMPT, SAMPLED, SETTINGS, run, tokens
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from specviz.decoding.sampling import Sampler
from specviz.drafters import DraftModel
from specviz.errors import UserError
from specviz.prompts import encode


@pytest.mark.parametrize(("target_size", "drafter_size"), [(100, 128), (128, 100)])
@pytest.mark.parametrize("temperature", [0, 1])
def test_padded_vocabularies_of_different_size_draft_for_each_other(target_size, drafter_size, temperature):
    """vllm#10913, vllm#13849, transformers#45307: 151936 rows of weights against 152064."""
    target = tiny_target(vocab_size=target_size)
    model = tiny_model(seed=1, vocab_size=drafter_size)
    with torch.no_grad():  # the drafter's favourites lie in padding, which the target never says
        model.lm_head.weight[100:].mul_(3)
        target.model.lm_head.weight[100:].zero_()
    drafter = DraftModel(target, model)
    settings = replace(SETTINGS, sampler=Sampler(temperature=temperature))
    proposals = []
    original = drafter.propose
    drafter.propose = lambda *args: proposals.append(original(*args)) or proposals[-1]
    steps = run(target, drafter, settings)
    assert len(tokens(steps)) == 16
    if temperature == 0:
        assert tokens(steps) == reference_decode(target.model, PROMPT, 16)
    for draft in proposals:
        if not len(draft):
            continue
        assert draft.q.shape == (len(draft), target_size) and all(token < 100 for token in draft.tokens)
        torch.testing.assert_close(draft.q.sum(-1), torch.ones(len(draft)))
        assert not draft.q[:, 100:].any()
    assert sum(map(len, proposals)) > 10


def renamed(change: Callable[[dict[str, int]], None], specials: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """byte_tokenizer with a changed vocabulary, and more special tokens."""
    data = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    change(data["model"]["vocab"])
    twin = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))
    twin.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    twin.add_special_tokens({"additional_special_tokens": list(specials)})
    return twin


def test_a_tokenizer_of_the_same_size_with_other_ids_is_refused():
    """sglang#24051, llama.cpp#3812: a mismatched vocabulary corrupted drafts without a word."""

    def permute(vocab: dict[str, int]) -> None:
        vocab["a"], vocab["b"], vocab["c"] = vocab["b"], vocab["c"], vocab["a"]

    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    first = byte_tokenizer().get_vocab()["a"]
    with pytest.raises(UserError, match=f"token {first} is 'a' to the target and 'c' to the drafter"):
        DraftModel(target, tiny_model(seed=1, vocab_size=259), renamed(permute))
    DraftModel(target, tiny_model(seed=1, vocab_size=259), renamed(lambda vocab: None))


def test_a_tokenizer_that_differs_in_special_tokens_only_is_noted_and_masked():
    """koboldcpp#2325: a harmless difference was refused."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=272)
    model = tiny_model(seed=1, vocab_size=272)
    with torch.no_grad():
        model.lm_head.weight[259:261].mul_(20)
    drafter = DraftModel(target, model, renamed(lambda vocab: None, ("<tool>", "<image>")))
    assert drafter.agreement.note is not None and "2 special tokens differ" in drafter.agreement.note
    steps = run(target, drafter, replace(SAMPLED, max_new_tokens=40))
    drafted = {node.token for step in steps for node in step.nodes}
    assert drafted and not drafted & {259, 260}
    unmasked = run(target, DraftModel(target, model), replace(SAMPLED, max_new_tokens=40))
    assert {node.token for step in unmasked for node in step.nodes} & {259, 260}


def test_encoding_a_prompt_adds_no_second_bos():
    """transformers#46124: the beginning token was added again at each encoding of a finished prompt."""
    tokenizer = renamed(lambda vocab: None)
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    assert tokenizer.encode("hi")[0] == bos, "this tokenizer adds one when asked to"
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m['content'] }}{% endfor %}</s>"
    target = tiny_target(tokenizer=tokenizer, vocab_size=259)
    h, i = byte_tokenizer().encode("hi")
    assert encode(target, "hi") == [bos, h, i, tokenizer.eos_token_id]
    assert encode(target, "hi", raw=True) == [h, i]
    assert encode(target, "<s>hi", raw=True) == [bos, h, i]
