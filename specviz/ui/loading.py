"""Loading a model in the background, so that the page can say how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from specviz.runs import Loaded


class Loader(Protocol):
    """`runs.load`, or a stand-in for it."""

    def __call__(
        self,
        pairing_id: str,
        *,
        device: str,
        dtype: str,
        offline: bool,
        progress: Callable[[str, float | None], None] | None,
    ) -> Loaded: ...


class Loading:
    """A model on its way; visitors who ask for the same one share it."""

    def __init__(self) -> None:
        self.text = "loading the model"
        self._done = threading.Event()
        self._result: Loaded | BaseException | None = None

    def wait(self, seconds: float) -> bool:
        """Whether it is there, or failed, within so many seconds."""
        return self._done.wait(seconds)

    def result(self) -> Loaded:
        """The model; raises what loading raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None, "wait() first"
        return self._result

    def say(self, text: str, fraction: float | None) -> None:
        self.text = text if fraction is None else f"{text} ({fraction:.0%})"

    def finish(self, result: Loaded | BaseException) -> None:
        self._result = result
        self._done.set()


class Models:
    """Starts loading and keeps no model itself: the loader knows which ones it has."""

    def __init__(self, loader: Loader, *, device: str, dtype: str, offline: bool) -> None:
        self._loader, self._device, self._dtype, self._offline = loader, device, dtype, offline
        self._on_the_way: dict[str, Loading] = {}
        self._guard = threading.Lock()

    def load(self, pairing_id: str) -> Loading:
        """Begin, or join a loading that is under way."""
        with self._guard:
            if pairing_id not in self._on_the_way:
                self._on_the_way[pairing_id] = Loading()
                threading.Thread(target=self._load, args=(pairing_id,), name=f"load {pairing_id}", daemon=True).start()
            return self._on_the_way[pairing_id]

    def _load(self, pairing_id: str) -> None:
        loading = self._on_the_way[pairing_id]
        result: Loaded | BaseException
        try:
            result = self._loader(
                pairing_id, device=self._device, dtype=self._dtype, offline=self._offline, progress=loading.say
            )
        except BaseException as error:  # raised again in the visitor's thread
            result = error
        with self._guard:
            del self._on_the_way[pairing_id]
        loading.finish(result)
