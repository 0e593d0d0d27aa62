"""Costs and speed-ups of batches by value: measured where there are cells, between them, and beyond them."""

from dataclasses import replace

import pytest
from measurements import measurement

from specviz import theory
from specviz.batch import drawn, model
from specviz.batch.model import Cost, Drafting, crossing, crossover, gain, modelled_gain, roofline, target_cost
from specviz.batch.published import Point, Published
from specviz.batch.results import Experts
from specviz.figures.load import GainPoint

MEASURED = measurement()


def test_the_roofline_by_hand():
    """Weights take 0.5 s, a sequence's cache 0.4 s, and each of its rows 0.05 s of arithmetic, beside the weights."""
    assert roofline(MEASURED, 1, 1) == pytest.approx(0.4 + 0.5)
    assert roofline(MEASURED, 1, 4) == pytest.approx(0.4 + 0.5)  # still free
    assert roofline(MEASURED, 2, 4) == pytest.approx(0.8 + 0.5)
    assert roofline(MEASURED, 8, 4) == pytest.approx(3.2 + 1.6)  # arithmetic takes longer than reading the weights


def test_a_mixture_reads_more_experts_the_more_tokens_there_are():
    """4 experts, 2 per token: one token reads half of their 400 bytes, two tokens three quarters."""
    mixture = measurement(experts=Experts(4, 2, 400.0))
    assert roofline(mixture, 1, 1) == pytest.approx(0.4 + 0.5 + 2)
    assert roofline(mixture, 1, 2) == pytest.approx(0.4 + 0.5 + 3)
    assert roofline(mixture, 2, 1) == pytest.approx(0.8 + 0.5 + 3)


@pytest.mark.parametrize(
    ("batch", "rows", "seconds", "how"),
    [
        (8, 4, 8.0, "measured"),
        (1, 3, 1.125, "interpolated"),  # halfway from 1.0 to 1.25
        (4, 1, 1 + 1 / 3, "interpolated"),  # a third of the way from 1.0 to 2.0
        (4, 3, 1.75 + (6 - 1.75) / 3, "interpolated"),  # first along the rows, then along the batch
        (8, 8, 8 * (3.2 + 3.2) / (3.2 + 1.6), "modelled"),  # the nearest cell, scaled as the roofline grows
        (16, 1, 2 * (6.4 + 0.8) / (3.2 + 0.5), "modelled"),
    ],
)
def test_costs(batch: int, rows: int, seconds: float, how: str):
    assert target_cost(MEASURED, batch, rows) == (pytest.approx(seconds), how)


def test_a_hole_in_the_cells_is_modelled():
    """Batch 8 was timed for one row alone; between it and batch 2 there is no line for two rows."""
    holed = measurement({(1, 1): 1.0, (2, 1): 1.0, (2, 2): 1.5, (8, 1): 2.0})
    assert target_cost(holed, 8, 2).how == target_cost(holed, 4, 2).how == "modelled"
    assert target_cost(holed, 4, 1).how == "interpolated"


def test_drafting_follows_the_targets_own_curve_where_it_was_not_measured():
    assert model.draft_cost(MEASURED, 8, 0.1) == Cost(pytest.approx(0.1 * 2.0), "modelled")
    drafted = measurement(drafting={1: 0.1, 2: 0.3})
    assert model.draft_cost(drafted, 2, None) == Cost(0.3, "measured")
    assert model.draft_cost(drafted, 8, None) == Cost(pytest.approx(0.3 * 2.0), "modelled")  # the ratio at batch 2
    assert model.draft_cost(drafted, 8, 0.1) == Cost(pytest.approx(0.2), "modelled")  # what is typed goes first


def test_the_speedup_by_hand():
    """L T(B, 1) / (gamma T_D(B) + T(B, gamma + 1)), with L 2.5, gamma 3 and c 0.1."""
    drafting = Drafting(2.5, 3, 0.1)
    gains = [gain(MEASURED, drafting, batch) for batch in (1, 2, 8)]
    speedups = [2.5 * 1 / (3 * 0.1 + 1.25), 2.5 * 1 / (3 * 0.1 + 2), 2.5 * 2 / (3 * 0.2 + 8)]
    assert [each.speedup for each in gains] == pytest.approx(speedups)
    assert [each.how for each in gains] == ["measured"] * 3
    assert gains[2].plain_tokens_per_s == pytest.approx(8 / 2)
    assert gains[2].tokens_per_s == pytest.approx(8 * 2.5 / (3 * 0.2 + 8))
    assert crossover(gains) == pytest.approx(theory.crossover([1, 2, 8], speedups))
    assert crossing(gains) == "falls to 1 at batch 3.0"


