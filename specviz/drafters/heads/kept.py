"""Heads that were read lately, bound to their targets, so that a large one is not read from disk for each run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import ref

from specviz.drafters.heads.head import Head
from specviz.drafters.heads.layouts import read_head
from specviz.models.target import Target

MOST = 2  # heads that stay in memory: two drafters compared on one target


@dataclass(frozen=True, slots=True)
class _Kept:
    """target: weak, and the entry goes with it; a head holds the target's embeddings and LM head, not the target."""

    target: ref[Target]
    key: tuple[Any, ...]
    head: Head


_kept: list[_Kept] = []  # the one used last comes last
_lock = threading.RLock()  # a target may be collected, and its heads forgotten, while this thread holds it


def bound_head(
    folder: Path, target: Target, aux_convention: str | None = None, norm_before_residual: bool | None = None
) -> Head:
    """The folder's head bound to the target and packed, for drafting; the same one while folder and target last.

    Drafters may share it: it computes, and the rows are theirs. Raises UserError, as `read_head` and `Head.bind`.
    """
    files = tuple(
        (path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.iterdir()) if path.is_file()
    )
    key = (folder.resolve(), files, target.device, target.dtype, aux_convention, norm_before_residual)
    with _lock:
        found = next((each for each in _kept if each.target() is target and each.key == key), None)
        if found is not None:
            _kept.remove(found)
        else:
            del _kept[: max(0, len(_kept) - MOST + 1)]  # before the next one needs its memory
            head = read_head(
                folder, target.config, aux_convention=aux_convention, norm_before_residual=norm_before_residual
            )
            found = _Kept(ref(target, _forget), key, head.bind(target, packed=True).eval())
        _kept.append(found)
        return found.head


def is_kept(folder: Path, target: Target) -> bool:
    """Whether the folder's head is in memory, bound to the target."""
    with _lock:
        return any(each.target() is target and each.key[0] == folder.resolve() for each in _kept)


def _forget(target: ref[Target]) -> None:
    with _lock:
        _kept[:] = [each for each in _kept if each.target is not target]
