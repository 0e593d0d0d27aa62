"""Training learns, goes on where it stopped, and writes drafters that work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import BinaryIO

import fakes
import pytest
import tiny
import torch
from safetensors.torch import load_file

from specviz.decoding.engine import Settings, decode
from specviz.drafters import make_drafter
from specviz.drafters.base import Context, Weights
from specviz.drafters.heads.layouts import read_head
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.training import card, trainer
from specviz.training.data import Say
from specviz.training.dataset import Batch, Dataset
from specviz.training.optimiser import course
from specviz.training.shards import Sample
from specviz.training.tasks import DraftModelTask, ExitTask, HeadTask, MedusaTask, Task
from specviz.training.trainer import CHECKPOINT, Plan, Progress, train

TASKS: dict[str, Callable[[torch.Tensor], Task]] = {
    "eagle3": lambda d2t: HeadTask(tiny.target(), d2t, "eagle3", (2, 4), 3),
    "joined": lambda d2t: HeadTask(tiny.target(), d2t, "eagle3", (2, 4), 3, joined=True),
    "mtp": lambda d2t: HeadTask(tiny.target(), d2t, "mtp", (4,), 3),
    "medusa": lambda d2t: MedusaTask(tiny.target(), d2t, 3, 2),
    "draft-model": lambda d2t: DraftModelTask(tiny.target(), d2t, (0, 2)),
    "early-exit": lambda d2t: ExitTask(tiny.target(), d2t, 2, 24),
}
VOCAB = 200  # of the target's 259


def what(kind: str) -> str:
    """What `train` calls it."""
    return "eagle3" if kind == "joined" else kind


def drafter_kind(kind: str) -> str:
    return card.KINDS.get(what(kind), what(kind))


def made(kind: str, folder: Path) -> tuple[Task, Dataset, torch.Tensor]:
    data = Dataset(folder)
    d2t = data.frequent(VOCAB, sorted(tiny.target().stop_tokens), tiny.target().vocab_size)
    torch.manual_seed(0)
    return TASKS[kind](d2t), data, d2t


def trained(
    task: Task,
    data: Dataset,
    d2t: torch.Tensor,
    out: Path,
    tokens: int,
    batch_tokens: int = 300,
    say: Say = lambda text: None,
) -> Progress:
    width = int(tiny.target().config.hidden_size)
    plan = Plan(tokens, None, batch_tokens=batch_tokens)
    return train(task, data, d2t, tiny.target().vocab_size, width, plan, out, say)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.written(tmp_path / "data")


@pytest.mark.parametrize("kind", TASKS)
def test_each_kind_learns_and_the_result_drafts(kind: str, folder: Path, tmp_path: Path) -> None:
    task, data, d2t = made(kind, folder)
    whole = first_batch(task, data, d2t)
    before = task.losses(whole, 1)[0].mean.item()
    progress = trained(task, data, d2t, tmp_path / "out", 12_000)
    assert task.losses(whole, 1)[0].mean.item() < 0.9 * before
    called = "python -m specviz train"
    task.write(tmp_path / "made", card.about(what(kind), tiny.target(), progress, 0, called))
    card.write(tmp_path / "made", what(kind), tiny.target(), data, progress, 0, called)
    text = (tmp_path / "made" / "README.md").read_text()
    assert called in text
    assert "hash" in text
    answers = sum(shard.answer_tokens() for shard in data.shards)
    assert f"was given: {data.shards[0].path.stem.rpartition('-')[0]} {answers:,}." in text
    drafter = make_drafter(drafter_kind(kind), tiny.target(), {}, Weights(tmp_path / "made", "made"))
    prompt = data.shards[0].ids[: data.shards[0].prompt_lengths[0]].tolist()
    settings = Settings(gamma=3, max_new_tokens=16, stop_tokens=frozenset())
    drafted, plain = (
        [token for step in decode(tiny.target(), each, prompt, settings) for token in step.committed]
        for each in (drafter, Plain())
    )
    assert drafted == plain


def first_batch(task: Task, data: Dataset, d2t: torch.Tensor) -> Batch:
    t2d = torch.full((tiny.target().vocab_size,), -1)
    t2d[d2t] = torch.arange(len(d2t))
    width = int(tiny.target().config.hidden_size)
    return data.load(data.training[:20], data.columns(task.layers), width, t2d)


@pytest.mark.parametrize("kind", ["eagle3", "joined", "mtp"])
def test_what_is_written_drafts_as_it_was_trained(kind: str, folder: Path, tmp_path: Path) -> None:
    """The scale of the states is folded into the file, and states and tokens meet as in training: on true text, the
    drafter's first choice is the one that training counted."""
    task, data, d2t = made(kind, folder)
    trained(task, data, d2t, tmp_path / "out", 3_000)
    task.write(tmp_path / "made", {"target": tiny.target().name})
    drafter = make_drafter(drafter_kind(kind), tiny.target(), {}, Weights(tmp_path / "made", "made"))
    batch = first_batch(task, data, d2t)
    agreed = rows = 0
    for place in data.training[:20]:
        shard = data.shards[place.shard]
        ids = shard.ids[place.first : place.first + place.length].tolist()
        hidden = tiny.target().prefill(ids[:-1], drafter.hidden_layers)
        assert hidden is not None
        for end in range(place.prompt_length, place.length):
            ctx = Context(ids[:end], hidden[: end - 1])
            draft = drafter.propose(ctx, 1, Settings().sampler, torch.Generator())
            agreed += draft.tokens[0] == int(shard.top_ids[place.row + end - 1, 0])
            rows += 1
    counted = task.losses(batch, 1)[0]
    assert (rows, agreed) == (counted.rows, counted.agreed)


