"""Which device and number format to run in, and how to name and wait for a device."""

import platform
import subprocess
import sys
from pathlib import Path

import torch

from specviz.errors import UserError

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def available_devices() -> list[str]:
    """Names that `pick_device` accepts here, best first; "cpu" is always the last."""
    names: list[str] = []
    if torch.cuda.is_available():
        names += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.xpu.is_available():
        names += ["xpu", *(f"xpu:{i}" for i in range(torch.xpu.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`, or the best one for "auto"; raises UserError listing what there is here."""
    names = available_devices()
    if name == "auto":
        return torch.device(names[0])
    if name not in names:
        raise UserError(f"The device {name!r} isn't available here, so choose one of: auto, {', '.join(names)}.")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number format called `name`, or for "auto" the one `device` is fastest in; raises UserError if unknown."""
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise UserError(f"The dtype {name!r} is unknown, so choose one of: auto, float32, bfloat16, float16.")
    if device.type == "cuda":
        # Emulated bfloat16 (GPUs before Ampere) is slower than float16.
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    if device.type == "xpu":
        return torch.bfloat16
    if device.type == "mps":
        return torch.float16
    return torch.bfloat16 if cpu_has_native_bfloat16() else torch.float32


def cpu_has_native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; False when this torch can't tell.

    Without the instructions torch emulates bfloat16, slower than float32.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        probe = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        return probe is not None and bool(probe())
    # Private names, and they have changed between releases, so each may be absent.
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(bool(probe()) for probe in probes if probe is not None)


def describe(device: torch.device) -> str:
    """A name for people, such as "AMD EPYC, 2 threads" or "NVIDIA L4"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xpu":
        return torch.xpu.get_device_name(device)
    if device.type == "mps":
        return f"{_cpu_name()} GPU"
    threads = torch.get_num_threads()
    return f"{_cpu_name()}, {threads} thread{'' if threads == 1 else 's'}"


def synchronise(device: torch.device) -> None:
    """Wait until all work queued on `device` is done; a CPU has none queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "xpu":
        torch.xpu.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _cpu_name() -> str:
    name = ""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        elif sys.platform == "linux":
            # ARM kernels give no "model name"; the machine type below has to do there.
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except (OSError, subprocess.SubprocessError):
        pass  # a missing name is no reason to fail
    return name or platform.processor() or platform.machine() or "CPU"
