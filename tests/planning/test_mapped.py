"""Checkpoint pages that are mapped and that no weight uses."""

from pathlib import Path

import pytest
import torch
from fakes import tiny_model
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from specviz.planning.mapped import MAPS, idle_mapped

MADE_UP = """10000-30000 rw-p 00000000 fe:00 17 /models/model.safetensors
Size:                128 kB
Rss:                 100 kB
30000-40000 r--p 00000000 fe:00 18 /lib/_safetensors_rust.abi3.so
Rss:                 999 kB
50000-60000 rw-p 00000000 00:00 0
Rss:                 999 kB
"""


class Placed:
    """A weight of so many bytes at an address."""

    def __init__(self, place: int, size: int) -> None:
        self.place, self.size = place, size

    def data_ptr(self) -> int:
        return self.place

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1


class Model:
    def __init__(self, *weights: Placed) -> None:
        self.weights = weights

    def parameters(self) -> tuple[Placed, ...]:
        return self.weights


def test_what_weights_use_is_not_idle(tmp_path):
    maps = tmp_path / "smaps"
    maps.write_text(MADE_UP)
    inside, outside = Placed(0x10010, 40 * 1024), Placed(0x50000, 999)
    assert idle_mapped([], maps) == 100 * 1024
    assert idle_mapped([Model(inside, outside), Model(inside)], maps) == 60 * 1024, "a weight that is tied counts once"
    assert idle_mapped([Model(Placed(0x10010, 10**9))], maps) == 0
    assert idle_mapped([], tmp_path / "absent") == 0


@pytest.mark.skipif(not Path(MAPS).exists(), reason="only Linux tells")
def test_a_file_that_stays_mapped_is_seen(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"kept": torch.ones(1_000_000), "copied": torch.ones(4_000_000)}, file)
    model = tiny_model()
    before = idle_mapped([model])
    with safe_open(file, framework="pt") as opened:
        kept, copied = opened.get_tensor("kept"), opened.get_tensor("copied")
    float(kept.sum() + copied.sum())  # reads all pages
    model.kept = nn.Parameter(kept, requires_grad=False)
    assert 15_000_000 < idle_mapped([model]) - before < 17_000_000
