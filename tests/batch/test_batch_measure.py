"""Measuring batches on tiny models: what a pass computes, in which order passes are timed, and what is left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from fakes import reference_logits, tiny_model, tiny_target
from torch import nn

from specviz import memory
from specviz.batch import machine, measure, passes
from specviz.batch.machine import attainable, work_of
from specviz.batch.measure import WARM_UPS, Plan, Progress
from specviz.batch.passes import Passes, check_memory, sequences
from specviz.batch.results import Experts, Measurement
from specviz.drafters import DraftModel
from specviz.errors import Cancelled, NotEnoughMemory, UserError
from specviz.models.pack import pack
from specviz.theory import Machine

TEXT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
PLAN = Plan((1, 2, 4), (1, 2, 3), context=10, repeats=3, cell_seconds=60, text=TEXT, of_what="digits")


def run(plan: Plan = PLAN, **options: object) -> list[Progress]:
    return list(measure.measure(tiny_target(), plan, **options))


def found(steps: list[Progress]) -> Measurement:
    assert steps[-1].measurement is not None
    return steps[-1].measurement


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device reaches is another test's business."""
    monkeypatch.setattr(measure, "attainable", lambda device, dtype: Machine(1e10, 1e11))


# --- what a pass computes


def test_every_sequence_is_the_text_from_another_place():
    assert sequences([1, 2, 3, 4], 2, 6).tolist() == [[1, 2, 3, 4, 1, 2], [3, 4, 1, 2, 3, 4]]
    assert sequences([7], 3, 2).tolist() == [[7, 7]] * 3


@pytest.mark.parametrize("architecture", ["llama", "sliding", "mixed", "gpt2"])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_sequence_of_a_batch_has_the_logits_that_it_has_alone(architecture: str, rows: int):
    """From a cache that was really filled, and again after the pass was taken back."""
    model = tiny_model(architecture)
    ids = sequences(TEXT, 4, 13)
    with torch.inference_mode():
        made = Passes(model, model.config, ids, 10, (1, 2, 4))
        for batch in (4, 2, 1, 4):
            logits = made.forward(batch, rows)
            made.forget(batch)
            assert logits.shape[:2] == (batch, rows) and len(made.caches[batch]) == 10
            for row in range(batch):
                alone = reference_logits(model, ids[row, : 10 + rows].tolist())[10:]
                torch.testing.assert_close(logits[row].float(), alone, atol=2e-4, rtol=1e-4)


def test_caches_of_the_batch_sizes_do_not_share_memory():
    model = tiny_model()
    with torch.inference_mode():
        made = Passes(model, model.config, sequences(TEXT, 2, 12), 10, (1, 2))
        small, large = (made.caches[batch].hf.layers[0] for batch in (1, 2))
        assert torch.equal(small.keys, large.keys[:1]) and small.keys.data_ptr() != large.keys.data_ptr()


def test_the_context_is_read_in_pieces_of_bounded_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(passes, "PREFILL_CHUNK", 8)
    model, widths = tiny_model(), []
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    with torch.inference_mode():
        Passes(model, model.config, sequences(TEXT, 4, 8), 5, (4,))
    assert widths == [(4, 2), (4, 2), (4, 1)]


def test_recurrent_layers_are_refused():
    model = tiny_model("hybrid")
    with pytest.raises(UserError, match="recurrent layers"):
        Passes(model, model.config, sequences(TEXT, 1, 12), 10, (1,))