@pytest.mark.parametrize(
    ("length", "batches", "words"),
    [
        (1.2, (1, 2, 8), "at 1 or below in all batches measured"),
        (2.5, (1, 2), "does not cross 1 in the batches measured"),
        (2.2, (2, 1), "rises above 1 in the batches measured"),  # from 0.96 to 1.42
    ],
)
def test_where_nothing_crosses_that_is_said(length: float, batches: tuple[int, ...], words: str):
    gains = [gain(MEASURED, Drafting(length, 3, 0.1), batch) for batch in batches]
    assert crossover(gains) is None and crossing(gains) == words


def test_a_gain_is_known_no_better_than_the_worse_of_its_passes():
    drafting = Drafting(2.0, 2, 0.1)
    assert gain(MEASURED, drafting, 2).how == "interpolated"  # 3 rows lie between 2 and 4
    assert gain(MEASURED, drafting, 16).how == "modelled"
    assert gain(MEASURED, Drafting(2.0, 1, 0.1), 2).how == "measured"


def test_the_rooflines_own_speedup():
    modelled = modelled_gain(MEASURED, Drafting(2.5, 3, 0.1), 8)
    assert modelled.speedup == pytest.approx(2.5 * 3.7 / (3 * 0.37 + 4.8)) and modelled.how == "modelled"
    drafted = measurement(drafting={1: 0.2, 8: 1.9})
    assert modelled_gain(drafted, Drafting(2.5, 3, None), 8).draft.seconds == pytest.approx(0.2 * 3.7)


def test_values_of_the_cost_figure():
    info = drawn.verify_cost(MEASURED)
    assert [curve.batch for curve in info.curves] == [1, 2, 8]
    last = info.curves[-1]
    assert last.rows == (1, 2, 4) and last.milliseconds == (2000, 4000, 8000)
    assert last.cost == (1, 2, 4)
    assert (last.low, last.high) == (pytest.approx((0.95, 1.9, 3.8)), pytest.approx((1.05, 2.1, 4.2)))
    assert last.roofline == pytest.approx((1, 4.0 / 3.7, 4.8 / 3.7))
    single = drawn.verify_cost(MEASURED, drawn.ONE_SEQUENCE).curves[-1]
    assert single.cost == (2, 4, 8) and single.roofline == pytest.approx((3.7 / 0.9, 4.0 / 0.9, 4.8 / 0.9))


def test_a_batch_size_without_a_plain_step_has_no_curve():
    holed = measurement({(1, 1): 1.0, (1, 2): 1.0, (2, 2): 1.5})
    assert [curve.batch for curve in drawn.verify_cost(holed).curves] == [1]


def test_values_of_the_load_figure():
    published = Published("x", "theirs", "a paper", "2026-01", "engine", "GPU", "8B", "EAGLE", "k 3", (
        Point(1.4, batch=2), Point(1.5, load="1 request per second")))  # fmt: skip
    info = drawn.load(MEASURED, Drafting(2.5, 3, 0.1), 2, [published])
    assert [point.batch for point in info.gains] == [1, 2, 8]
    assert info.gains[0] == GainPoint(1, pytest.approx(2.5 / 1.55), "measured")
    assert [point.batch for point in info.roofline] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert info.crossover == pytest.approx(3.0, abs=0.05) and info.chosen == 2
    assert info.assumed == ("acceptance length 2.50", "gamma 3, c = 0.1")
    assert [(point.batch, point.speedup) for point in info.published] == [(2, 1.4)]  # a request rate is no batch size
    assert info.published[0].settings == ("EAGLE · 8B", "engine · GPU", "k 3", "a paper, 2026-01")


def test_single_repeats_have_no_bars():
    once = replace(MEASURED, cells=tuple(replace(cell, seconds=cell.seconds[:1]) for cell in MEASURED.cells))
    curve = drawn.verify_cost(once).curves[0]
    assert curve.low == curve.high == curve.cost == (1, 1, 1.25)
