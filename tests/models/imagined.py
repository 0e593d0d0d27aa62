"""Two imagined devices, to run a model that is spread over several where there is only a CPU.

Their tensors are computed on the CPU. An operation between tensors of different devices is an error, as on real ones.
Run as a program it decodes with spread and offloaded models, and prints one line for each that went as it should. It
wants a process of its own: torch can't forget a device that it has learned of.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
from accelerate import dispatch_model  # noqa: E402 -- after the paths
from fakes import TopKTree, reference_decode, tiny_model  # noqa: E402

from specviz.decoding.draft import Draft  # noqa: E402
from specviz.decoding.engine import Settings, decode  # noqa: E402
from specviz.drafters import DraftModel, EarlyExit, Plain  # noqa: E402
from specviz.models.target import Target  # noqa: E402

FIRST, SECOND = "imagined:0", "imagined:1"
PROMPT, BUDGET = [1, 2, 3], 6
MOVES = ("aten::_to_copy", "aten::to", "aten::copy_", "aten::lift_fresh")
TAKES_CPU_INDICES = ("aten::index", "aten::index_put", "aten::index_put_")


class Imagined(torch.Tensor):
    """A tensor of an imagined device; `on_cpu` is the same one there."""

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor, device: torch.device | None = None, requires_grad: bool = False) -> Imagined:
        if isinstance(real, Imagined):  # as nn.Parameter does it
            real, device = real.on_cpu, real.device
        layout = {"strides": real.stride(), "storage_offset": real.storage_offset(), "dtype": real.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, real.size(), device=device, **layout)
        tensor.on_cpu = real
        return tensor

    def tolist(self) -> Any:
        return self.on_cpu.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})


class Imagining(TorchDispatchMode):
    """Within it, tensors can be made on the imagined devices."""

    def __enter__(self) -> Any:
        torch._C._set_only_lift_cpu_tensors(True)  # or torch.tensor() would look for a kernel
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(False)
        super().__exit__(*error)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})


def compute(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU, its results on the device of its tensors, or on the one that it names."""
    tensors: list[torch.Tensor] = []
    named: list[torch.device] = []

    def on_cpu(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(on_cpu, value))
        if isinstance(value, torch.device):
            named.append(value)
            return torch.device("cpu")
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        return _on_cpu(value)

    args_there, kwargs_there = on_cpu(args), {key: on_cpu(value) for key, value in kwargs.items()}
    if not any(device.type == "imagined" for device in named) and not any(isinstance(t, Imagined) for t in tensors):
        return operation(*args, **kwargs)
    name = operation._schema.name
    met = {tensor.device for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}  # a number may meet any
    if name in TAKES_CPU_INDICES:
        met = {args[0].device}
    if len(met) > 1 and name not in MOVES:
        raise RuntimeError(f"{operation}: expected all tensors on one device, found {met}")
    device = named[0] if named else args[0].device if name in MOVES else next(iter(met), torch.device("cpu"))
    known = {id(_on_cpu(tensor)): tensor for tensor in tensors}

    def place(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(place, value))
        if not isinstance(value, torch.Tensor):
            return value
        same = known.get(id(value))  # changed in place, or not changed at all
        if same is not None and same.device == device:
            return same
        value = value if same is None else value.clone()
        return value if device.type == "cpu" else Imagined(value, device)

    return place(operation(*args_there, **kwargs_there))


def _on_cpu(value: Any) -> Any:
    return value.on_cpu if isinstance(value, Imagined) else value


def spread(architecture: str, rest: str) -> torch.nn.Module:
    """A tiny model whose embeddings and first two layers lie on the first device; "cpu": the rest waits there."""
    model = tiny_model(architecture)
    prefix, base = model.base_model_prefix, model.base_model
    parts = [(name, isinstance(child, torch.nn.ModuleList)) for name, child in base.named_children()]
    devices = {f"{prefix}.{name}": FIRST if index == 0 else rest for index, (name, _) in enumerate(parts)}
    layers = next(name for name, is_layers in parts if is_layers)
    del devices[f"{prefix}.{layers}"]
    devices |= {f"{prefix}.{layers}.{index}": FIRST if index < 2 else rest for index in range(4)}
    devices |= {name: rest for name, _ in model.named_children() if name != prefix}
    return dispatch_model(model, devices, skip_keys=list(model._skip_keys_device_placement))


class Tree(TopKTree):
    """Its draft lies where the target's logits do."""

    def propose(self, *asked: Any) -> Draft:
        draft = super().propose(*asked)
        return Draft(draft.tokens, draft.parents, draft.q.to(FIRST)) if len(draft) else draft


@torch.no_grad()
def main() -> None:
    _setup_privateuseone_for_python_backend("imagined")
    with Imagining():
        try:
            torch.ones(2, device=FIRST) + torch.ones(2, device=SECOND)
        except RuntimeError:
            print("tensors of two devices can't meet")
    for architecture, rest in (("llama", SECOND), ("mixed", SECOND), ("llama", "cpu")):
        check(architecture, rest)


def check(architecture: str, rest: str) -> None:
    whole = tiny_model(architecture)
    expected = reference_decode(whole, PROMPT, BUDGET)
    expected_rows = Target(whole).prefill(PROMPT, (0, 2, 4))
    with Imagining():
        target = Target(spread(architecture, rest))
        drafters = {
            "plain": Plain(),
            "early-exit": EarlyExit(target, 3),
            "draft-model": DraftModel(target, tiny_model(architecture, seed=1).to(SECOND)),
            "tree": Tree(whole, (2, 1)),
        }
        for kind, drafter in drafters.items():
            steps = decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=BUDGET), detail=False)
            if [token for step in steps for token in step.committed] == expected:
                print(architecture, rest, kind)
        rows = target.prefill(PROMPT, (0, 2, 4))
        if rows.device == target.device and torch.allclose(rows.cpu(), expected_rows, atol=1e-3):
            print(architecture, rest, "hidden rows")
        with target.early_exit(3) as step:
            if step(5).device == target.device == torch.device(FIRST):
                print(architecture, rest, "logits of an exit")


if __name__ == "__main__":
    main()
