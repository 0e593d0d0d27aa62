"""Training learns, goes on where it stopped, and writes drafters that work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch

from specviz.decoding.engine import Settings, decode
from specviz.drafters import make_drafter
from specviz.drafters.base import Context, Weights
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.training import card
from specviz.training.dataset import Batch, Dataset
from specviz.training.optimiser import course
from specviz.training.tasks import DraftModelTask, ExitTask, HeadTask, MedusaTask, Task
from specviz.training.trainer import Plan, Progress, train

TASKS: dict[str, Callable[[torch.Tensor], Task]] = {
    "eagle3": lambda d2t: HeadTask(tiny.target(), d2t, "eagle3", (2, 4), 3),
    "mtp": lambda d2t: HeadTask(tiny.target(), d2t, "mtp", (4,), 3),
    "medusa": lambda d2t: MedusaTask(tiny.target(), d2t, 3, 2),
    "draft-model": lambda d2t: DraftModelTask(tiny.target(), d2t, (0, 2)),
    "early-exit": lambda d2t: ExitTask(tiny.target(), d2t, 2, 24),
}
VOCAB = 200  # of the target's 259


def made(kind: str, folder: Path) -> tuple[Task, Dataset, torch.Tensor]:
    data = Dataset(folder)
    d2t = data.frequent(VOCAB, sorted(tiny.target().stop_tokens), tiny.target().vocab_size)
    torch.manual_seed(0)
    return TASKS[kind](d2t), data, d2t


def trained(task: Task, data: Dataset, d2t: torch.Tensor, out: Path, tokens: int, seed: int = 0) -> Progress:
    width = int(tiny.target().config.hidden_size)
    plan = Plan(tokens, None, batch_tokens=300, seed=seed)
    return train(task, data, d2t, tiny.target().vocab_size, width, plan, out, lambda text: None)


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
    task.write(tmp_path / "made", card.about(kind, tiny.target(), progress, 0, called))
    card.write(tmp_path / "made", kind, tiny.target(), data, progress, 0, called)
    text = (tmp_path / "made" / "README.md").read_text()
    assert called in text
    assert "hash" in text
    answers = sum(shard.answer_tokens() for shard in data.shards)
    assert f"was given: {data.shards[0].path.stem.rpartition('-')[0]} {answers:,}." in text
    drafter_kind = card.KINDS.get(kind, kind)
    drafter = make_drafter(drafter_kind, tiny.target(), {}, Weights(tmp_path / "made", "made"))
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


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_what_is_written_drafts_as_it_was_trained(kind: str, folder: Path, tmp_path: Path) -> None:
    """The scale of the states is folded into the file, and states and tokens meet as in training: on true text, the
    drafter's first choice is the one that training counted."""
    task, data, d2t = made(kind, folder)
    trained(task, data, d2t, tmp_path / "out", 3_000)
    task.write(tmp_path / "made", {"target": tiny.target().name})
    drafter = make_drafter(card.KINDS.get(kind, kind), tiny.target(), {}, Weights(tmp_path / "made", "made"))
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