# --- order, repeats, progress


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The cells in the order in which passes are made; each takes as many seconds as it has tokens."""
    order: list[tuple[int, int]] = []

    def instead(item: measure._Item, device: torch.device) -> float:
        order.append((item.batch, item.rows))
        return float(item.batch * item.rows)

    monkeypatch.setattr(measure, "_timed", instead)
    yield order


def test_all_cells_take_turns_in_an_order_that_rotates(timed: list[tuple[int, int]]):
    plan = replace(PLAN, cell_seconds=1e9)
    measured = found(run(plan))
    cells = sorted(((batch, rows) for batch in (1, 2, 4) for rows in (1, 2, 3)), key=lambda cell: cell[0] * cell[1])
    warm, rounds = timed[: WARM_UPS * 9], timed[WARM_UPS * 9 :]
    assert warm == [cell for cell in cells for _ in range(WARM_UPS)]  # the smallest first
    assert rounds == [*cells, *cells[3:], *cells[:3], *cells[6:], *cells[:6]]
    assert [(cell.batch, cell.rows) for cell in measured.cells] == sorted(cells)
    assert all(cell.seconds == (cell.batch * cell.rows,) * 3 for cell in measured.cells)


def test_progress_counts_passes_and_the_time_that_is_left(timed: list[tuple[int, int]]):
    steps = [step for step in run(replace(PLAN, cell_seconds=1e9)) if step.total]
    assert [step.done for step in steps] == list(range(1, 28)) and {step.total for step in steps} == {27}
    every_round = (1 + 2 + 4) * (1 + 2 + 3)
    assert steps[0].seconds_left == 3 * every_round - 1 and steps[-1].seconds_left == 0
    repeats = [step.measurement and step.measurement.header.repeats for step in steps]
    assert repeats == [None] * 8 + [1] * 9 + [2] * 9 + [3]  # whole rounds only


def test_what_would_take_too_long_is_left_out_and_said(timed: list[tuple[int, int]]):
    """Seconds grow with the tokens; of the roofline only how it grows is used, from the last cell that was timed."""
    measured = found(run(replace(PLAN, cell_seconds=20)))
    kept = {(cell.batch, cell.rows) for cell in measured.cells}
    left_out = {(each.batch, each.rows) for each in measured.skipped}
    assert kept | left_out == {(batch, rows) for batch in (1, 2, 4) for rows in (1, 2, 3)} and not kept & left_out
    assert left_out and all(each.expected_s * (WARM_UPS + 3) > 20 for each in measured.skipped)
    assert not left_out & set(timed)  # not even to warm up


def test_the_draft_models_steps_are_timed_in_the_same_turns(timed: list[tuple[int, int]]):
    target = tiny_target()
    drafter = DraftModel(target, tiny_model(num_hidden_layers=1), name="small one")
    plan = replace(PLAN, rows=(1, 2), cell_seconds=1e9)
    measured = list(measure.measure(target, plan, drafter=drafter))[-1].measurement
    assert measured is not None and measured.header.drafter == "small one"
    assert [(cell.batch, cell.rows, len(cell.seconds)) for cell in measured.drafting] == [
        (1, 1, 3),
        (2, 1, 3),
        (4, 1, 3),
    ]
    assert len(measured.cells) == 6


def test_real_passes_take_time_and_leave_the_target_as_it_was():
    target = tiny_target()
    target.prefill(TEXT[:5])
    measured = list(measure.measure(target, PLAN))[-1].measurement
    assert measured is not None and len(target.cache) == 5
    assert all(second > 0 for cell in measured.cells for second in cell.seconds)
    header = measured.header
    assert (header.target, header.context, header.repeats, header.text) == ("tiny llama", 10, 3, "digits")
    assert (header.dtype, header.threads) == ("float32", torch.get_num_threads())


@pytest.mark.parametrize(("load", "is_said"), [((9.25, 1.0, 1.0), True), ((8.0, 9.0, 9.0), False), ((), False)])
def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch, load: tuple[float, ...], is_said: bool):
    monkeypatch.setattr(measure, "load_averages", lambda: load)
    monkeypatch.setattr(measure.os, "cpu_count", lambda: 8)
    header = found(run(replace(PLAN, batches=(1,), rows=(1,)))).header
    assert header.load == load and len(header.notes) == is_said
    assert not is_said or "load average 9.2, 8 processors" in header.notes[0]


def test_it_stops_within_a_pass(timed: list[tuple[int, int]]):
    stop_after = WARM_UPS * 9 + 12
    steps = measure.measure(
        tiny_target(), replace(PLAN, cell_seconds=1e9), should_stop=lambda: len(timed) >= stop_after
    )
    last = None
    with pytest.raises(Cancelled):
        for step in steps:
            last = step
    assert len(timed) == stop_after
    assert last and last.measurement and last.measurement.header.repeats == 1  # the round that was whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batches": (2, 4)}, "have 1 among both"),
        ({"rows": (2,)}, "have 1 among both"),
        ({"context": 0}, "must not be empty or 0"),
        ({"repeats": 0}, "must not be empty or 0"),
        ({"cell_seconds": 0}, "must not be empty or 0"),
        ({"text": ()}, "must not be empty or 0"),
        ({"context": 254}, "holds 256 tokens and 257 are asked for"),
    ],
)
def test_plans_that_can_not_be(changes: dict[str, object], words: str):
    with pytest.raises(UserError, match=words):
        run(replace(PLAN, **changes))


# --- memory


def test_memory_is_checked_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10**6)
    monkeypatch.setattr(measure, "Passes", None)
    with pytest.raises(NotEnoughMemory, match=r"Batches of 1, 2, 4 with 13 tokens .* 1 MB is free"):
        run()


def test_the_memory_that_is_needed():
    """4 layers x 2 x 256 rows x 2 heads x 8 x 4 bytes = 131,072 per sequence, for 7 of them; logits 4 x 3 x 31 x 4."""
    config = tiny_model().config
    needed = 7 * 131_072 + 4 * 3 * 31 * 4
    needed += needed // 5

    def check(available: int) -> None:
        check_memory([(config, 3)], dtype_bytes=4, batches=(1, 2, 4), tokens=13, available=available)

    check(needed)
    with pytest.raises(NotEnoughMemory):
        check(needed - 1)


# --- what a pass moves and computes


def test_embeddings_that_are_only_looked_up_take_no_part():
    tied, untied = tiny_target(tie_word_embeddings=True), tiny_target()
    table = 31 * 32
    assert work_of(tied)[0].load.parameters == memory.count_parameters(tied.config)
    assert work_of(untied)[0].load.parameters == memory.count_parameters(untied.config) - table
    for target in (tied, untied):
        load = work_of(target)[0].load
        assert load.weight_bytes == 4 * load.parameters
        assert load.kv_bytes_per_token == 2 * 4 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes


def test_packed_weights_are_read_once_though_tied_embeddings_stay():
    plain, packed = tiny_target(tie_word_embeddings=True), tiny_target(tie_word_embeddings=True)
    if not pack(packed.model):
        pytest.skip("this torch has no packed kernels")
    assert work_of(packed)[0].load.parameters == work_of(plain)[0].load.parameters
    assert work_of(packed)[0].load.weight_bytes == pytest.approx(
        work_of(plain)[0].load.weight_bytes, rel=0.35
    )  # padded


class Routed(nn.Module):
    """A layer's experts as transformers keeps them: one tensor for all."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 10))


