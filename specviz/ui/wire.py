"""What the token view draws: a line of JSON per run and per step, only ever appended to."""

from __future__ import annotations

import json
from typing import Any

from specviz.trace import Run, Step


def head(run_id: str, run: Run) -> str:
    """The first line. A view that holds another run's id starts anew."""
    return _line({"run": run_id, "target": run.target, "drafter": run.drafter, "gamma": run.gamma})


def line(step: Step) -> str:
    """One step: its tokens in reading order, what was struck out right before what replaced it."""
    outcomes = [node.outcome for node in step.nodes]
    return _line(
        {
            "step": step.index + 1,
            "drafted": len(outcomes),
            "accepted": outcomes.count("accepted"),
            "untested": outcomes.count("untested"),
            "tokens": tokens(step),
            "end": step.cut,
        }
    )


def tokens(step: Step) -> list[tuple[str, str]]:
    """(text, kind) of everything that the view shows of a step; "" while a character is incomplete.

    What the target says where nothing was drafted is no bonus, but plain.
    """
    shown: list[tuple[str, str]] = []
    texts = iter(step.text)
    place = -1
    for node in (*step.path, None):
        shown += [(n.text, "rejected") for n in step.nodes if n.parent == place and n.outcome == "rejected"]
        if node is not None:
            shown.append((next(texts), "accepted"))
            place = node
        elif step.last is not None:
            shown.append((next(texts), step.last.kind if step.nodes else "plain"))
    return shown + [(node.text, "cut") for node in step.nodes if node.outcome == "cut"]


def _line(value: dict[str, Any]) -> str:
    # No "<" ever leaves the server, although the view writes text as text.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c") + "\n"
