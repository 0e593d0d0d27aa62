"""What the trace view draws: a name for the view, then the trace's own JSON lines, only ever appended to."""

from __future__ import annotations

import json
import uuid

from specviz.trace import Run, Step, Trace, header_line, step_line


def head(run: Run, follow: bool = False) -> str:
    """The first two lines. A view that holds another name starts anew; `follow`: select each step as it comes."""
    name = json.dumps({"view": uuid.uuid4().hex, "follow": follow})
    return f"{name}\n{_harmless(header_line(run))}\n"


def line(step: Step) -> str:
    return f"{_harmless(step_line(step))}\n"


def whole(trace: Trace) -> str:
    """All of a run that is over."""
    return head(trace.run) + "".join(map(line, trace.steps))


def _harmless(text: str) -> str:
    """No "<" ever leaves the server, although the view writes text as text; in JSON it stands only inside strings."""
    return text.replace("<", "\\u003c")