def test_going_on_equals_never_having_stopped(folder: Path, tmp_path: Path) -> None:
    task, data, d2t = made("eagle3", folder)
    trained(task, data, d2t, tmp_path / "whole", 4_000)
    stopped, data, d2t = made("eagle3", folder)
    seen = 0

    class Stopped(Exception):
        pass

    losses = stopped.losses

    def until(batch: Batch, depth: int) -> object:
        nonlocal seen
        seen += 1
        if seen > 9:
            raise Stopped
        return losses(batch, depth)

    stopped.losses = until  # type: ignore[method-assign, assignment]
    width = int(tiny.target().config.hidden_size)
    plan = Plan(4_000, None, batch_tokens=300, checkpoint_minutes=0)
    with pytest.raises(Stopped):
        train(stopped, data, d2t, tiny.target().vocab_size, width, plan, tmp_path / "parts", lambda text: None)
    again, data, d2t = made("eagle3", folder)
    trained(again, data, d2t, tmp_path / "parts", 4_000)
    for one, other in zip(task.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_goes_on_upon_another_device(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint says that all of it lay on a GPU."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    trained(*made("eagle3", folder), tmp_path / "parts", 600)
    again, data, d2t = made("eagle3", folder)
    progress = trained(again, data, d2t, tmp_path / "parts", 1_200)
    assert progress.seen >= 1_200
    assert again.scale.device == d2t.device  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_data_in_another_number_format_than_the_targets(kind: str, folder: Path, tmp_path: Path) -> None:
    """It trains to the same as data of the same values in the target's format."""
    parameters = []
    for name, convert in (("stored", torch.Tensor.bfloat16), ("same", lambda rows: rows.bfloat16().float())):
        task, data, d2t = made(kind, folder)
        data.shards = [replace(shard, hidden=convert(shard.hidden)) for shard in data.shards]
        progress = trained(task, data, d2t, tmp_path / name, 600)
        assert progress.curve[-1]["agreement"]
        parameters.append(list(task.module.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*parameters, strict=True))


@pytest.mark.parametrize(("kind", "layers"), [("eagle3", (2, 4)), ("mtp", (4,))])
def test_a_draft_vocabulary_as_large_as_the_targets_is_the_targets(
    kind: str, layers: tuple[int, ...], tmp_path: Path
) -> None:
    task = HeadTask(tiny.target(), torch.arange(tiny.target().vocab_size), kind, layers, 2)
    task.write(tmp_path, {})
    assert "d2t" not in load_file(tmp_path / "model.safetensors")
    assert read_head(tmp_path, tiny.target().config).config.draft_vocab_size is None
    assert torch.equal(task.lm.weight, tiny.target().model.get_output_embeddings().weight)


def test_what_an_lm_head_adds_is_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fakes.ARCHITECTURES, "phi", ("phi", fakes.ARCHITECTURES["llama"][1]))
    biased, d2t = fakes.tiny_target("phi"), torch.arange(3, 20)
    biased.model.requires_grad_(False)
    bias = torch.nn.init.normal_(biased.model.get_output_embeddings().bias)
    task = MedusaTask(biased, d2t, 2, 1)
    assert task.lm.bias is not None
    assert torch.equal(task.lm.bias, bias[d2t])


@pytest.mark.parametrize(
    ("family", "changes"), [("granite", {"logits_scaling": 8.0}), ("gemma3_text", {"final_logit_softcapping": 5.0})]
)
def test_a_draft_model_that_would_draft_otherwise_than_it_is_trained_is_refused(
    family: str, changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, settings in (("plain", {}), ("changed", changes)):
        monkeypatch.setitem(fakes.ARCHITECTURES, name, (family, {**fakes.ARCHITECTURES["llama"][1], **settings}))
    DraftModelTask(fakes.tiny_target("plain"), torch.arange(20), (0, 1))
    with pytest.raises(UserError, match="scales or caps its logits"):
        DraftModelTask(fakes.tiny_target("changed"), torch.arange(20), (0, 1))


def test_a_checkpoint_of_the_older_form_is_gone_on_with(folder: Path, tmp_path: Path) -> None:
    """It says neither the tokens per batch nor which conversations there were."""
    trained(*made("medusa", folder), tmp_path / "out", 600)
    found = torch.load(tmp_path / "out" / CHECKPOINT)
    del found["batch_tokens"], found["data"]
    torch.save(found, tmp_path / "out" / CHECKPOINT)
    before = json.loads(found["progress"])["step"]
    assert trained(*made("medusa", folder), tmp_path / "out", 1200).step > before


def test_a_run_does_not_go_on_with_other_data_of_the_same_size(folder: Path, tmp_path: Path) -> None:
    trained(*made("medusa", folder), tmp_path / "out", 600)
    first = Dataset(folder)
    samples = list(tiny.some())
    other = next(index for index, sample in enumerate(samples) if not tiny.held_out(sample))
    samples[other] = next(each for each in changed(samples[other]) if not tiny.held_out(each))
    elsewhere = tiny.written(tmp_path / "other", 2, samples)
    assert len(Dataset(elsewhere).training) == len(first.training)
    with pytest.raises(UserError, match="the same data"):
        trained(*made("medusa", elsewhere), tmp_path / "out", 1200)


def changed(sample: Sample) -> list[Sample]:
    """The sample with another first token."""
    return [replace(sample, ids=[token, *sample.ids[1:]]) for token in range(9) if token != sample.ids[0]]


def test_a_run_does_not_go_on_with_other_batches(folder: Path, tmp_path: Path) -> None:
    trained(*made("medusa", folder), tmp_path / "out", 600)
    with pytest.raises(UserError, match=r"batch_tokens 300, now .*batch_tokens 200"):
        trained(*made("medusa", folder), tmp_path / "out", 1200, batch_tokens=200)


@pytest.mark.parametrize("damage", ["truncated", "text", "foreign", "incomplete"])
def test_a_damaged_checkpoint_is_one_sentence(damage: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / CHECKPOINT
    trained(*made("medusa", folder), file.parent, 300)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "text":
        file.write_text("hello")
    elif damage == "foreign":
        torch.save({"weight": torch.zeros(2)}, file)
    else:
        found = torch.load(file)
        found["optimiser"]["copies"].pop()
        torch.save(found, file)
    with pytest.raises(UserError, match="is no checkpoint of a training run"):
        trained(*made("medusa", folder), file.parent, 600)


def test_a_folder_that_cannot_be_written_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    task, data, d2t = made("medusa", folder)
    task.losses = None  # type: ignore[method-assign, assignment]  # so that the first step would fail
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="out can't be written"):
        trained(task, data, d2t, tmp_path / "out", 300)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(state: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError("[fail at container.cc:1] . PytorchStreamWriter failed: file write failed\nbacktrace")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"written \(PytorchStreamWriter failed: file write failed"):
        trained(*made("medusa", folder), tmp_path / "out", 300)
    assert not list((tmp_path / "out").iterdir())


def test_what_was_learnt_is_saved_before_it_is_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "evaluate", None)
    with pytest.raises(TypeError):
        trained(*made("medusa", folder), tmp_path / "out", 300)
    assert (tmp_path / "out" / CHECKPOINT).is_file()


def test_depths_are_drawn_as_before_up_to_four_and_all_beyond() -> None:
    for step in range(40):
        for most in (1, 2, 3, 4):
            expected = min(Random(f"0 {step}").choice((2, 2, 3, 3, 4)), most)
            assert trainer._depth(0.5, most, Random(f"0 {step}")) == expected
    assert {trainer._depth(0.5, 8, Random(f"0 {step}")) for step in range(200)} == set(range(2, 9))


def test_more_passes_than_answers_have_rows(folder: Path, tmp_path: Path) -> None:
    data = Dataset(folder)
    d2t = data.frequent(VOCAB, [], tiny.target().vocab_size)
    task = HeadTask(tiny.target(), d2t, "eagle3", (2, 4), 100)
    agreement = trained(task, data, d2t, tmp_path / "out", 600).curve[-1]["agreement"]
    deepest = max(  # drafts of a batch begin after its shortest prompt
        max(place.length for place in group) - min(place.prompt_length for place in group)
        for group in data.batches(data.held_out, 300, None)
    )
    assert len(agreement) == deepest


def test_sequences_of_two_tokens_have_nothing_for_a_head(tmp_path: Path) -> None:
    sample = tiny.some()[0]
    rows = {name: getattr(sample, name)[-1:] for name in ("hidden", "top_ids", "top_probs")}
    pairs = [replace(sample, ids=[number, 1], prompt_length=1, **rows) for number in range(9)]
    task, data, d2t = made("eagle3", tiny.written(tmp_path / "data", 1, pairs))
    assert trained(task, data, d2t, tmp_path / "out", 20).seen == 27  # three times through them


def test_nothing_held_out_is_said(tmp_path: Path) -> None:
    samples = [sample for sample in tiny.some() if not tiny.held_out(sample)]
    task, data, d2t = made("medusa", tiny.written(tmp_path / "data", 1, samples))
    said: list[str] = []
    progress = trained(task, data, d2t, tmp_path / "out", 300, say=said.append)
    assert "nothing is held out" in said[-1]
    assert card.about("medusa", tiny.target(), progress, 0, "")["acceptance"]["held_out_agreement"] is None
    card.write(tmp_path / "out", "medusa", tiny.target(), data, progress, 0, "")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "Nothing was held out" in text
    assert "| depth 1" not in text


def test_what_is_held_out_is_never_trained_on(folder: Path) -> None:
    data = Dataset(folder)
    held_out = {(place.shard, place.first) for place in data.held_out}
    assert held_out
    order = [place for epoch in range(3) for group in data.batches(data.training, 300, epoch) for place in group]
    assert not held_out & {(place.shard, place.first) for place in order}
    assert len(order) == 3 * len(data.training)


def test_draft_vocabulary_holds_the_frequent_and_the_stop_tokens(folder: Path) -> None:
    data = Dataset(folder)
    stops = sorted(tiny.target().stop_tokens)
    d2t = data.frequent(20, stops, tiny.target().vocab_size)
    assert d2t.tolist() == sorted(set(d2t.tolist()))
    assert set(stops) <= set(d2t.tolist())
    assert len(d2t) == 20


def test_layers_that_the_data_has_not_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="not 3"):
        Dataset(folder).columns((3,))


def test_the_learning_rate_rises_and_falls() -> None:
    assert course(0.0) < 0.1
    assert course(0.03) == pytest.approx(1)
    assert course(0.5) == pytest.approx(0.05 + 0.95 * 0.5, abs=0.05)
    assert course(1.0) == pytest.approx(0.05)
