"""Loading models in the background, so that the page can say how far it is, and letting go of them."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from specviz.errors import Cancelled, NotEnoughMemory, UserError
from specviz.loaded import Loaded
from specviz.models.pack import bytes_held
from specviz.presets import ModelSource, Pairing

log = logging.getLogger(__name__)
Key = tuple[str, str, str]  # ids of the pairing and of the model that drafts ("" for none), number format


class Loader(Protocol):
    """`loaded.load`, or a stand-in for it."""

    def __call__(
        self,
        pairing: Pairing,
        drafts: ModelSource | None,
        *,
        device: str,
        dtype: str,
        offline: bool,
        progress: Callable[[str, float | None], None] | None,
        having: Collection[Loaded],
    ) -> Loaded: ...


class Loading:
    """A model on its way; visitors who ask for the same one share it."""

    def __init__(self) -> None:
        self.doing = "loading the model"
        self.fraction: float | None = None  # of what is being done; None if that can't be told
        self._waiting = 0
        self._guard = threading.Lock()
        self._done = threading.Event()
        self._cancelled = threading.Event()
        self._result: Loaded | BaseException | None = None

    @property
    def text(self) -> str:
        """What is being done, and how far it is."""
        return self.doing if self.fraction is None else f"{self.doing} ({self.fraction:.0%})"

    @contextmanager
    def awaited(self, *, gives_up: bool) -> Iterator[None]:
        """Somebody waits for it meanwhile. gives_up: whether, on turning away early as the last, to cancel it."""
        with self._guard:
            self._waiting += 1
        left = True
        try:
            yield
            left = False
        finally:
            with self._guard:
                self._waiting -= 1
                if left and gives_up and self._waiting == 0:
                    self.cancel()

    def wait(self, seconds: float) -> bool:
        """Whether it is there, or failed, within so many seconds."""
        return self._done.wait(seconds)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Give it up, for everybody who waits for it; what has been downloaded stays."""
        self._cancelled.set()

    def result(self) -> Loaded:
        """The model; raises what loading raised, or Cancelled."""
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None, "wait() first"
        return self._result

    def say(self, doing: str, fraction: float | None) -> None:
        """Called by whoever loads; raises Cancelled once it has been given up."""
        if self._cancelled.is_set():
            raise Cancelled
        self.doing, self.fraction = doing, fraction

    def finish(self, result: Loaded | BaseException) -> None:
        self._result = result
        self._done.set()


class Models:
    """Starts loading, and knows what is there. Models stay until another one needs their memory."""

    def __init__(self, loader: Loader, *, device: str, dtype: str, offline: bool) -> None:
        self.device, self.dtype, self.offline = device, dtype, offline
        self._loader = loader
        self._on_the_way: dict[Key, Loading] = {}
        self._there: dict[Key, Loaded] = {}
        self._guard = threading.Lock()

    def there(self, pairing: Pairing, drafts: ModelSource | None = None, dtype: str | None = None) -> Loaded | None:
        """The target, and the model that drafts for it if there is one, if both have been loaded."""
        return self._there.get(self._key(pairing, drafts, dtype))

    def load(self, pairing: Pairing, drafts: ModelSource | None = None, dtype: str | None = None) -> Loading:
        """Begin, or join a loading that is under way. dtype: another number format than the server's own."""
        key = self._key(pairing, drafts, dtype)
        with self._guard:
            loading = self._on_the_way.get(key)
            if loading is None or loading.is_cancelled:
                loading = self._on_the_way[key] = Loading()
                arguments = (loading, key, pairing, drafts)
                threading.Thread(target=self._load, args=arguments, name=f"load {pairing.id}", daemon=True).start()
            return loading

    def cancel(self) -> None:
        """Give up whatever is on its way."""
        with self._guard:
            under_way = list(self._on_the_way.values())
        for loading in under_way:
            loading.cancel()

    @property
    def held_bytes(self) -> int:
        """What the weights of all that is there take."""
        models = {}
        for each in list(self._there.values()):
            for model in (each.target.model, *([each.assistant.model] if each.assistant else [])):
                models[id(model)] = model
        return sum(map(bytes_held, models.values()))

    def _key(self, pairing: Pairing, drafts: ModelSource | None, dtype: str | None) -> Key:
        return pairing.id, "" if drafts is None else drafts.id, dtype or self.dtype

    def _load(self, loading: Loading, key: Key, pairing: Pairing, drafts: ModelSource | None) -> None:
        result = self._tried(loading, key, pairing, drafts)
        if isinstance(result, NotEnoughMemory) and self._let_go():
            result = self._tried(loading, key, pairing, drafts)
        with self._guard:
            if isinstance(result, Loaded):
                self._there[key] = result
            if self._on_the_way.get(key) is loading:
                del self._on_the_way[key]
        loading.finish(result)

    def _tried(
        self, loading: Loading, key: Key, pairing: Pairing, drafts: ModelSource | None
    ) -> Loaded | BaseException:
        """The model, or why not. An error comes without its traceback, whose frames would keep other models alive."""
        try:
            return self._loader(
                pairing,
                drafts,
                device=self.device,
                dtype=key[2],
                offline=self.offline,
                progress=loading.say,
                having=list(self._there.values()),
            )
        except BaseException as error:  # raised again in the visitor's thread
            if not isinstance(error, UserError | Cancelled):
                log.exception("loading failed")
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)

    def _let_go(self) -> bool:
        """Forget every model that is there, after the runs that are using them; whether there was one."""
        locks = {id(each.lock): each.lock for each in list(self._there.values())}
        for lock in locks.values():
            with lock, self._guard:
                self._there = {key: each for key, each in self._there.items() if each.lock is not lock}
        gc.unfreeze()  # what was loaded has been frozen
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return bool(locks)
