"""Training data sampled from the target itself: user turns that it finishes, and its own answers to them.

A drafter learns what this target says, not what people say; text of the target's own makes the best drafters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specviz.errors import UserError
from specviz.models.slots import Slots
from specviz.models.target import Target
from specviz.training.prompts import beginning, passage
from specviz.training.shards import TOP, Sample

CANDIDATES = 64  # a sampled token is one of so many, the most probable
TOP_P = 0.95
TURN_TOKENS = 48  # of the user's turn that the target writes
TEMPERATURES = (0.0,) * 7 + (0.3, 0.6, 1.0)  # of the answers: mostly greedy, as most runs are
MARK = "\ue000"  # stands for the user's words when the chat template is taken apart
LONGEST_PROMPT = 256  # tokens; a longer one is dropped
PASSAGES = 400  # kept to be worked on


@dataclass(slots=True)
class Job:
    """A sequence in the making."""

    ids: list[int]
    kind: str
    temperature: float
    room: int  # tokens that may still follow
    answers: bool  # or it is still the user's turn
    prompt_length: int = 0
    hidden: list[Tensor] = field(default_factory=list)
    top_ids: list[Tensor] = field(default_factory=list)
    top_probs: list[Tensor] = field(default_factory=list)


class Generator:
    """Samples one conversation after another, many at a time."""

    def __init__(
        self, target: Target, hidden_layers: tuple[int, ...], *, slots: int, answer_tokens: int, seed: int
    ) -> None:
        """Raises UserError for a target without a chat template, or whose layers don't all attend to everything."""
        self.target, self.answer_tokens = target, answer_tokens
        self.tokenizer = _needs_template(target)
        self.before, self.after = _turn(self.tokenizer)
        self.random = Random(seed)
        self.rng = torch.Generator(target.device).manual_seed(seed)
        self.passages: list[str] = []
        self.slots = Slots(target.model, slots, LONGEST_PROMPT + answer_tokens + 1, hidden_layers)
        self.jobs: list[Job | None] = [None] * slots
        self.waiting: list[Job] = []

    @torch.inference_mode()
    def samples(self) -> Iterator[Sample]:
        """Finished conversations, without end."""
        device = self.target.device
        tokens = torch.zeros(len(self.jobs), dtype=torch.long, device=device)
        group = max(1, len(self.jobs) // 8)  # prompts read together
        while True:
            free = [slot for slot, job in enumerate(self.jobs) if job is None]
            while len(free) >= group:
                filled, free = free[:group], free[group:]
                self._fill(filled, tokens)
                yield from self._finished()
            logits, hidden = self.slots.step(tokens)
            self._read(logits, hidden, tokens)
            yield from self._finished()

    def _finished(self) -> Iterator[Sample]:
        """Free the slots of what has ended."""
        for slot, job in enumerate(self.jobs):
            if job is not None and self._ended(job):
                self.jobs[slot] = None
                self.slots.rest(slot)
                if (sample := self._close(job)) is not None:
                    yield sample

    def _fill(self, slots: list[int], tokens: Tensor) -> None:
        jobs = [self.waiting.pop() if self.waiting else self._begin() for _ in slots]
        logits, hidden = self.slots.fill(slots, [job.ids for job in jobs])
        top_ids, top_probs = top(logits, CANDIDATES)
        drawn = self._draw(top_ids, top_probs, torch.tensor([job.temperature for job in jobs]))
        for row, (slot, job) in enumerate(zip(slots, jobs, strict=True)):
            if job.answers:
                job.hidden.append(hidden[row].cpu())
                # Nothing is learnt from the prompt, so its distributions are not kept.
                job.top_ids.append(torch.zeros(job.prompt_length - 1, TOP, dtype=torch.int32))
                job.top_probs.append(torch.zeros(job.prompt_length - 1, TOP, dtype=torch.bfloat16))
                job.top_ids.append(top_ids[row : row + 1, :TOP].int().cpu())
                job.top_probs.append(top_probs[row : row + 1, :TOP].bfloat16().cpu())
            job.ids.append(int(drawn[row]))
            job.room -= 1
            self.jobs[slot] = job
        tokens[slots] = drawn

    def _read(self, logits: Tensor, hidden: Tensor | None, tokens: Tensor) -> None:
        """What one pass over all slots gave: the next token of each, and what is kept of the target's state."""
        assert hidden is not None
        top_ids, top_probs = top(logits, CANDIDATES)
        temperatures = torch.tensor([0.0 if job is None else job.temperature for job in self.jobs])
        tokens.copy_(self._draw(top_ids, top_probs, temperatures))
        drawn = tokens.tolist()
        kept_ids, kept_probs = top_ids[:, :TOP].int().cpu(), top_probs[:, :TOP].bfloat16().cpu()
        rows = hidden.cpu()
        for slot, job in enumerate(self.jobs):
            if job is None:
                continue
            if job.answers:
                job.hidden.append(rows[slot : slot + 1])
                job.top_ids.append(kept_ids[slot : slot + 1])
                job.top_probs.append(kept_probs[slot : slot + 1])
            job.ids.append(drawn[slot])
            job.room -= 1

    def _draw(self, ids: Tensor, probs: Tensor, temperatures: Tensor) -> Tensor:
        """A token per row, from the candidates [rows, CANDIDATES]; temperature 0 takes the most probable."""
        temperatures = temperatures.to(probs.device)[:, None]
        weights = torch.softmax(probs.log() / temperatures.clamp_min(1e-4), -1)
        weights = weights * (weights.cumsum(-1) - weights < TOP_P)
        choice = torch.multinomial(weights, 1, generator=self.rng)
        choice[temperatures == 0] = 0
        return ids.gather(1, choice)[:, 0]

    def _begin(self) -> Job:
        kind, start, goes_on = beginning(self.random, self.passages)
        start = start.removesuffix(" ")  # the next word brings its own
        ids = [*self.before, *self.tokenizer.encode(start, add_special_tokens=False)]
        if len(ids) + TURN_TOKENS + len(self.after) > LONGEST_PROMPT:
            return self._begin()
        job = Job(ids, kind, self.random.choice((0.8, 1.0)), TURN_TOKENS, answers=False)
        return job if goes_on else self._answer(job)

    def _answer(self, job: Job) -> Job:
        """The job of answering the user's turn that another has finished."""
        ids = [*job.ids, *self.after]
        temperature = self.random.choice(TEMPERATURES)
        return Job(ids, job.kind, temperature, self.answer_tokens, answers=True, prompt_length=len(ids))

    def _ended(self, job: Job) -> bool:
        return job.room <= 0 or job.ids[-1] in self.target.stop_tokens

    def _close(self, job: Job) -> Sample | None:
        """A finished turn becomes a job of answering it; a finished answer becomes a sample."""
        if not job.answers:
            if job.ids[-1] in self.target.stop_tokens:
                job.ids.pop()
            if len(job.ids) > len(self.before) + 2:
                self.waiting.append(self._answer(job))
            return None
        if job.temperature < 1 and (text := passage(self._text(job), self.random)):
            self.passages = [*self.passages[-PASSAGES:], text]
        hidden, top_ids, top_probs = (torch.cat(rows) for rows in (job.hidden, job.top_ids, job.top_probs))
        return Sample(job.ids, job.prompt_length, job.temperature, job.kind, hidden, top_ids, top_probs)

    def _text(self, job: Job) -> str:
        return str(self.tokenizer.decode(job.ids[job.prompt_length :], skip_special_tokens=True))


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row [rows, V] and their probabilities, most probable first, [rows, count]."""
    scores = logits.float()
    values, ids = scores.topk(min(count, scores.shape[-1]), -1)
    return ids, torch.exp(values - scores.logsumexp(-1, keepdim=True))


def _needs_template(target: Target) -> PreTrainedTokenizerBase:
    if target.tokenizer is None or not target.tokenizer.chat_template:
        raise UserError(f"{target.name} has no chat template, so no conversations can be sampled from it.")
    return target.tokenizer


def _turn(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What stands before and after the user's words in a conversation of one turn."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": MARK}], add_generation_prompt=True, tokenize=False
    )
    before, after = str(text).split(MARK)
    return (
        list(tokenizer.encode(before, add_special_tokens=False)),
        list(tokenizer.encode(after, add_special_tokens=False)),
    )
