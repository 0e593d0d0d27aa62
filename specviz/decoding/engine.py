"""The decode loop: draft, verify in one target pass, accept, keep, commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specviz.decoding.clock import Clock
from specviz.decoding.policy import POLICIES, make_policy
from specviz.decoding.record import Recorder
from specviz.decoding.sampling import Sampler
from specviz.decoding.stopping import Ending
from specviz.decoding.verify import RULES
from specviz.drafters.base import Context, Drafter
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.models.text import TextStream
from specviz.trace import Step


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked of a run, apart from who does it."""

    gamma: int = 4  # draft length asked for; the longest one, where the policy chooses
    max_new_tokens: int = 128
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    stop_tokens: frozenset[int] | None = None  # None: the target's own
    stop_strings: tuple[str, ...] = ()
    rule: str = "token"  # of RULES; "typical" is not lossless
    gamma_policy: str = "fixed"  # of POLICIES

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 64:
            raise UserError(f"Gamma is {self.gamma}; give a draft length from 0 to 64.")
        if self.max_new_tokens < 0:
            raise UserError(f"The budget is {self.max_new_tokens} tokens; give 0 or more.")
        if not all(self.stop_strings):
            raise UserError("A stop string is empty; leave it out or give it at least one character.")
        if not -(2**63) <= self.seed < 2**63:
            raise UserError(f"The seed is {self.seed}; give a whole number of at most 63 bits.")
        if self.rule not in RULES:
            raise UserError(f"There is no acceptance rule {self.rule!r}; choose one of {', '.join(RULES)}.")
        if self.gamma_policy not in POLICIES:
            raise UserError(f"There is no gamma policy {self.gamma_policy!r}; choose one of {', '.join(POLICIES)}.")


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    settings: Settings,
    *,
    done: Sequence[Step] = (),
    rng: torch.Generator | None = None,
    detail: bool = True,
    phases: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Speculative decoding of a prompt's token ids; yields one Step per verify pass.

    Under a lossless rule the output is distributed exactly as the target's own, whatever the drafter proposes. An
    adaptive policy goes by the clock, so that one seed may draft, and thereby sample, differently each time. With
    `detail` the steps tell the probabilities behind every decision; `phases` times draft, verify and decide, which
    takes synchronisation.

    Closing the iterator at any moment leaves target and drafter ready for the next run; before the first step,
    `should_stop` can end it, by Cancelled. Raises UserError for prompts that can't be decoded.

    A run can be left and gone on with later: `done` are its steps so far, which count as read, and `rng` the generator
    as they left it (without one, a new one from the seed). Where `done` has ended, nothing follows.
    """
    check_prompt(target, prompt)
    if done and done[-1].cut:
        return
    sampler, rng = settings.sampler, rng or torch.Generator().manual_seed(settings.seed)
    accept, policy = RULES[settings.rule], make_policy(settings.gamma_policy, settings.gamma, done)
    tokens = [*prompt, *(token for step in done for token in step.committed)]
    clock = Clock(target.device, phases)
    with clock.prefill():
        ctx = Context(tokens, target.prefill(tokens[:-1], drafter.hidden_layers, should_stop), detail)
    ending = make_ending(target, prompt, settings, done)
    recorder = Recorder(target.tokenizer, sampler, detail)
    recorder.index = len(done)
    while ending.room > 0:
        gamma = policy.ask()
        clock.begin()
        with clock.phase("draft"):
            draft = drafter.propose(ctx, min(gamma, ending.room - 1), sampler, rng)
        with clock.phase("verify"):
            logits, hidden = target.verify(ctx.tokens[-1], draft)
        with clock.phase("decide"):
            p = sampler.probs(logits, ctx.tokens, draft)  # [n+1, V], row 0 after the last committed token
            verdict = accept(draft, p, rng)
            rerun = target.keep(verdict.path)
            cut = ending.cut([*draft.take(verdict.path), verdict.token])
        times = clock.take()
        step = recorder.step(ctx.tokens, gamma, draft, logits, p, verdict, cut, times, rerun)
        policy.learn(step, clock.spent["draft"], clock.spent["verify"])
        yield step
        if cut.reason:
            return
        ctx.commit(cut.committed, hidden, verdict.path)


def check_prompt(target: Target, prompt: Sequence[int]) -> None:
    if not prompt:
        raise UserError("The prompt is empty; give it at least one token.")
    unknown = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if unknown is not None:
        raise UserError(f"The prompt holds token id {unknown}; {target.name} knows 0 to {target.vocab_size - 1}.")
    if target.max_tokens is not None and len(prompt) > target.max_tokens:
        raise UserError(
            f"The prompt has {len(prompt):,} tokens; {target.name} reads at most {target.max_tokens:,}, so shorten it."
        )


def make_ending(target: Target, prompt: Sequence[int], settings: Settings, done: Sequence[Step] = ()) -> Ending:
    """The run's end, as seen after the steps already made.

    Its budget is also bounded by the target's context, whose last position yields one more token.
    """
    budget = settings.max_new_tokens
    if target.max_tokens is not None:
        budget = min(budget, target.max_tokens - len(prompt) + 1)
    stop_tokens = target.stop_tokens if settings.stop_tokens is None else settings.stop_tokens
    ending = Ending(TextStream(target.tokenizer, list(prompt)), budget, stop_tokens, settings.stop_strings)
    for step in done:
        ending.cut(step.committed)
    return ending
