"""Choices of device and number format, with the hardware played by patches."""

import pytest
import torch

from specviz.errors import UserError
from specviz.models import devices
from specviz.models.devices import describe, pick_device, pick_dtype, synchronise

CPU = torch.device("cpu")


@pytest.fixture
def hardware(monkeypatch):
    """Pretends that only the named kinds of device exist, two of each."""

    def pretend(*kinds: str) -> None:
        for kind, module in (("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.backends.mps)):
            monkeypatch.setattr(module, "is_available", lambda present=kind in kinds: present)
            if module is not torch.backends.mps:
                monkeypatch.setattr(module, "device_count", lambda: 2)

    return pretend


@pytest.mark.parametrize(
    ("kinds", "best"),
    [(("cuda", "xpu", "mps"), "cuda"), (("xpu", "mps"), "xpu"), (("mps",), "mps"), ((), "cpu")],
)
def test_auto_takes_the_best(hardware, kinds, best):
    hardware(*kinds)
    assert pick_device().type == best


def test_a_named_device_is_taken_or_refused(hardware):
    hardware("cuda")
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("cpu") == CPU
    for absent in ("cuda:2", "mps", "tpu", ""):
        with pytest.raises(UserError, match=f"'{absent}'.*auto, cuda, cuda:0, cuda:1, cpu"):
            pick_device(absent)


def test_auto_dtype_follows_the_hardware(monkeypatch):
    for native, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert pick_dtype("auto", torch.device("cuda")) is expected
    assert pick_dtype("auto", torch.device("mps")) is torch.float16
    assert pick_dtype("auto", torch.device("xpu")) is torch.bfloat16
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(devices, "cpu_has_native_bfloat16", lambda native=native: native)
        assert pick_dtype("auto", CPU) is expected


def test_a_named_dtype_is_taken_or_refused():
    assert pick_dtype("float32", CPU) is pick_dtype("fp32", torch.device("cuda")) is torch.float32
    assert pick_dtype("bf16", CPU) is torch.bfloat16
    with pytest.raises(UserError, match=r"'int8'.*float32"):
        pick_dtype("int8", CPU)


def test_native_bfloat16_is_found_by_either_instruction_set(monkeypatch):
    monkeypatch.setattr(devices.platform, "machine", lambda: "x86_64")
    for avx, amx in ((True, False), (False, True), (False, False)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx=avx: avx, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        assert devices.cpu_has_native_bfloat16() is (avx or amx)


def test_a_torch_that_can_not_tell_means_float32(monkeypatch):
    monkeypatch.setattr(devices.platform, "machine", lambda: "AMD64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert pick_dtype("auto", CPU) is torch.float32


def test_the_cpu_is_described_with_its_threads():
    name, threads = describe(CPU).rsplit(", ", 1)
    assert name and threads.split()[0] == str(torch.get_num_threads())
    synchronise(CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_gpu():
    device = pick_device("cuda")
    assert describe(device) == torch.cuda.get_device_name(0)
    assert pick_dtype("auto", device) in (torch.bfloat16, torch.float16)
    synchronise(device)
