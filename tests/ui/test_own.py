"""Models of the user's own: named on the page, checked before anything large is fetched, run like any other."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import browser as chromium
import fake_hub
import httpx
import pytest
from browser import headline, run, settle, unfold, visit, wait_for_text
from fakes import chat_target
from playwright.sync_api import Page
from stage import Actor, Loader, explorer

import app
from specviz import loaded
from specviz.errors import UserError
from specviz.models import sources
from specviz.presets import load_pairings
from specviz.recordings import load_examples
from specviz.ui import build_demo
from specviz.ui import own as module
from specviz.ui.controls import Controls
from specviz.ui.own import Brought, OwnModels


def chatting(seed: int, **overrides: object) -> dict[str, bytes]:
    """A tiny model that chats, as a repository holds it."""
    template = str(chat_target().tokenizer.chat_template)
    return {**fake_hub.checkpoint("llama", seed, **overrides), "chat_template.jinja": template.encode()}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.running() as running:
        fake_hub.use(monkeypatch, running.endpoint, tmp_path / "home")
        running.add("someone/large", chatting(1))
        running.add("someone/gated", chatting(1), gated=True)
        yield running


@pytest.fixture
def small(tmp_path) -> Path:
    return fake_hub.write(tmp_path / "small", chatting(2, num_hidden_layers=2))


@pytest.fixture
def own() -> OwnModels:
    stage, _ = explorer()
    stage.models.device = "cpu"
    return OwnModels(Controls(stage, load_examples(), {}, own_models=True))


def checked(own: OwnModels, target: object, drafter: object = "") -> Brought:
    own.begin()
    return own.check(str(target), str(drafter), "default")


def said(card: str) -> list[tuple[str, str]]:
    """Headline, or lines, of a card."""
    shown = json.loads(card)
    return [tuple(each) for each in shown.get("headline") or shown["lines"]]


# --- the check ----------------------------------------------------------------------------------------------------


def test_a_pair_is_checked_listed_and_chosen(hub, small, own):
    found = checked(own, "someone/large", small)
    pairing = own.controls.pairings[found.made]
    assert pairing.title == "someone/large + small" and pairing.chat
    assert found.pairing["value"] == pairing.id and (pairing.title, pairing.id) in found.pairing["choices"]
    (_, target), (_, drafter) = said(found.card)
    assert target.startswith("someone/large: llama, 0.0 million parameters, 0 MB of weights, 0 MB to download, licence")
    assert drafter.startswith("small: llama, 0.0 million parameters, 0 MB of weights, on this machine")
    assert hub.served(".safetensors") == [], "no weights before the check is over"
    kinds = [preset.kind for preset in pairing.drafters]
    assert kinds == ["draft-model", "plain", "ngram", "early-exit", "draft-model"]
    assert pairing.drafters[3].defaults["exit_layer"] == 3, "of four layers"
    about, drafters, template, *_ = own.controls.choose_pairing(found.made, "token")
    assert json.loads(about)["lines"][0] == ["Target", "someone/large · licence unknown"]
    assert drafters["value"] == "small" and template == "chat"


def test_a_target_alone_will_do_and_one_without_a_template_reads_raw_text(own, tmp_path):
    folder = fake_hub.write(tmp_path / "base", fake_hub.checkpoint("gpt2", 1))
    found = checked(own, folder)
    pairing = own.controls.pairings[found.made]
    assert pairing.title == "base" and not pairing.chat and pairing.drafters[0].kind == "plain"
    assert own.controls.choose_pairing(found.made, "token")[2] == "raw"


@pytest.mark.parametrize(
    ("target", "drafter", "words"),
    [
        ("", "", "No target is named"),
        ("someone/none", "", "has no public model someone/none"),
        ("someone/gated", "", "someone/gated is gated, so open"),
        ("someone/large", "/nowhere", "The folder /nowhere does not exist"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_and_nothing_changes(hub, own, target, drafter, words):
    before = dict(own.controls.pairings)
    found = checked(own, target, drafter)
    [(sentence, tone)] = said(found.card)
    assert words in sentence and tone == "error" and "\n" not in sentence
    assert found.made is None and own.controls.pairings == before
    assert found.check["interactive"] is True and found.cancel["interactive"] is False
    assert list(own.load(found.made, "default")) == [(module.SKIP,) * 4]


def test_what_nobody_foresaw_is_one_sentence_too(own, monkeypatch):
    monkeypatch.setattr(module.own, "own_pairing", lambda *_, **__: 1 / 0)
    assert said(checked(own, "someone/large").card) == [(module.UNEXPECTED, "error")]


def test_a_check_and_a_download_can_be_given_up(hub, own, small):
    _, check, cancel = own.begin()
    assert (check["interactive"], cancel["interactive"]) == (False, True)
    own.cancel()
    assert said(own.check("someone/large", "", "default").card) == [("Cancelled", "muted")]
    hub.pause = 0.5
    found = checked(own, "someone/large")
    own.controls.explorer.models._loader = loaded.load
    loading = own.load(found.made, "default")
    status, card, check, cancel = next(loading)
    assert json.loads(status)["state"] == "loading"
    assert said(card)[0][1] == "muted" and check == cancel == module.SKIP
    threading.Timer(0.2, own.cancel).start()
    began = time.monotonic()
    *_, (status, *_), (_, card, check, cancel) = loading
    assert "cancelled" in json.loads(status)["text"] and time.monotonic() - began < 10
    assert said(card) == [("Loading was cancelled; what has come so far is kept.", "muted")]
    assert (check["interactive"], cancel["interactive"]) == (True, False)


# --- on the page --------------------------------------------------------------------------------------------------


def loader(actor: Loader):
    """The stage's for the first pairing, the real one for those that are brought."""
    first = next(iter(load_pairings()))
    return lambda pairing, drafts, **rest: (actor if pairing.id == first else loaded.load)(pairing, drafts, **rest)


