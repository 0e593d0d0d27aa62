"""Published reference points: what is shipped, and that a malformed entry is refused where it is."""

from pathlib import Path

import pytest
import yaml

from specviz.batch.published import load_published
from specviz.errors import UserError

ENTRY = {
    "id": "one", "title": "t", "source": "s", "date": "2026-01", "engine": "e", "hardware": "h", "target": "m",
    "method": "x", "settings": "k 3", "points": [{"batch": 2, "speedup": 1.5}, {"load": "1 request", "speedup": 0.5}],
}  # fmt: skip


def file(folder: Path, *entries: object) -> Path:
    path = folder / "published.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "published": list(entries)}), encoding="utf-8")
    return path


def test_figures_of_the_sources():
    """As their tables have them: batch sizes and speed-ups, model by model."""
    shipped = load_published()

    def points(id: str) -> dict[int | None, float]:
        return {point.batch: point.speedup for point in shipped[id].points}

    assert points("eagle-3-sglang-eagle") == {2: 1.40, 8: 1.23, 16: 1.02, 24: 0.93, 64: 0.99}
    assert points("eagle-3-sglang-eagle-3") == {2: 1.81, 8: 1.62, 16: 1.48, 24: 1.39, 64: 1.38}
    assert points("eagle-3-vllm-eagle") == {2: 1.30, 24: 1.03, 32: 0.93, 56: 0.71}
    assert points("eagle-3-vllm-eagle-3") == {2: 1.75, 24: 1.42, 32: 1.36, 56: 1.01}
    assert [entry.points[0].speedup for id, entry in shipped.items() if id.startswith("speed-bench")] == [
        0.88, 1.60, 1.90, 0.29, 1.34, 1.17, 1.20
    ]  # fmt: skip
    # The same study, but two models: never one curve.
    assert shipped["specdecode-bench-70b"].target != shipped["specdecode-bench-8b"].target
    assert points("specdecode-bench-70b") == {1: 1.96} and points("specdecode-bench-8b") == {128: 1.21}


def test_every_entry_has_its_settings_and_what_its_source_leaves_open():
    for entry in load_published().values():
        assert len(entry.lines) == 4 + bool(entry.warning) and all(entry.lines)
        assert any(str(year) in entry.date for year in range(2024, 2027))
    conflict = [entry for entry in load_published().values() if "RTX 3090" in entry.hardware]
    assert len(conflict) == 2 and all("caption an A100" in entry.lines[-1] for entry in conflict)


def test_a_point_says_where_it_stands(tmp_path: Path):
    found = load_published(file(tmp_path, ENTRY))["one"]
    assert [point.where for point in found.points] == ["batch 2", "1 request"]
    assert found.lines == ["x · m", "e · h", "k 3", "s, 2026-01"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": []}, "has no points"),
        ({"points": [{"speedup": 1.5}]}, r"\(one\), point 1 needs either 'batch' or"),
        ({"points": [{"speedup": 1.5, "batch": 1, "load": "x"}]}, "point 1 needs either"),
        ({"points": [{"speedup": 1.5, "batch": 0}]}, "must be above 0"),
        ({"points": [{"speedup": 0.0, "batch": 1}]}, "must be above 0"),
        ({"points": [{"speedup": "1.5x", "batch": 1}]}, "'speedup' must be of type float"),
        ({"settings": None}, "'settings' must be of type str"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_malformed_entries_are_refused(changes: dict[str, object], words: str, tmp_path: Path):
    with pytest.raises(UserError, match=words):
        load_published(file(tmp_path, {**ENTRY, **changes}))


def test_a_setting_that_is_missing_is_named(tmp_path: Path):
    without = {key: value for key, value in ENTRY.items() if key != "hardware"}
    with pytest.raises(UserError, match="lacks 'hardware'"):
        load_published(file(tmp_path, without))
