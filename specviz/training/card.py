"""What goes with trained weights: the "specviz" entry of config.json, and the model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specviz.drafters.heads.files import describe_target
from specviz.models.target import Target
from specviz.training.dataset import Dataset
from specviz.training.trainer import Progress

TITLES = {
    "eagle3": "EAGLE-3 head",
    "medusa": "Medusa heads",
    "mtp": "Multi-token-prediction head",
    "draft-model": "Draft model",
    "early-exit": "Early-exit adapter",
}
FORMS = {  # that no public layout has
    "joined": "State and embedding meet in front of its layer, not inside its attention as in EAGLE-3.",
    "medusa": "Each head has a matrix of its own before rows of the target's LM head, in place of an LM head.",
}
KINDS = {"eagle3": "eagle"}  # drafter kinds that are called otherwise than what is trained


def about(
    what: str, target: Target, progress: Progress, seed: int, command: str, begun_as: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The "specviz" entry: for which target it was made, how, and how often it agreed with the target.

    begun_as: the entry of the drafter that training went on from.
    """
    return {
        "kind": KINDS.get(what, what),
        **describe_target(target),
        "seed": seed,
        "command": command,
        "acceptance": {"held_out_agreement": progress.curve[-1]["agreement"] or None, "tokens_seen": progress.seen},
        **({} if begun_as is None else {"begun_as": dict(begun_as)}),
    }


def write(
    folder: Path,
    what: str,
    target: Target,
    data: Dataset,
    progress: Progress,
    seed: int,
    command: str,
    begun_as: Mapping[str, Any] | None = None,
    form: str = "",
) -> None:
    """README.md, the model card. form: what its form has that no public layout knows, one sentence."""
    answers = data.answer_tokens
    text = f"""# {TITLES[what]} for {target.name}

A drafter for speculative decoding. It only proposes: the target decides, and the output keeps the target's
distribution. How often its tokens are accepted depends on the workload; measure it with `python -m specviz bench`.

- Target: {target.name}, weights {target.weights}. It belongs to these weights; with others of the same model fewer
  tokens are accepted.
{_form(form)}- Licence: the target's, for it is derived from the target.
- Data: {len(data.training):,} conversations with {answers:,} answer tokens, prompts and answers sampled from the
  target itself; {_temperatures(data)}. {len(data.held_out):,} more were held out. Answer tokens by what
  `python -m specviz train data` was given: {_sources(data)}.
- Training: {progress.step:,} steps over {progress.seen:,} answer tokens, {progress.seen / answers:.1f} times
  through the data, {progress.seconds / 60:.0f} minutes.
- Seed {seed}. Command:

```
{command}
```

{_before(begun_as)}{_agreement(progress)}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _form(form: str) -> str:
    return f"- Form: {form} No other engine reads it.\n" if form else ""


def _before(begun_as: Mapping[str, Any] | None) -> str:
    """How the drafter was made that training went on from."""
    if begun_as is None:
        return ""
    made = f", made by:\n\n```\n{begun_as['command']}\n```\n\n" if "command" in begun_as else ".\n\n"
    return f"It went on from a drafter that had been trained before{made}"


def _agreement(progress: Progress) -> str:
    """How training went, as a table."""
    depths = range(1, 1 + len(progress.curve[-1]["agreement"]))
    if not depths:
        return "Nothing was held out, so how often it agrees with the target was not measured."
    rows = [
        ["tokens seen", *(f"depth {depth}" for depth in depths)],
        ["---"] * (1 + len(depths)),
        *(
            [f"{point['tokens']:,}", *(f"{value:.3f}" for value in point["agreement"])]
            for point in _thinned(progress.curve)
        ),
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"How often its first choice was the target's, given the true text, on what was held out:\n\n{table}"


def _sources(data: Dataset) -> str:
    """The seeds that were sampled, and the files that were read, with the answer tokens of each."""
    counts: Counter[str] = Counter()
    for shard in data.shards:
        counts[shard.path.stem.rpartition("-")[0]] += shard.answer_tokens()
    return ", ".join(f"{stem} {count:,}" for stem, count in counts.items())


def _temperatures(data: Dataset) -> str:
    counts = Counter(round(value, 2) for shard in data.shards for value in shard.temperatures if value == value)
    unknown = sum(value != value for shard in data.shards for value in shard.temperatures)
    total = sum(counts.values()) + unknown
    parts = [f"{count / total:.0%} of the answers at temperature {value:g}" for value, count in sorted(counts.items())]
    return ", ".join([*parts, *([f"{unknown / total:.0%} given, at temperatures not recorded"] if unknown else [])])


def _thinned(curve: list[dict[str, Any]], most: int = 12) -> list[dict[str, Any]]:
    """Some of the points, the last among them."""
    stride = -(-len(curve) // most)
    return curve[::-1][::stride][::-1]
