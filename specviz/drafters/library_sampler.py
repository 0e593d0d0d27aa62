"""Our sampler inside transformers' candidate generators, and the global random state they draw from."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler

NO_LIMIT = 2**30  # tokens: the engine alone decides where a run ends

_global_rng = threading.Lock()


class SamplerProcessor(LogitsProcessor):  # type: ignore[misc]
    """Stands for all of transformers' own processors, and remembers the logits it was given and the q it made of them.

    It returns log q, and the softmax of that is q: so a generator that draws from what it gets here draws from q, and
    one that takes the largest takes what the sampler would.
    """

    def __init__(self, sampler: Sampler, allowed: Tensor | None = None) -> None:
        """allowed: [V] bool, the tokens that may be drafted; None for all."""
        self.sampler, self.allowed = sampler, allowed
        self.read: list[int] = []  # the ids before the last distribution
        self.logits: list[Tensor] = []  # [V] each
        self.q: list[Tensor] = []  # [V] each

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: [1, n], scores: [1, V]; returns float32 [1, V]."""
        logits = scores[0].float().clone()  # some generators go on to write into theirs
        if self.allowed is not None:
            logits.masked_fill_(~self.allowed, -torch.inf)
        if not torch.isfinite(logits.amax()):
            raise ValueError("its logits leave no token to choose")
        self.read = input_ids[0].tolist()
        q = self.sampler.probs(logits[None], self.read)[0]
        self.logits.append(logits)
        self.q.append(q)
        return q.log()[None]

    def begin(self) -> None:
        """Forget the last draft's distributions."""
        self.logits.clear()
        self.q.clear()

    def draft(self, tokens: Sequence[int]) -> Draft:
        """A chain of the first tokens drafted since `begin`, each with the distribution that it was drawn from."""
        if not tokens:
            return Draft.empty()
        return Draft.chain(tokens, torch.stack(self.q[: len(tokens)]), torch.stack(self.logits[: len(tokens)]))


def generation_config(sampler: Sampler) -> GenerationConfig:
    """Draw or take the largest, as the sampler does; everything else is left to its `SamplerProcessor`."""
    draws = sampler.temperature > 0
    return GenerationConfig(min_length=0, max_length=NO_LIMIT, do_sample=draws, **({"top_k": 0} if draws else {}))


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device]) -> Iterator[None]:
    """Within the context the global generators of the CPU and these devices start at `seed`, for one thread at a time.

    Afterwards they stand where they stood before.
    """
    accelerator = next((device.type for device in devices if device.type != "cpu"), None)
    every = range(torch.get_device_module(accelerator).device_count()) if accelerator else ()
    with _global_rng, torch.random.fork_rng(every, device_type=accelerator):
        if accelerator:
            torch.manual_seed(seed)  # all devices, the ones restored
        else:
            torch.default_generator.manual_seed(seed)
        yield


def reason(error: Exception) -> str:
    """The first line of what an exception says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