@pytest.fixture
def page(browser, hub):
    demo = build_demo(loader=loader(Loader(Actor())), device="cpu", dtype="float32", own_models=True)
    with chromium.served(demo) as address, visit(browser, address) as page:
        unfold(page, "models")
        unfold(page, "own")
        yield page


def bring(page: Page, target: object, drafter: object = "") -> None:
    page.locator("#own-target :is(input, textarea)").fill(str(target))
    page.locator("#own-drafter :is(input, textarea)").fill(str(drafter))
    page.click("#own-check")


def test_an_own_pair_is_fetched_and_run(page, hub, small):
    bring(page, "someone/large", small)
    wait_for_text(page, "someone/large with small is ready", within="#status")
    assert page.locator("#pairing input").input_value() == "someone/large + small"
    assert page.locator("#drafter label").all_inner_texts()[0].strip() == "small", "the drafter that was named"
    wait_for_text(page, "Fits", within="#memory")
    assert len(hub.served(".safetensors")) > 0
    settle(page, budget=12, measure=False)
    run(page)
    assert "per verify pass; speed-up not measured" in headline(page)
    wait_for_text(page, "someone/large", within="#details")
    wait_for_text(page, "source small", within="#details")


def test_what_does_not_work_is_said_where_it_was_asked(page):
    bring(page, "someone/none")
    wait_for_text(page, "has no public model someone/none", within="#own-card")
    for _ in range(2):  # the buttons are themselves again each time
        page.wait_for_function("!document.querySelector('#own-check').disabled")
        page.wait_for_timeout(1000)  # for what the last event of the chain may do
        assert [page.inner_text(f"#own-{name}") for name in ("check", "cancel")] == ["Load", "Cancel"]
        assert page.locator("#own-cancel").is_disabled()
        page.click("#own-check")
        wait_for_text(page, "has no public model someone/none", within="#own-card")


def test_what_fails_as_it_is_loaded_is_said_in_the_card(page, tmp_path):
    files = chatting(1)
    config = json.loads(files["config.json"])
    config["intermediate_size"] += 8
    bring(page, fake_hub.write(tmp_path / "crooked", {**files, "config.json": json.dumps(config).encode()}))
    wait_for_text(page, "have other shapes than its config says", within="#own-card")


def test_a_pair_is_on_the_list_after_a_reload(page, small):
    bring(page, small)
    wait_for_text(page, "small is ready", within="#own-card")
    with visit(page.context.browser, page.url) as again:
        again.click("#pairing input")
        again.click("[role=option][aria-label='small']")
        wait_for_text(again, "small is ready", within="#status")


# --- where it may be used -----------------------------------------------------------------------------------------


def test_a_page_for_others_offers_no_such_thing():
    def offers(**options: bool) -> bool:
        parts = build_demo(loader=Loader(Actor()), **options).get_config_file()["components"]
        return any(str(part["props"].get("elem_id", "")).startswith("own") for part in parts)

    assert offers(own_models=True) and not offers()


def test_who_calls_this_machine_by_another_name_is_refused():
    """So that a page elsewhere can't reach it by giving it one."""
    demo = build_demo(loader=Loader(Actor()), own_models=True)
    port = chromium.free_port()
    serving = threading.Thread(target=app.serve, args=(demo, "127.0.0.1", port, app.THIS_MACHINE), daemon=True)
    serving.start()
    chromium.wait_until(lambda: demo.is_running)
    try:
        for host, status in ((f"127.0.0.1:{port}", 200), (f"localhost:{port}", 200), (f"evil.example:{port}", 400)):
            assert httpx.get(f"http://127.0.0.1:{port}/config", headers={"Host": host}).status_code == status
    finally:
        demo.close()


def test_an_address_that_others_reach_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["app.py", "--own-models", "--host", "0.0.0.0"])
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 2 and "so 0.0.0.0 is refused" in capsys.readouterr().err


def test_a_choice_of_pairings():
    assert list(app.chosen("smollm2-135m")) == ["smollm2-135m"]
    assert app.chosen(None) == load_pairings()
    with pytest.raises(UserError, match="There is no pairing 'nope'"):
        app.chosen("smollm2-135m, nope")
    assert sources.own_model("someone/large").hub is not None
