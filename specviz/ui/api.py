"""Endpoints for programs: what can be run, a run, and two runs compared. The page's own way, and its own limits."""

# Annotations are read by Gradio at run time, some as they stand, so they may not be turned into text here.

import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency, api
from gradio.utils import get_function_description

from specviz.presets import DrafterPreset, ModelSource, Pairing
from specviz.trace import header_line, step_line
from specviz.ui import versus
from specviz.ui.answers import Answer, Work, answers, report
from specviz.ui.asked import Settings, read, read_side, read_switch
from specviz.ui.explore import MODEL_EVENTS, VISITORS_AT_ONCE
from specviz.ui.handlers import Explorer, session
from specviz.ui.offer import obstacle


def add_endpoints(explorer: Explorer) -> None:
    """Add them to the blocks that are being built."""
    page = gr.context.Context.root_block
    assert isinstance(page, gr.Blocks)
    endpoints = Api(explorer)
    on_model: dict[str, Any] = {"concurrency_id": MODEL_EVENTS, "concurrency_limit": VISITORS_AT_ONCE}
    _describe(api(endpoints.presets, api_name="presets"), page)
    _describe(api(endpoints.run, api_name="run", **on_model), page)
    _describe(api(endpoints.compare, api_name="compare", **on_model), page)


def _describe(endpoint: Dependency, page: gr.Blocks) -> None:
    """Give parameters and answer the texts of the docstring; Gradio itself takes only its beginning."""
    _, parameters, returns = get_function_description(endpoint.fn)
    texts = [text for name, text in parameters.items() if name != "request"]
    for id, text in zip(endpoint["inputs"], texts, strict=True):
        _schema(page, id)["additional_description"] = text
    (answer,) = endpoint["outputs"]
    schema = _schema(page, answer)
    if not schema:  # Gradio makes nothing of a generator
        schema |= {"type": "object", "additionalProperties": {}}
    schema["description"] = " ".join(returns)


