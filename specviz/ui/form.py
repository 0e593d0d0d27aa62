"""What the controls say, checked: the browser's own limits are only a convenience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specviz import memory, runs
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.presets import DrafterPreset, Pairing
from specviz.prompts import Turn, encode

MAX_GAMMA = 16
MAX_TEMPERATURE = 2
MAX_TOP_K = 1000
MIN_PENALTY, MAX_PENALTY = 0.5, 2
MAX_TOKENS = 512
MAX_SEED = 2**31 - 1
MAX_NGRAM = 16
MAX_PROMPT = 8_000  # characters
MAX_PROMPT_TOKENS = 2048  # a longer one would hold the model for many seconds before its first token
MAX_STOPS, MAX_STOP = 4, 40  # stop strings, and characters of one
PICKS = ("recent", "frequent")
CHAT, RAW = "chat", "raw"
DEFAULT, EXACT = "default", "float32"  # number formats
ELSEWHERE = ("gamma", "source")  # defaults of a preset that are no settings of the drafter itself


class Form(NamedTuple):
    """The controls' values as they came, in the order of the page; anything may be missing or wrong."""

    prompt: Any
    drafter: Any
    gamma: Any
    ngram_min: Any
    ngram_max: Any
    pick: Any
    exit_layer: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    penalty: Any
    seed: Any
    max_new_tokens: Any
    stops: Any
    template: Any
    pairing: Any
    precision: Any
    measure: Any


@dataclass(frozen=True, slots=True)
class Ask:
    """A run as asked for, within the limits."""

    pairing: Pairing
    preset: DrafterPreset
    drafter_settings: dict[str, Any]
    settings: Settings
    prompt: str
    raw: bool
    dtype: str | None  # None: as the server was started
    measure: bool

    def needs(self, loaded: Loaded, history: Sequence[Turn]) -> memory.Budget:
        """What the run will need of memory; builds nothing for it. Raises UserError for a prompt that can't be read."""
        prompt = encode(loaded.target, self.prompt, raw=self.raw, history=history)
        tokens = len(prompt) + self.settings.max_new_tokens
        return runs.needs(loaded, self.preset.kind, self.drafter_settings, self.settings.gamma, tokens)

    def prepared(self, loaded: Loaded, history: Sequence[Turn]) -> runs.Prepared:
        """Everything built for the run; raises UserError for what can't work with this target."""
        return runs.prepare(
            loaded,
            self.preset.kind,
            self.drafter_settings,
            self.prompt,
            self.settings,
            raw_prompt=self.raw,
            max_prompt_tokens=MAX_PROMPT_TOKENS,
            history=history,
        )


def read(form: Form, pairings: Mapping[str, Pairing]) -> Ask:
    """The form as a run; raises UserError with one sentence about the first thing that is wrong."""
    prompt = _prompt(form.prompt)
    if not isinstance(form.pairing, str) or form.pairing not in pairings:
        raise UserError("Choose a pairing of the list.")
    pairing = pairings[form.pairing]
    preset = drafter_preset(pairing, form.drafter)
    if form.template not in (CHAT, RAW):
        raise UserError(f"Choose how the prompt is read: {CHAT} or {RAW}.")
    if form.precision not in (DEFAULT, EXACT):
        raise UserError(f"Choose a number format: {DEFAULT} or {EXACT}.")
    settings = Settings(
        gamma=_whole("The draft length", form.gamma, 0, MAX_GAMMA),
        max_new_tokens=_whole("The number of new tokens", form.max_new_tokens, 1, MAX_TOKENS),
        sampler=_sampler(form),
        seed=_whole("The seed", form.seed, 0, MAX_SEED),
        stop_strings=_stops(form.stops),
    )
    return Ask(
        pairing=pairing,
        preset=preset,
        drafter_settings=_drafter_settings(preset, form),
        settings=settings,
        prompt=prompt,
        raw=form.template == RAW,
        dtype=EXACT if form.precision == EXACT else None,
        measure=bool(form.measure),
    )


def drafter_preset(pairing: Pairing, title: Any) -> DrafterPreset:
    """The pairing's drafter of that title."""
    for preset in pairing.drafters:
        if preset.title == title:
            return preset
    raise UserError(f"Choose a drafter that is offered for {pairing.title}.")


def parts(preset: DrafterPreset) -> list[str]:
    """The kinds that a combination is made of."""
    return preset.kind.split("+")


def _sampler(form: Form) -> Sampler:
    return Sampler(
        temperature=_number("The temperature", form.temperature, 0, MAX_TEMPERATURE),
        top_k=_whole("Top-k", form.top_k, 0, MAX_TOP_K),
        top_p=_number("Top-p", form.top_p, 0.05, 1),
        min_p=_number("Min-p", form.min_p, 0, 1),
        repetition_penalty=_number("The repetition penalty", form.penalty, MIN_PENALTY, MAX_PENALTY),
    )


def _stops(value: Any) -> tuple[str, ...]:
    """One stop string per line, with \\n and \\t for a new line and a tab."""
    if value is not None and not isinstance(value, str):
        raise UserError("The stop strings are no text; write one per line.")
    lines = [line for line in (value or "").split("\n") if line]
    if len(lines) > MAX_STOPS:
        raise UserError(f"There are {len(lines)} stop strings; give at most {MAX_STOPS}, one per line.")
    if longest := next((line for line in lines if len(line) > MAX_STOP), None):
        raise UserError(f"The stop string “{longest[:MAX_STOP]}…” is too long; give at most {MAX_STOP} characters.")
    return tuple(line.replace("\\n", "\n").replace("\\t", "\t") for line in lines)


def _drafter_settings(preset: DrafterPreset, form: Form) -> dict[str, Any]:
    settings: dict[str, Any] = {name: value for name, value in preset.defaults.items() if name not in ELSEWHERE}
    if "ngram" in parts(preset):
        shortest = _whole("The shortest match", form.ngram_min, 1, MAX_NGRAM)
        longest = _whole("The longest match", form.ngram_max, 1, MAX_NGRAM)
        if shortest > longest:
            raise UserError(f"The shortest match ({shortest}) is longer than the longest ({longest}); swap them.")
        if form.pick not in PICKS:
            raise UserError(f"Choose which match to follow: {' or '.join(PICKS)}.")
        settings |= {"ngram_min": shortest, "ngram_max": longest, "pick": form.pick}
    if "early-exit" in parts(preset):
        settings["exit_layer"] = _whole("The exit layer", form.exit_layer, 1, 1000)  # the target knows its own limit
    return settings


def _prompt(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError("The prompt is empty; type something, or choose an example.")
    if len(value) > MAX_PROMPT:
        raise UserError(f"The prompt has {len(value):,} characters; this page takes {MAX_PROMPT:,}, so shorten it.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"Character {error.start + 1} of the prompt is only half a character; delete it.") from error
    return value


def _whole(name: str, value: Any, low: int, high: int) -> int:
    number = _number(name, value, low, high, "a whole number")
    if number != int(number):
        raise UserError(f"{name} is {value:g}; give a whole number from {low:,} to {high:,}.")
    return int(number)


def _number(name: str, value: Any, low: float, high: float, kind: str = "a number") -> float:
    if value is None or value == "":
        raise UserError(f"{name} is missing; give {kind} from {low:,} to {high:,}.")
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not low <= value <= high:  # nor is it where the value is no number
        raise UserError(f"{name} is {_said(value)}; give {kind} from {low:,} to {high:,}.")
    return float(value)


def _said(value: Any) -> str:
    """The value as it was typed, at most."""
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to write out the largest
        return "far out of range"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)[:40]
