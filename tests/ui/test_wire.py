"""The lines that the trace view draws: a name, then the trace itself."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

from traces import RUN, random_step, trace

from specviz.trace import parse
from specviz.ui import wire


def test_the_view_gets_the_whole_trace_and_a_name_of_its_own():
    rng = Random(5)
    run = trace(*[random_step(rng) for _ in range(20)])
    name, *lines = wire.whole(run).split("\n")
    assert parse(lines) == run
    assert json.loads(name)["follow"] is False and len(json.loads(name)["view"]) == 32
    assert json.loads(name)["view"] != json.loads(wire.whole(run).split("\n")[0])["view"]


def test_every_line_ends_itself_and_only_adds_to_those_before():
    run = trace("ar", "aa")
    text = wire.head(run.run, follow=True)
    assert text.endswith("\n") and text.count("\n") == 2
    assert json.loads(text.split("\n")[0])["follow"] is True
    for count, step in enumerate(run.steps, 3):
        text += wire.line(step)
        assert text.endswith("\n") and text.count("\n") == count


def test_nothing_that_leaves_the_server_can_open_a_tag():
    hostile = replace(RUN, target="<b>", prompt_text="</script>")
    assert "<" not in wire.head(hostile)
    assert json.loads(wire.head(hostile).split("\n")[1])["run"]["target"] == "<b>"
    step = random_step(Random(1))
    written = wire.line(replace(step, note="<img src=x>"))
    assert "<" not in written and json.loads(written)["note"] == "<img src=x>"
