"""Sampled data is what the target says and computes; reading given sequences gives the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch

from specviz.errors import UserError
from specviz.training import data, shards
from specviz.training.dataset import Dataset
from specviz.training.extract import extract, read_sequences
from specviz.training.shards import TOP, Sample


@torch.inference_mode()
def computed(sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden rows and probabilities from one pass without a cache."""
    model = tiny.target().model
    output = model(input_ids=torch.tensor([sample.ids[:-1]]), use_cache=False, output_hidden_states=True)
    layers = data.usual_layers(tiny.target())
    return torch.cat([output.hidden_states[layer][0] for layer in layers], -1), torch.softmax(output.logits[0], -1)


def test_rows_and_distributions_are_the_targets() -> None:
    """Slots hold sequences of unequal lengths; each row is what the sequence alone gives."""
    samples = tiny.sampled(12)
    assert len({len(sample.ids) for sample in samples}) > 3
    for sample in samples:
        hidden, probs = computed(sample)
        torch.testing.assert_close(sample.hidden, hidden, atol=2e-3, rtol=1e-3)
        first = sample.prompt_length - 1
        top = probs[first:].topk(TOP, -1)
        torch.testing.assert_close(sample.top_probs[first:].float(), top.values, atol=1e-2, rtol=1e-2)
        assert torch.equal(sample.top_ids[first:, 0].long(), top.indices[:, 0])
        assert not sample.top_probs[:first].any()


def test_greedy_answers_are_the_targets_choice_and_end_at_its_stop_token() -> None:
    stops, greedy = tiny.target().stop_tokens, [sample for sample in tiny.some() if sample.temperature == 0]
    assert greedy
    for sample in greedy:
        choices = sample.top_ids[sample.prompt_length - 1 :, 0].tolist()
        assert sample.ids[sample.prompt_length :] == choices
        assert not stops & set(sample.ids[sample.prompt_length : -1])


def test_sampling_twice_gives_the_same() -> None:
    assert [sample.ids for sample in tiny.sampled(5)] == [sample.ids for sample in tiny.sampled(5)]
    assert [sample.ids for sample in tiny.sampled(5)] != [sample.ids for sample in tiny.sampled(5, seed=6)]


def test_given_sequences_get_the_same_rows(tmp_path: Path) -> None:
    samples = tiny.some()[:6]
    file = tmp_path / "given.jsonl"
    lines = (json.dumps({"ids": sample.ids, "prompt_length": sample.prompt_length}) for sample in samples)
    file.write_text("\n".join(lines))
    sequences = read_sequences(file, tiny.target().vocab_size)
    for sample, found in zip(samples, extract(tiny.target(), sequences, data.usual_layers(tiny.target())), strict=True):
        torch.testing.assert_close(found.hidden, sample.hidden, atol=2e-3, rtol=1e-3)
        assert torch.equal(found.top_ids[:, 0], sample.top_ids[:, 0])


@pytest.mark.parametrize(
    "line", ['{"ids": [1, 2], "prompt_length": 2}', '{"ids": [1, 999], "prompt_length": 1}', '{"ids": [1]}', "x"]
)
def test_given_sequences_that_make_no_sense_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "given.jsonl").write_text(line)
    with pytest.raises(UserError, match=r"given\.jsonl"):
        read_sequences(tmp_path / "given.jsonl", 259)


def test_a_stopped_run_goes_on_after_its_last_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SEQUENCES", 4)
    said: list[str] = []
    settings = {"slots": 4, "answer_tokens": 8, "seed": 3, "say": said.append}
    layers = data.usual_layers(tiny.target())
    data.sample_data(tiny.target(), tmp_path, layers, tokens=10, **settings)  # type: ignore[arg-type]
    (first,) = shards.shard_files(tmp_path)
    before = first.read_bytes()
    data.sample_data(tiny.target(), tmp_path, layers, tokens=60, **settings)  # type: ignore[arg-type]
    assert first.read_bytes() == before
    found = Dataset(tmp_path)
    assert sum(shard.answer_tokens() for shard in found.shards) >= 60
    sequences = [tuple(sequence) for shard in found.shards for sequence in shard.ids.split(shard.lengths)]
    assert len({tuple(map(int, sequence)) for sequence in sequences}) == len(sequences)
    assert any("going on" in line for line in said)


def test_data_of_other_weights_is_not_mixed_in(tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "data")
    other = shards.About("tiny llama", "another hash", data.usual_layers(tiny.target()), tiny.SEED)
    shards.write(folder / "other.safetensors", list(tiny.some()[:3]), other.metadata())
    with pytest.raises(UserError, match="several targets"):
        Dataset(folder)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "data")
    (folder / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"broken\.safetensors"):
        Dataset(folder)
