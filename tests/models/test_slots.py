"""Many sequences at a time: each slot says what its sequence says alone, whoever the neighbours are."""

from __future__ import annotations

import fakes
import pytest
import torch
from fakes import VOCAB, tiny_model
from transformers import PreTrainedModel

from specviz.errors import UserError
from specviz.models.slots import BLOCK, Slots

LAYERS = (1, 2)
PROMPTS = [[3], [1, 4, 1, 5, 9, 2, 6], [5, 3, 5]]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


def alone(model: PreTrainedModel, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [V] after the tokens, and all their hidden rows."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return output.logits[0, -1], torch.cat([output.hidden_states[layer][0] for layer in LAYERS], -1)


def check(model: PreTrainedModel, tokens: list[int], logits: torch.Tensor, hidden: torch.Tensor) -> None:
    """hidden: of the last rows."""
    expected, rows = alone(model, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(hidden, rows[-len(hidden) :], rtol=1e-3, atol=1e-3)


def test_each_slot_says_what_its_sequence_says_alone(model):
    slots = Slots(model, 3, 2 * BLOCK, LAYERS)
    texts = [list(prompt) for prompt in PROMPTS]
    logits, hidden = slots.fill([0, 1, 2], texts)
    for text, row, states in zip(texts, logits, hidden, strict=True):
        check(model, text, row, states)
    for step in range(BLOCK):  # beyond the first block of rows
        tokens = torch.tensor([(7 * step + slot) % VOCAB for slot in range(3)])
        logits, states = slots.step(tokens)
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
    for slot, text in enumerate(texts):
        check(model, text, logits[slot], states[slot : slot + 1])


def test_a_slot_that_is_filled_anew_remembers_nothing(model):
    slots = Slots(model, 2, 2 * BLOCK, LAYERS)
    slots.fill([0, 1], [PROMPTS[1], PROMPTS[2]])
    slots.step(torch.tensor([8, 8]))
    slots.rest(0)
    slots.step(torch.tensor([0, 9]))
    slots.fill([0], [PROMPTS[0]])
    logits, states = slots.step(torch.tensor([2, 7]))
    for slot, text in enumerate(([*PROMPTS[0], 2], [*PROMPTS[2], 8, 9, 7])):
        check(model, text, logits[slot], states[slot : slot + 1])


def test_without_layers_there_are_no_hidden_rows(model):
    slots = Slots(model, 1, BLOCK)
    logits, hidden = slots.fill([0], [PROMPTS[1]])
    assert hidden == [] and slots.step(torch.tensor([1]))[1] is None
    torch.testing.assert_close(logits[0], alone(model, PROMPTS[1])[0], rtol=1e-3, atol=1e-3)


def test_logits_that_the_model_scales_or_caps(monkeypatch):
    granite = "granite", {**fakes.ARCHITECTURES["llama"][1], "logits_scaling": 8.0}
    monkeypatch.setitem(fakes.ARCHITECTURES, "granite", granite)
    capped = tiny_model("mixed", layer_types=["full_attention"] * 4, final_logit_softcapping=5.0)
    for changes in (tiny_model("granite"), capped):
        slots = Slots(changes, 2, BLOCK, LAYERS)
        logits, hidden = slots.fill([0, 1], PROMPTS[1:])
        for text, row, states in zip(PROMPTS[1:], logits, hidden, strict=True):
            check(changes, text, row, states)


def test_a_model_that_attends_in_windows_is_refused():
    with pytest.raises(UserError, match="attend in windows"):
        Slots(tiny_model("sliding"), 1, BLOCK)
