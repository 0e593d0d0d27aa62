"""Memory that there is, by counters of made-up machines, and memory that was taken."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from specviz.planning import room as counters
from specviz.planning.room import Growth, available_bytes, cgroup_room, peak_bytes, room


def group(folder: Path, version: int, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(limit)
    (folder / names[1]).write_text(str(used))
    prefix = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {cached}\n")


def test_limits_of_control_groups_version_2(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    group(tmp_path / "outer" / "inner", 2, "max", 10, 0)
    group(tmp_path / "outer", 2, "1000", 700, 200)
    assert list(cgroup_room(tmp_path, membership)) == [1000 - 700 + 200]


def test_limits_of_control_groups_version_1(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("5:cpu:/\n4:memory:/docker/abc\n")
    group(tmp_path / "memory", 1, "1000", 990, 0)  # in a container the path of the host isn't there
    assert list(cgroup_room(tmp_path, membership)) == [10]
    assert list(cgroup_room(tmp_path, tmp_path / "absent")) == []


def test_a_limit_bounds_what_is_available(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr("specviz.planning.room.cgroup_room", lambda: iter([12345]))
    assert available_bytes(cpu) == 12345 and room(cpu).source == "left under this container's memory limit"
    monkeypatch.setattr("specviz.planning.room.cgroup_room", lambda: iter([]))
    assert 12345 < available_bytes(cpu) <= psutil.virtual_memory().total


def test_peak_sees_what_was_freed_again():
    cpu = torch.device("cpu")
    before = peak_bytes(cpu)
    rows = torch.ones(before // 4 + 50_000_000)  # more than ever before, by 200 MB
    del rows
    assert peak_bytes(cpu) >= before + 200_000_000 > psutil.Process().memory_info().rss


GB = 10**9


@pytest.fixture
def cuda(monkeypatch):
    """A GPU of 24 GB of which 20 are free, and of what torch holds there 1 is unused; is_integrated can be set."""
    properties = SimpleNamespace(is_integrated=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * GB, 24 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=99 * GB))
    monkeypatch.setattr(counters, "cgroup_room", lambda: iter([]))
    return properties


def test_a_gpu_with_memory_of_its_own_counts_that(cuda):
    assert room(torch.device("cuda")).amount == 21 * GB and "free on the GPU" in room(torch.device("cuda")).source


def test_a_gpu_that_shares_memory_counts_the_systems_and_says_why(cuda):
    cuda.is_integrated = True
    found = room(torch.device("cuda"))
    assert found.amount == 99 * GB and "shares the CPU's memory" in found.source
    assert "run by you" in found.source, "suggested, and never run"


def test_an_apple_gpu_counts_what_apple_recommends(monkeypatch):
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 27 * GB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 2 * GB)
    found = room(torch.device("mps"))
    assert found.amount == 25 * GB and "Apple recommends" in found.source


def test_growth_is_what_was_taken_between_two_moments_even_if_it_was_freed():
    cpu, growth = torch.device("cpu"), Growth()
    torch.ones(80_000_000)  # a higher peak, before
    assert growth.peak is None
    growth.start(cpu)
    rows = torch.ones(20_000_000)
    del rows
    growth.stop()
    assert growth.peak is not None and 78_000_000 < growth.peak < 120_000_000


def test_where_a_peak_cannot_be_forgotten_a_lower_one_is_unknown(monkeypatch):
    monkeypatch.setattr(counters, "forget_peak", lambda device: False)
    seen = iter([1000, 1000, 1000, 1500])
    monkeypatch.setattr(counters, "peak_bytes", lambda device: next(seen))
    monkeypatch.setattr(counters, "used_bytes", lambda device: 400)
    growth = Growth()
    for expected in (None, 1100):
        growth.start(torch.device("cpu"))
        growth.stop()
        assert growth.peak == expected


def test_on_an_apple_gpu_no_peak_is_known():
    growth = Growth()
    growth._device = torch.device("mps")
    growth.stop()
    assert growth.peak is None
