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
        self.doing = "loading the model"
        self.fraction: float | None = None  # of what is being done; None if that can't be told
        self._done = threading.Event()
        self._result: Loaded | BaseException | None = None

    @property
    def text(self) -> str:
        """What is being done, and how far it is."""
        return self.doing if self.fraction is None else f"{self.doing} ({self.fraction:.0%})"

    def wait(self, seconds: float) -> bool:
        """Whether it is there, or failed, within so many seconds."""
        return self._done.wait(seconds)

    def result(self) -> Loaded:
        """The model; raises what loading raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None, "wait() first"
        return self._result

    def say(self, doing: str, fraction: float | None) -> None:
        self.doing, self.fraction = doing, fraction

    def finish(self, result: Loaded | BaseException) -> None:
        self._result = result
        self._done.set()


class Models:
    """Starts loading, and knows what is there. Models stay for the life of the process."""

    def __init__(self, loader: Loader, *, device: str, dtype: str, offline: bool) -> None:
        self.device, self.dtype = device, dtype
        self._loader, self._offline = loader, offline
        self._on_the_way: dict[tuple[str, str], Loading] = {}
        self._there: dict[tuple[str, str], Loaded] = {}
        self._guard = threading.Lock()

    def there(self, pairing_id: str, dtype: str | None = None) -> Loaded | None:
        """The model if it has been loaded."""
        return self._there.get((pairing_id, dtype or self.dtype))

    def load(self, pairing_id: str, dtype: str | None = None) -> Loading:
        """Begin, or join a loading that is under way. dtype: another number format than the server's own."""
        key = (pairing_id, dtype or self.dtype)
        with self._guard:
            if key not in self._on_the_way:
                self._on_the_way[key] = Loading()
                threading.Thread(target=self._load, args=key, name=f"load {pairing_id}", daemon=True).start()
            return self._on_the_way[key]

    def _load(self, pairing_id: str, dtype: str) -> None:
        loading = self._on_the_way[pairing_id, dtype]
        result: Loaded | BaseException
        try:
            result = self._loader(
                pairing_id, device=self.device, dtype=dtype, offline=self._offline, progress=loading.say
            )
        except BaseException as error:  # raised again in the visitor's thread
            result = error
        with self._guard:
            if isinstance(result, Loaded):
                self._there[pairing_id, dtype] = result
            del self._on_the_way[pairing_id, dtype]
        loading.finish(result)
