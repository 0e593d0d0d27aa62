"""What a program asks for, as the page's form: read by the same rules, so that the same limits hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from specviz.errors import UserError
from specviz.presets import DrafterPreset, Pairing
from specviz.ui import form
from specviz.ui.checks import number
from specviz.ui.controls import first_drafter
from specviz.ui.drafting import NUMBERS, default, first_policy, first_shape
from specviz.ui.form import Ask, Form
from specviz.ui.parts import LATER, knows, parts

NOT_GIVEN = {"ngram_pick": "recent", "rule": "token"}  # of the settings for which that is not None
ECHOED = 40  # characters of a wrong value that are repeated in an error


class Settings(TypedDict, total=False):
    """The settings of a run besides its prompt, as programs name them."""

    pairing: str
    drafter: str | None
    gamma: int | None
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: str
    raw_prompt: bool | None
    exit_layer: int | None
    ngram_min: int | None
    ngram_max: int | None
    ngram_pick: str
    tree: bool | None
    nodes: int | None
    branches: int | None
    second_gamma: int | None
    gamma_policy: str | None
    confidence: float | None
    rule: str
    float32: bool


def read(prompt: Any, asked: Mapping[str, Any], pairings: Mapping[str, Pairing], measure: bool) -> Ask:
    """The run that is asked for, by all `Settings`; raises UserError about the first thing that is wrong."""
    if not isinstance(prompt, str):
        raise UserError("The prompt is no text; give a string.")
    pairing = _pairing(asked["pairing"], pairings)
    preset = _drafter(asked["drafter"], pairing)
    shape = _shape(preset, asked["tree"])
    _check_taken(preset, shape, asked)
    usual = {name: default(preset, name) for name in NUMBERS}
    given = {name: value for name in usual if (value := asked[name.removeprefix(LATER)]) is not None}  # for all parts
    raw = not pairing.chat if asked["raw_prompt"] is None else read_switch("raw_prompt", asked["raw_prompt"])
    values = Form(
        prompt=prompt,
        drafter=preset.title,
        **{**usual, **given},
        pick=asked["ngram_pick"],
        shape=shape,
        policy=_policy(preset, asked),
        rule=asked["rule"],
        temperature=asked["temperature"],
        top_k=asked["top_k"],
        top_p=asked["top_p"],
        min_p=asked["min_p"],
        penalty=asked["repetition_penalty"],
        seed=asked["seed"],
        max_new_tokens=asked["max_new_tokens"],
        stops=asked["stop"],
        template=form.RAW if raw else form.CHAT,
        pairing=pairing.id,
        precision=form.EXACT if read_switch("float32", asked["float32"]) else form.DEFAULT,
        measure=measure,
    )
    return form.read(values, pairings)


def read_side(name: str, prompt: Any, asked: Any, usual: Mapping[str, Any], pairings: Mapping[str, Pairing]) -> Ask:
    """One of two runs that are compared. name: what errors call it; usual: the settings that are not given."""
    if not isinstance(asked, dict):
        raise UserError(f'{name} holds no settings; give them by name, such as {{"gamma": 4}}, or {{}} for the usual.')
    if unknown := [key for key in asked if key not in usual]:
        raise UserError(f"{name} has the unknown setting {_said(unknown[0])}; there are: {', '.join(usual)}.")
    try:
        return read(prompt, {**usual, **asked}, pairings, measure=False)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def _check_taken(preset: DrafterPreset, shape: str, asked: Mapping[str, Any]) -> None:
    """Raise UserError for a setting that was given and that the drafter, or a draft of that shape, has no use for."""
    taken = {name: knows(preset, name) for name in ("exit_layer", "ngram_min", "ngram_max", "nodes", "branches")}
    taken |= {"ngram_pick": knows(preset, "pick"), "confidence": knows(preset, "confidence")}
    taken |= {"second_gamma": len(parts(preset)) > 1}
    taken |= dict.fromkeys(("gamma_policy", "rule"), preset.kind != "plain")
    given = [name for name in taken if asked[name] != NOT_GIVEN.get(name)]
    if idle := [name for name in given if not taken[name]]:
        raise UserError(f"{preset.title} has no use for {idle[0]}; leave it out, or choose another drafter.")
    if shape == form.CHAIN and (idle := [name for name in given if name in form.OF_TREES]):
        raise UserError(f"{idle[0]} shapes a tree, and a chain is drafted; set tree to true, or leave it out.")


def _policy(preset: DrafterPreset, asked: Mapping[str, Any]) -> Any:
    """The one that is named; else the one that a threshold means, given or by the drafter's default."""
    policy, confidence = asked["gamma_policy"], asked["confidence"]
    if confidence is None:
        return first_policy(preset, preset.defaults) if policy is None else policy
    number("The confidence threshold", confidence, 0, 1)
    if policy is None:
        return form.CONFIDENCE if confidence else form.FIXED
    if policy in (form.FIXED, form.ADAPTIVE):
        raise UserError(f"confidence is of the policy confidence, not {policy}; leave one of them out.")
    return policy


def _shape(preset: DrafterPreset, tree: Any) -> str:
    if tree is None:
        return first_shape(preset, preset.defaults)
    if read_switch("tree", tree) and not knows(preset, "tree"):
        raise UserError(f"{preset.title} drafts chains only; leave tree out, or choose another drafter.")
    return form.TREE if tree else form.CHAIN


def read_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} is {_said(value)}; give true or false.")
    return value


def _pairing(id: Any, pairings: Mapping[str, Pairing]) -> Pairing:
    if not isinstance(id, str) or id not in pairings:
        raise UserError(f"There is no pairing {_said(id)}; choose one of: {', '.join(pairings)}.")
    return pairings[id]


def _drafter(name: Any, pairing: Pairing) -> DrafterPreset:
    """By its title or its kind; the first that drafts where none is named."""
    if name is None:
        return first_drafter(pairing)
    titled = [preset for preset in pairing.drafters if name == preset.title]
    of_kind = [preset for preset in pairing.drafters if name == preset.kind]
    if found := titled + of_kind:
        return found[0]
    titles = ", ".join(preset.title for preset in pairing.drafters)
    raise UserError(f"{pairing.title} has no drafter {_said(name)}; choose one of: {titles}.")


def _said(value: Any) -> str:
    return repr(value)[:ECHOED]
