"""How much of a run is spent inside models' forward passes; the rest is what the decode loop itself costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import perf_counter
from typing import Any

import torch
from torch import nn

from specviz.drafters import Assistant, Drafter
from specviz.models.devices import synchronise
from specviz.models.target import Target


class Forwards:
    """Adds up the seconds between `enter` and `leave`; what is entered from within counts once."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device, self._depth, self._started = device, 0, 0.0

    def enter(self, *_: Any) -> None:
        if self._depth == 0:
            synchronise(self._device)
            self._started = perf_counter()
        self._depth += 1

    def leave(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            synchronise(self._device)
            self.seconds += perf_counter() - self._started


@contextmanager
def watched(target: Target, drafter: Drafter) -> Iterator[Forwards]:
    """Within the context, the seconds in forward passes of the target and of the drafter's modules add up.

    Counted are the target's model and its base model, which an early exit shares; the drafter's modules and their
    direct children; and of those that are of this project, the public methods and the modules that they share with the
    target, as a head computes in several calls. What a drafter computes outside any module counts as the loop's own.
    """
    forwards = Forwards(target.device)
    models = [target.model, target.model.base_model]
    known = {id(module) for module in models}
    own = [module for module in _parts(drafter) if id(module) not in known]
    with ExitStack() as hooks:
        for module in {id(module): module for module in (*models, *own)}.values():
            hooks.callback(module.register_forward_pre_hook(forwards.enter).remove)
            hooks.callback(module.register_forward_hook(forwards.leave, always_call=True).remove)
        for module in own:
            for name in _methods(module):
                # Into the instance, where it hides the class's method until it is deleted again.
                setattr(module, name, _counted(getattr(module, name), forwards))
                hooks.callback(delattr, module, name)
        yield forwards


def _parts(holder: Any) -> list[nn.Module]:
    """The modules that a drafter holds, those that it combines and the modules of this project included.

    With each come its children, which may be called alone.
    """
    found: list[nn.Module] = []
    for value in _attributes(holder):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Assistant):
                found.append(item.model)
            elif isinstance(item, nn.Module):
                found.extend([item, *item.children()])
                found.extend(_parts(item) if _is_ours(item) else ())  # what it shares with the target is no child
            elif hasattr(item, "propose"):
                found.extend(_parts(item))
    return list({id(module): module for module in found}.values())


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("specviz.")


def _attributes(holder: Any) -> list[Any]:
    """The values of its attributes, those in slots too."""
    slots = (name for base in type(holder).__mro__ for name in getattr(base, "__slots__", ()))
    names = dict.fromkeys([*getattr(holder, "__dict__", {}), *slots])
    return [getattr(holder, name, None) for name in names]


def _methods(module: nn.Module) -> list[str]:
    """Names of the public methods that the module's own class adds to those that every module has."""
    if not _is_ours(module):
        return []
    public = (name for name, value in vars(type(module)).items() if callable(value) and not name.startswith("_"))
    return [name for name in public if not hasattr(nn.Module, name)]


def _counted(method: Callable[..., Any], forwards: Forwards) -> Callable[..., Any]:
    @wraps(method)
    def counted(*args: Any, **options: Any) -> Any:
        forwards.enter()
        try:
            return method(*args, **options)
        finally:
            forwards.leave()

    return counted