@pytest.mark.parametrize("per_token", [2, 0])
def test_of_experts_a_token_takes_some_and_a_pass_reads_more(monkeypatch: pytest.MonkeyPatch, per_token: int):
    def with_experts(model: nn.Module) -> nn.Module:
        for layer in model.model.layers:
            layer.mlp.experts = Routed()
        return model

    target = tiny_target()
    dense = work_of(target)[0].load
    monkeypatch.setattr(machine, "model_without_storage", lambda config: with_experts(tiny_model()))
    with_experts(target.model)
    target.config = copy.deepcopy(target.config)
    target.config.num_local_experts, target.config.num_experts_per_tok = 4, per_token
    work, notes = work_of(target)
    assert len(notes) == 1
    if per_token:
        assert work.experts == Experts(4, 2, 4 * 4 * 40)
        assert work.load.weight_bytes == dense.weight_bytes
        assert work.load.parameters == dense.parameters + 4 * 40 / 2
    else:  # all are counted, and that is said
        assert work.experts is None and "does not say" in notes[0]
        assert work.load.weight_bytes == dense.weight_bytes + 4 * 4 * 40


def test_a_copy_counts_twice_and_a_product_two_operations(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []

    def half_a_second(device: torch.device, work: Callable[[], torch.Tensor]) -> float:
        sizes.append(work().nbytes)
        return 0.5

    monkeypatch.setattr(machine, "_best_seconds", half_a_second)
    monkeypatch.setattr(machine, "COPIED", 4096)
    monkeypatch.setitem(machine.SIDE, "cpu", 16)
    reached = attainable(torch.device("cpu"), torch.float32)
    assert sizes == [4096, 16 * 16 * 4]
    assert reached == Machine(bandwidth=2 * 4096 / 0.5, flops=2 * 16**3 / 0.5)


def test_the_first_try_only_warms_up(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 9.0, 9.0, 12.0, 12.0, 13.0, 13.0, 15.0, 15.0, 17.0, 17.0, 19.0])  # starts and ends
    monkeypatch.setattr(machine, "perf_counter", lambda: next(times))
    assert machine._best_seconds(torch.device("cpu"), lambda: torch.zeros(1)) == 1