def _schema(page: gr.Blocks, id: int) -> dict[str, Any]:
    """A component's own JSON schema, which may be changed."""
    component = page.blocks[id]
    assert isinstance(component, Component)
    return component.api_info()


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints, named by their methods. Each docstring is what programs are told."""

    explorer: Explorer
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(VISITORS_AT_ONCE, "api"))

    def presets(self) -> list[dict[str, Any]]:
        """Every pairing of a target with its drafters: what it is, what it needs, and whether it can run here.

        Returns:
            A list of pairings: id, title, target {name, repo, licence, gated}, drafters [{title, kind, defaults, note,
            model}], memory_mb, hardware, chat (false: it continues prompts as they stand), runs_here, and reason: why
            it can't run here, or an empty text.
        """
        return [self._preset(pairing) for pairing in list(self.explorer.pairings.values())]

    def _preset(self, pairing: Pairing) -> Answer:
        reason = obstacle(pairing, self.explorer.models).sentence
        return {
            "id": pairing.id,
            "title": pairing.title,
            "target": _model(pairing.target),
            "drafters": [_drafter(preset) for preset in pairing.drafters],
            "memory_mb": pairing.memory_mb,
            "hardware": pairing.hardware,
            "chat": pairing.chat,
            "runs_here": not reason,
            "reason": reason,
        }

    async def run(
        self,
        request: gr.Request,
        prompt: str,
        pairing: str = "smollm2-135m",
        drafter: str | None = None,
        gamma: int | None = None,
        max_new_tokens: int = 128,
        temperature: float = 0,
        top_k: int = 0,
        top_p: float = 1,
        min_p: float = 0,
        repetition_penalty: float = 1,
        seed: int = 0,
        stop: str = "",
        raw_prompt: bool | None = None,
        exit_layer: int | None = None,
        ngram_min: int | None = None,
        ngram_max: int | None = None,
        ngram_pick: str = "recent",
        tree: bool | None = None,
        nodes: int | None = None,
        branches: int | None = None,
        second_gamma: int | None = None,
        gamma_policy: str | None = None,
        confidence: float | None = None,
        rule: str = "token",
        float32: bool = False,
        measure: bool = True,
        trace: bool = False,
    ) -> AsyncIterator[Answer]:
        """Decode a prompt speculatively, and time it against plain decoding. Runs take turns with those of the page,
        first come, first served, and none holds the model longer than two minutes at a stretch. Each client has one run
        at a time: asking for another stops it. A setting that the drafter has no use for is refused. A job that is
        iterated over also tells how far it is, as {"status": ...}, before the answer.

        Parameters:
            prompt: The text to answer, at most 8,000 characters and 2,048 tokens.
            pairing: Id of a target and its drafters, one of those that /presets lists.
            drafter: One of the pairing's drafters, by title or kind. None: its first that drafts.
            gamma: Draft length, the number of tokens proposed per verify pass, 0 to 16. None: the drafter's default.
            max_new_tokens: Where the answer ends at the latest, 1 to 512.
            temperature: 0 is greedy, always the likeliest token; above it, up to 2, tokens are drawn.
            top_k: Keep only the k likeliest tokens, up to 1,000; 0 is off.
            top_p: Keep the fewest tokens that have this much probability together, 0.05 to 1; 1 is off.
            min_p: Drop tokens with less than this share of the likeliest one's probability, 0 to 1; 0 is off.
            repetition_penalty: Above 1, tokens that have occurred become less likely, 0.5 to 2.
            seed: The same seed draws the same tokens.
            stop: Stop strings, one per line, at most 4 of 40 characters.
            raw_prompt: Continue the prompt as it stands, rather than answer it as a chat. None: as suits the target.
            exit_layer: Early exit: how many of the target's layers draft. None: the drafter's default.
            ngram_min: N-gram lookup: tokens of the shortest match, 1 to 16. None: the drafter's default.
            ngram_max: N-gram lookup: tokens of the longest match, which is looked for first. None: the default.
            ngram_pick: N-gram lookup: which of several matches to follow, "recent" or "frequent".
            tree: Draft a tree, several continuations verified in one pass, or a chain. None: the drafter's default.
            nodes: Trees: draft tokens at most, 1 to 64; gamma bounds the depth. None: the drafter's default.
            branches: Trees: children of a node that are looked at, 1 to 16. None: the drafter's default.
            second_gamma: Combinations: draft length of the second drafter, 1 to 16. None: the drafter's default.
            gamma_policy: "fixed", "confidence", or "adaptive": what paid lately, gamma at most. None: the default.
            confidence: Policy "confidence": end a draft after a token to which the drafter gives less, 0 to 1.
            rule: "token" or "block" (chains only), both lossless, or "typical", which is lossy.
            float32: Run in float32, where greedy output equals plain decoding's exactly.
            measure: Also time plain decoding and this run in turns, three times each: gives the speed-up.
            trace: Also return every decision, as the JSON lines that `python -m specviz replay` reads.
        Returns:
            What `python -m specviz run --json` prints: schema, text, tokens, finish_reason ("cancelled": the time
            limit came first), lossless, rule, warnings, acceptance, timing, cost_ratio (one drafter step over one
            plain step), verify_cost (null: only runs with --phases time it), memory, baseline (plain decoding: its
            speed, the speed-up with its spread, whether the output is identical; null if not measured), run
            (everything that is needed to do it again), and with `trace` the trace as one text.
        """
        asked = Settings(
            pairing=pairing,
            drafter=drafter,
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            raw_prompt=raw_prompt,
            exit_layer=exit_layer,
            ngram_min=ngram_min,
            ngram_max=ngram_max,
            ngram_pick=ngram_pick,
            tree=tree,
            nodes=nodes,
            branches=branches,
            second_gamma=second_gamma,
            gamma_policy=gamma_policy,
            confidence=confidence,
            rule=rule,
            float32=float32,
        )
        async with aclosing(
            self._answers(request, lambda stop: self._run(prompt, asked, measure, trace, stop))
        ) as told:
            async for each in told:
                yield each

    async def compare(
        self, request: gr.Request, prompt: str, first: Settings, second: Settings
    ) -> AsyncIterator[Answer]:
        """Run a prompt twice, with two drafters or other settings, and time both runs and plain decoding in turns. Both
        need the same target in the same number format: of two targets, the speeds would say nothing about drafting.

        Parameters:
            prompt: The text to answer, at most 8,000 characters and 2,048 tokens.
            first: Settings of one run, by the names that /run has for them, such as {"drafter": "ngram", "gamma": 4}.
            second: Settings of the other; what is left out is as in /run.
        Returns:
            first and second: what /run returns of each; speed_ratio: the second's speed over the first's, above 1 if
            the second is faster, the median of the repeats; spread: the smallest and largest of them; repeats; tokens:
            how many each timed run decoded; identical: whether the outputs are (null where they need not be, for
            instance when sampling); first_divergence {index, first, second, margin, near_tie}: the tokens where they
            part, and the target's logit of the first's less that of the second's; notes: what else to know.
        """
        async with aclosing(self._answers(request, lambda stop: self._compare(prompt, first, second, stop))) as told:
            async for each in told:
                yield each

    # --- how the answers come about

    def _answers(self, request: gr.Request, work: Callable[[threading.Event], Work]) -> AsyncGenerator[Answer, None]:
        return answers(work, self.explorer.visits, session(request), self.threads)

    def _run(self, prompt: Any, asked: Settings, measure: Any, with_trace: Any, stop: threading.Event) -> Work:
        pairings = self.explorer.pairings
        ask = read(prompt, asked, pairings, measure=read_switch("measure", measure))
        read_switch("trace", with_trace)
        prepared, record = yield from self.explorer.made(ask, (), stop)
        answer = report(prepared, record)
        if with_trace:
            lines = [header_line(record.run), *map(step_line, record.steps)]
            answer["trace"] = "".join(f"{line}\n" for line in lines)
        return answer

    def _compare(self, prompt: Any, first: Any, second: Any, stop: threading.Event) -> Work:
        pairings = self.explorer.pairings
        one = read_side("first", prompt, first, USUAL, pairings)
        other = read_side("second", prompt, second, USUAL, pairings)
        return (yield from versus.compared(one, other, self.explorer, stop))


# The settings that a run has where none are given.
USUAL = {
    name: each.default
    for name, each in inspect.signature(Api.run).parameters.items()
    if name in Settings.__annotations__
}


def _drafter(preset: DrafterPreset) -> Answer:
    return {
        "title": preset.title,
        "kind": preset.kind,
        "defaults": preset.defaults,
        "note": preset.note,
        "model": None if preset.model is None else _model(preset.model),
    }


def _model(model: ModelSource) -> Answer:
    repo = None if model.hub is None else model.hub.repo
    return {"name": model.name, "repo": repo, "licence": model.licence, "gated": model.gated}
