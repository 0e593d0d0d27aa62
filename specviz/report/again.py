"""The commands that measure a file's results anew, and what they leave open."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import yaml

from specviz.presets import DrafterPreset, Setting, load_pairings
from specviz.report.names import plural
from specviz.workloads.arms import Arm, usual_settings
from specviz.workloads.charts import all_arms
from specviz.workloads.results import Header, Result, digest
from specviz.workloads.suites import SUITES, load_suite, sample

OUT = "again.jsonl"
NEUTRAL = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}  # what `bench` does where a sampler's option is left out


class Again(NamedTuple):
    commands: tuple[tuple[str, ...], ...]  # each with its parts, a line for each; see `shell`
    notes: tuple[str, ...]


class Asked(NamedTuple):
    """A drafter as --drafters takes it, and the draft lengths that it was tried with."""

    text: str
    is_tree: bool
    lengths: tuple[int, ...]  # of trees: depths


def again(header: Header, results: Sequence[Result]) -> Again:
    arms = all_arms(results)
    known = load_pairings().get(header.pairing)
    offered = known.drafters if known else ()
    count, notes = _prompts(results)
    suites = list(dict.fromkeys(result.suite for result in results))
    model = ["--pairing", header.pairing] if known else ["--target", header.target]
    beginning = [
        ["python", "-m", "specviz", "bench", *model],
        ["--suite", *suites, *([] if count is None else ["--prompts", str(count)])],
    ]
    ending = [
        ["--max-new-tokens", str(header.max_new_tokens), *_timing(header)],
        [*_sampling(header), "--seed", str(header.seed), "--dtype", header.dtype, "--out", OUT],
    ]
    commands = [
        tuple(map(shlex.join, [*beginning, drafting, *ending])) for drafting in _drafting(_asked(arms, offered))
    ]
    if len(commands) > 1:
        notes.append("Run them one after the other: the later ones go on with the same file.")
    return Again(tuple(commands), (*notes, *_open(header, arms, offered, is_known=known is not None)))


def shell(command: Sequence[str]) -> tuple[str, ...]:
    """The command as a shell takes it, on several lines."""
    *earlier, last = [f"{'  ' if place else ''}{part}" for place, part in enumerate(command)]
    return (*(f"{line} \\" for line in earlier), last)


def _timing(header: Header) -> list[str]:
    return ["--repeats", str(header.repeats)] if header.timed else ["--untimed"]


def _sampling(header: Header) -> list[str]:
    changed = {
        name: header.sampler[name] for name, usual in NEUTRAL.items() if header.sampler.get(name, usual) != usual
    }
    return [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _asked(arms: Sequence[Arm], offered: Sequence[DrafterPreset]) -> list[Asked]:
    """Each drafter once, with all draft lengths that it was tried with."""
    lengths: dict[tuple[str, bool], list[int]] = {}
    for arm in arms:
        usual = usual_settings(arm.kind, offered)
        changed = {name: value for name, value in arm.settings.items() if value != usual.get(name)}
        text = arm.kind + (
            ":" + ",".join(f"{name}={_written(value)}" for name, value in changed.items()) if changed else ""
        )
        found = lengths.setdefault((text, arm.is_tree), [])
        if arm.kind != "plain" and arm.gamma not in found:
            found.append(arm.gamma)
    return [Asked(text, is_tree, tuple(sorted(found))) for (text, is_tree), found in lengths.items()]


def _written(value: Setting) -> str:
    """As --drafters reads it back."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if not isinstance(value, str) or _reads_as_itself(value) else json.dumps(value)


def _reads_as_itself(text: str) -> bool:
    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False


def _drafting(asked: Iterable[Asked]) -> list[list[str]]:
    """The options that name drafters and lengths: one command for those that were tried with the same lengths.

    Chains and trees have each their own lengths, so a command can hold one group of either.
    """
    chains: dict[tuple[int, ...], list[str]] = {}
    trees: dict[tuple[int, ...], list[str]] = {}
    for each in asked:
        (trees if each.is_tree else chains).setdefault(each.lengths, []).append(each.text)
    anywhere = chains.pop((), [])  # plain decoding has no lengths
    commands = []
    for chain, tree in zip_longest(chains.items(), trees.items()):
        words = ["--drafters", *anywhere, *(chain[1] if chain else []), *(tree[1] if tree else [])]
        words += ["--gammas", ",".join(map(str, chain[0]))] if chain else []
        words += ["--depths", ",".join(map(str, tree[0]))] if tree else []
        commands.append(words)
        anywhere = []
    return commands or [["--drafters", *anywhere]]


def _prompts(results: Sequence[Result]) -> tuple[int | None, list[str]]:
    """How many prompts of each suite, None: all; and what the suites that come with specviz no longer give so."""
    texts: dict[str, dict[str, str]] = {}
    for result in results:
        texts.setdefault(result.suite, {})[result.prompt] = result.text
    own = {name: load_suite(name) for name in texts if name in SUITES}
    is_part = any(len(texts[name]) < len(suite.prompts) for name, suite in own.items())
    count = max(map(len, texts.values())) if is_part else None
    notes = []
    for name, found in texts.items():
        if name not in own:
            notes.append(f"{name} is a file of prompts of your own: give its path.")
            continue
        now = own[name] if count is None else sample(own[name], count)
        if {prompt.id: digest(prompt) for prompt in now.prompts} != found:
            notes.append(f"These prompts are not what the suite {name} gives in this version of specviz.")
    return count, notes


def _open(header: Header, arms: Sequence[Arm], offered: Sequence[DrafterPreset], *, is_known: bool) -> list[str]:
    """What the commands do not settle."""
    notes = []
    if not is_known:
        notes.append("Give the target's folder or Hub id after --target, and with --drafter-path that of what drafts.")
    for kind in dict.fromkeys(arm.kind for arm in arms):
        of_kind = [arm for arm in arms if arm.kind == kind]
        if any(arm.weights != other.weights and arm.settings == other.settings for arm in of_kind for other in of_kind):
            notes.append(f"{kind} was measured with several models; name each with --drafter-path in a run of its own.")
        elif is_known and any(set(usual_settings(kind, offered)) - set(arm.settings) for arm in of_kind):
            notes.append(f"{kind} was measured with a model of your own; name it with --drafter-path.")
    if any(isinstance(value, str) and "," in value for arm in arms for value in arm.settings.values()):
        notes.append("A setting with a comma in it can't be given with --drafters; rename what it names.")
    if header.threads is not None:
        notes.append(f"The run had {plural(header.threads, 'thread')}; OMP_NUM_THREADS={header.threads} gives as many.")
    return notes
