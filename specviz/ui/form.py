"""What the controls say, checked: the browser's own limits are only a convenience."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specviz import memory, runs
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.decoding.verify import RULES
from specviz.drafter_settings import asks_for_tree, bare
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.presets import DrafterPreset, Pairing
from specviz.prompts import Turn, encode
from specviz.ui.checks import number, whole
from specviz.ui.parts import LATER, knows, names, parts

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
MAX_NODES, MAX_BRANCHES = 64, 16
PICKS = ("recent", "frequent")
CHAIN, TREE = "chain", "tree"  # draft shapes
FIXED, CONFIDENCE, ADAPTIVE = POLICIES = ("fixed", "confidence", "adaptive")  # what decides on the draft length
CHAT, RAW = "chat", "raw"
DEFAULT, EXACT = "default", "float32"  # number formats
OF_TREES, OF_CONFIDENCE = ("tree", "nodes", "branches"), ("confidence",)  # those that count where the controls say so


class Form(NamedTuple):
    """The controls' values as they came, in the order of the page; anything may be missing or wrong."""

    prompt: Any
    drafter: Any
    gamma: Any
    ngram_min: Any
    ngram_max: Any
    pick: Any
    exit_layer: Any
    shape: Any
    nodes: Any
    branches: Any
    later_nodes: Any  # this and the other later ones: of parts for which the preset has another number
    later_branches: Any
    second_gamma: Any
    policy: Any
    confidence: Any
    later_confidence: Any
    rule: Any
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
    drafter_settings = _drafter_settings(preset, form)
    settings = Settings(
        gamma=whole("The draft length", form.gamma, 0, MAX_GAMMA),
        max_new_tokens=whole("The number of new tokens", form.max_new_tokens, 1, MAX_TOKENS),
        sampler=_sampler(form),
        seed=whole("The seed", form.seed, 0, MAX_SEED),
        stop_strings=_stops(form.stops),
        **_rules(preset, form, is_tree=asks_for_tree(drafter_settings)),
    )
    return Ask(
        pairing=pairing,
        preset=preset,
        drafter_settings=drafter_settings,
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


def _sampler(form: Form) -> Sampler:
    return Sampler(
        temperature=number("The temperature", form.temperature, 0, MAX_TEMPERATURE),
        top_k=whole("Top-k", form.top_k, 0, MAX_TOP_K),
        top_p=number("Top-p", form.top_p, 0.05, 1),
        min_p=number("Min-p", form.min_p, 0, 1),
        repetition_penalty=number("The repetition penalty", form.penalty, MIN_PENALTY, MAX_PENALTY),
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
    """The preset's own, with what the controls for them say."""
    tree, confidence = _tree(preset, form), _confidence(preset, form)
    left_out = ("gamma", *(() if tree else OF_TREES), *(() if confidence else OF_CONFIDENCE))
    settings: dict[str, Any] = {name: value for name, value in preset.defaults.items() if bare(name) not in left_out}
    if "ngram" in parts(preset):
        shortest = whole("The shortest match", form.ngram_min, 1, MAX_NGRAM)
        longest = whole("The longest match", form.ngram_max, 1, MAX_NGRAM)
        if shortest > longest:
            raise UserError(f"The shortest match ({shortest}) is longer than the longest ({longest}); swap them.")
        if form.pick not in PICKS:
            raise UserError(f"Choose which match to follow: {' or '.join(PICKS)}.")
        for setting, value in (("ngram_min", shortest), ("ngram_max", longest), ("pick", form.pick)):
            settings |= dict.fromkeys(names(preset, setting)[0], value)
    if "early-exit" in parts(preset):
        exit_layer = whole("The exit layer", form.exit_layer, 1, 1000)  # the target knows its own limit
        settings |= dict.fromkeys(names(preset, "exit_layer")[0], exit_layer)
    if len(parts(preset)) > 1:
        settings["second_gamma"] = whole("The second drafter's draft length", form.second_gamma, 1, MAX_GAMMA)
    return settings | tree | confidence


def _tree(preset: DrafterPreset, form: Form) -> dict[str, Any]:
    if not knows(preset, "tree"):
        return {}
    if form.shape not in (CHAIN, TREE):
        raise UserError(f"Choose the draft's shape: {CHAIN} or {TREE}.")
    if form.shape == CHAIN:
        return {}
    nodes = _by_part(preset, form, "nodes", lambda value: whole("The tree's number of nodes", value, 1, MAX_NODES))
    branches = _by_part(preset, form, "branches", lambda value: whole("The number of branches", value, 1, MAX_BRANCHES))
    return dict.fromkeys(names(preset, "tree")[0], True) | nodes | branches


def _confidence(preset: DrafterPreset, form: Form) -> dict[str, Any]:
    if form.policy != CONFIDENCE or preset.kind == "plain":
        return {}
    if not knows(preset, "confidence"):
        raise UserError(f"{preset.title} is never more or less sure of a token; choose another draft length policy.")
    return _by_part(preset, form, "confidence", lambda value: number("The confidence threshold", value, 0, 1))


def _by_part(preset: DrafterPreset, form: Form, setting: str, check: Callable[[Any], float]) -> dict[str, Any]:
    """What the two controls of a setting say, the second only where the preset has a use for it."""
    controls = getattr(form, setting), getattr(form, LATER + setting)
    shared = zip(names(preset, setting), controls, strict=False)
    return {name: check(value) for each, value in shared for name in each}


def _rules(preset: DrafterPreset, form: Form, is_tree: bool) -> dict[str, Any]:
    """Acceptance rule and draft length policy, as the engine has them; without drafts there is nothing to choose."""
    if preset.kind == "plain":
        return {}
    if form.policy not in POLICIES:
        raise UserError(f"Choose what decides on the draft length: {', '.join(POLICIES)}.")
    if form.rule not in tuple(RULES):
        raise UserError(f"Choose an acceptance rule: {', '.join(RULES)}.")
    if form.rule == "block" and is_tree:
        raise UserError("Block verification decides over a chain; choose the draft shape chain, or another rule.")
    return {"rule": form.rule, "gamma_policy": ADAPTIVE if form.policy == ADAPTIVE else FIXED}


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
