"""Lends a forked process as the package `spaces` does on ZeroGPU, but no GPU.

The job goes there pickled, each item comes back pickled, and closing the iterator waits until the process has noticed,
which it does after its next item.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import gradio as gr

PATIENCE = 60  # seconds for one item
ITEM, ERROR, END = "item", "error", "end"


def lending(work: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """As `spaces.GPU(work)`."""

    def lent(job: Any) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        stop = context.Event()
        process = context.Process(target=serve, args=(work, theirs, stop), daemon=True)
        process.start()
        theirs.close()
        ours.send(job)
        kind = ITEM
        try:
            while True:
                kind, value = take(ours)
                if kind == END:
                    return
                if kind == ERROR:
                    raise gr.Error(value, title="ZeroGPU worker error", print_exception=False)
                yield value
        except GeneratorExit:
            stop.set()
            raise
        finally:
            while kind == ITEM:
                kind, _ = take(ours)
            process.join(PATIENCE)

    return lent


def take(pipe: Connection) -> tuple[str, Any]:
    if not pipe.poll(PATIENCE):
        raise TimeoutError("the process says nothing")
    try:
        return pipe.recv()
    except EOFError:  # it was killed
        return ERROR, "GPU task aborted"


def serve(work: Callable[[Any], Iterator[Any]], pipe: Connection, stop: Event) -> None:
    """In the forked process."""
    try:
        items = work(pipe.recv())
        for item in items:
            if stop.is_set():
                items.close()
                break
            pipe.send((ITEM, item))
        pipe.send((END, None))
    except Exception as error:
        pipe.send((ERROR, type(error).__name__))
