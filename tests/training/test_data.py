"""Sampled data is what the target says and computes; reading given sequences gives the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from fakes import reference_logits, tiny_target
from safetensors import SafetensorError

from specviz.errors import UserError
from specviz.training import data, shards
from specviz.training.dataset import Dataset
from specviz.training.extract import Sequence, extract, read_sequences
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


def test_distributions_of_a_target_that_caps_its_logits() -> None:
    capped = tiny_target("mixed", final_logit_softcapping=5.0)
    (found,) = extract(capped, [Sequence([1, 2, 3, 4, 5, 6, 7], 2)], (4,))
    probs = torch.softmax(reference_logits(capped.model, [1, 2, 3, 4, 5, 6])[1:], -1)
    torch.testing.assert_close(found.top_probs[1:].float(), probs.topk(TOP, -1).values, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize(
    "line",
    [
        '{"ids": [1, 2], "prompt_length": 2}',
        '{"ids": [1, 999], "prompt_length": 1}',
        '{"ids": [1, 1e999], "prompt_length": 1}',
        '{"ids": [1]}',
        "[1]",
        "[" * 100_000,
        "x",
        "",
    ],
)
def test_given_sequences_that_make_no_sense_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "given.jsonl").write_text(line)
    with pytest.raises(UserError, match=r"given\.jsonl"):
        read_sequences(tmp_path / "given.jsonl", 259)


def test_given_sequences_longer_than_the_targets_positions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "given.jsonl"
    file.write_text("".join(json.dumps({"ids": [1] * length, "prompt_length": 1}) + "\n" for length in (3, 513, 514)))
    with pytest.raises(UserError, match=r"Sequence 3 of .* has 514 tokens, too many for the target's 512 positions"):
        data.extract_data(tiny.target(), tmp_path / "out", (4,), file, seed=0, say=lambda text: None)


def test_conversations_that_could_outgrow_the_targets_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="longer than the 512 positions"):
        data.sample_data(
            tiny.target(), tmp_path, (4,), tokens=1, slots=2, answer_tokens=257, seed=0, say=lambda text: None
        )
    data._check_room(tiny.target(), 2, 256)


def test_arrays_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "given.npz"
    file.write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(UserError, match=r"given\.npz can't be read"):
        read_sequences(file, 259)
    np.savez(file, ids=np.array([1.5, 2.5]), length=np.array([2]), prompt_length=np.array([1]))
    with pytest.raises(UserError, match="whole numbers"):
        read_sequences(file, 259)


def given(file: Path, first: int, count: int) -> Path:
    """A file of so many sequences of five tokens."""
    file.parent.mkdir(exist_ok=True)
    rows = ({"ids": [number, 1, 2, 3, 4], "prompt_length": 2} for number in range(first, first + count))
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_a_file_that_has_grown_is_gone_on_with_after_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SEQUENCES", 4)
    out, layers, said = tmp_path / "out", data.usual_layers(tiny.target()), []
    for count in (6, 11, 11):
        file = given(tmp_path / "a.jsonl", 0, count)
        data.extract_data(tiny.target(), out, layers, file, seed=0, say=said.append)
    found = [shards.read(path) for path in shards.shard_files(out)]
    assert [len(shard.lengths) for shard in found] == [4, 2, 4, 1]
    assert [int(token) for shard in found for token in shard.ids[::5]] == list(range(11))
    assert "all 11 sequences" in said[-1]


@pytest.mark.parametrize(("first", "count"), [(20, 6), (0, 3)])
def test_another_file_of_the_same_name_is_not_taken_for_the_first(first: int, count: int, tmp_path: Path) -> None:
    out, layers = tmp_path / "out", data.usual_layers(tiny.target())
    data.extract_data(tiny.target(), out, layers, given(tmp_path / "a.jsonl", 0, 6), seed=0, say=lambda text: None)
    other = given(tmp_path / "other" / "a.jsonl", first, count)
    with pytest.raises(UserError, match="other sequences"):
        data.extract_data(tiny.target(), out, layers, other, seed=0, say=lambda text: None)


def test_data_that_is_complete_is_left_as_it_is(tmp_path: Path) -> None:
    folder, said = tiny.written(tmp_path / "data"), []
    have = Dataset(folder).answer_tokens
    settings = {"slots": 4, "answer_tokens": 8, "seed": tiny.SEED, "say": said.append}
    data.sample_data(tiny.target(), folder, data.usual_layers(tiny.target()), tokens=have, **settings)
    assert len(shards.shard_files(folder)) == 2
    assert "already" in said[0]


@pytest.mark.parametrize("counts", [{"slots": 10**11, "answer_tokens": 8}, {"slots": 2, "answer_tokens": 10**13}])
def test_more_conversations_than_memory_holds_are_refused(counts: dict[str, int], tmp_path: Path) -> None:
    layers = data.usual_layers(tiny.target())
    with pytest.raises(UserError, match="give fewer --slots"):
        data.sample_data(tiny.target(), tmp_path, layers, tokens=1, seed=0, say=lambda text: None, **counts)


def test_a_shard_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("no space")

    monkeypatch.setattr(shards, "save_file", full)
    with pytest.raises(UserError, match=r"one\.safetensors can't be written \(no space\)"):
        shards.write(tmp_path / "one.safetensors", tiny.some()[:1], {})
    assert not list(tmp_path.iterdir())


def test_data_with_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    only = [sample for sample in tiny.some() if tiny.held_out(sample)]
    assert only
    with pytest.raises(UserError, match="no answers to train on"):
        Dataset(tiny.written(tmp_path / "data", 1, only))


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
