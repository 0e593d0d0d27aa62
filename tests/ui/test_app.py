"""How the page is put together and started."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from stage import Actor, Loader

import app
from specviz.errors import UserError
from specviz.ui import build_demo, launch_options
from specviz.ui.explore import MODEL_EVENTS, VISITORS_AT_ONCE


@pytest.fixture(scope="module")
def demo():
    return build_demo(loader=Loader(Actor()))


def test_one_queue_with_one_limit_for_what_uses_the_model(demo):
    limits = {(fn.concurrency_id, fn.concurrency_limit) for fn in demo.fns.values() if fn.queue and fn.fn}
    assert (MODEL_EVENTS, VISITORS_AT_ONCE) in limits
    assert len([limit for limit in limits if limit[0] == MODEL_EVENTS]) == 1


def test_no_event_of_the_page_is_offered_as_an_interface_for_programs(demo):
    events = demo.get_config_file()["dependencies"]
    offered = [event["api_name"] for event in events if event["api_visibility"] != "private"]
    assert sorted(offered) == ["compare", "presets", "run"]


def test_nothing_is_fetched_phoned_shared_or_remembered(demo):
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False" and not demo.analytics_enabled
    options = launch_options()
    assert options["theme"]._stylesheets == []
    quiet = ("run_history", "enable_monitoring", "show_error", "share", "ssr_mode", "pwa")
    assert {options[name] for name in quiet} == {False}


def test_a_port_in_use_is_one_sentence(demo):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"^Port {port} on 127.0.0.1 can't be had, so free it or choose another"):
            app.serve(demo, "127.0.0.1", port)


@pytest.mark.parametrize("arguments", [["--device", "abacus"], ["--dtype", "float4"]])
def test_what_cannot_work_ends_with_one_line_and_status_2(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
    with pytest.raises(SystemExit) as end:
        app.main()
    output = capsys.readouterr()
    assert end.value.code == 2 and output.out == ""
    assert output.err.count("\n") == 1 and "choose one of" in output.err


def test_the_memory_bar_follows_every_control_that_its_figures_depend_on(demo):
    watched = {
        (demo.blocks[id].elem_id, event)
        for handler in demo.fns.values()
        if handler.name == "check_memory"
        for id, event in handler.targets
        if id in demo.blocks
    }
    lengths = {("gamma", "release"), ("budget", "release")}
    assert watched == lengths | {("shape", "input"), ("nodes", "input"), ("later-nodes", "input")}
