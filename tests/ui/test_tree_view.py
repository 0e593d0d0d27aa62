"""Drafts that are trees, and the other acceptance rules, in a browser: what the trace has is what the view shows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import expected
import pytest
import torch
from browser import choose_drafter, settle, unfold, visit, wait_for_text
from fakes import TopKTree, tiny_model
from playwright.sync_api import Browser, Page
from stage import Actor, Loader

from specviz import runs
from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.trace import Step, Trace
from specviz.ui import wire

pytestmark = pytest.mark.browser

SAMPLED = Sampler(temperature=1.0)
FEED = """text => {
  const block = document.querySelector("#tokens");
  block.fed = text;
  block.dispatchEvent(new Event("fed"));
}"""
# Per button of the tree: its node, the node of the button that it hangs from, and whether a thick line leads to it; to
# the target's own it is an arrow.
READ_TREE = """tree => [...tree.querySelectorAll("button")].map((button) => {
  const own = button.closest(".sv-why-own");
  const before = own?.previousElementSibling?.dataset.node ?? "-1";
  if (own) return [button.dataset.node, before, own.innerText.startsWith("→")];
  const link = button.previousElementSibling;
  const item = button.closest("li");
  const above = item.parentElement.closest("li");
  const from = link ? link.previousElementSibling : above && above.querySelector(":scope > div > button:last-of-type");
  const line = link ? link.matches(".sv-why-kept-link") : item.matches(".sv-why-kept");
  return [button.dataset.node, from ? from.dataset.node : "-1", line];
})"""


class Shared(TopKTree):
    """A tree whose nodes are from two drafters in turn."""

    def propose(self, *asked: Any) -> Draft:
        draft = super().propose(*asked)
        return replace(draft, by=tuple("ngram" if node % 2 else "eagle" for node in range(len(draft))))


@pytest.fixture(scope="module")
def page(browser: Browser, served_actor: tuple[str, Actor, Loader]) -> Iterator[Page]:
    with visit(browser, served_actor[0]) as page:
        yield page


def drafted(actor: Actor, drafter: TopKTree, kind: str, policy: str = "fixed", **settings: Any) -> Trace:
    """A run of the actor's own with that drafter, and a header that says so."""
    actor.play(None)
    asked = Settings(**{"gamma": 3, "max_new_tokens": 16, **settings})
    run = runs.prepare(Loader(actor).loaded, "ngram", {}, "to be", asked).run
    lossless = asked.rule != "typical"
    run = replace(run, drafter=kind, rule=asked.rule, lossless=lossless, gamma_policy=policy)
    return Trace(run, tuple(decode(actor, drafter, run.prompt, asked)))


def related(actor: Actor, widths: tuple[int, ...], kind: type[TopKTree] = TopKTree) -> TopKTree:
    """A drafter that is the target with some noise, so that it is right now and then."""
    model = tiny_model(vocab_size=actor.vocab_size, max_position_embeddings=4096)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.06 * weights.std() * torch.randn(weights.shape, generator=noise) if weights.numel() > 1 else 0
    return kind(model, widths)


def show(page: Page, trace: Trace) -> None:
    page.evaluate(FEED, wire.whole(trace))


def chips(page: Page) -> list[list[Any]]:
    found: list[list[Any]] = page.locator(".sv-why-tree").evaluate(READ_TREE)
    return found


def name(node: int | None) -> str:
    return "null" if node is None else str(node)


def following(step: Step, place: int) -> list[int | None]:
    """What stands after a node: what was kept, the target's own token, then the others."""
    here = [node for node, each in enumerate(step.nodes) if each.parent == place]
    own = [None] if step.last and place == (step.path[-1] if step.path else -1) else []
    return [*(n for n in here if n in step.path), *own, *(n for n in here if n not in step.path)]


def hanging(step: Step, place: int = -1) -> list[list[Any]]:
    """Every token of the step's tree in reading order, as READ_TREE has it."""
    rows: list[list[Any]] = []
    for node in following(step, place):
        rows.append([name(node), name(place), node is None or node in step.path])
        rows += hanging(step, node) if node is not None else []
    return rows


def test_a_tree_hangs_every_token_from_its_parent_and_what_was_kept_comes_first(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (3, 2, 1)), "eagle")
    show(page, trace)
    page.locator(".sv-strip").press("Home")
    depths = set()
    for step in trace.steps:
        if len(step.nodes) > 1:
            assert chips(page) == hanging(step)
            depths.add(len(step.path))
        page.locator(".sv-strip").press("ArrowRight")
    assert len(depths) > 1, "some steps accepted less than others"
    struck = [piece for piece in expected.pieces(trace) if piece.kind == "rejected"]
    siblings = sum(
        sum(other.parent == trace.steps[at].nodes[node].parent for other in trace.steps[at].nodes) > 1
        for _, _, at, node in struck
    )
    assert page.locator(".sv-flow .sv-sibling").count() == siblings > 1
    cells = page.locator(".sv-column").evaluate_all("all => all.map(c => c.querySelectorAll('[data-node]').length)")
    assert cells == [len(step.nodes) + 1 for step in trace.steps]


def test_the_keyboard_walks_the_tree_which_is_one_tab_stop(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (3, 2, 1)), "eagle")
    show(page, trace)
    step = max(range(len(trace.steps)), key=lambda index: len(trace.steps[index].path))
    page.locator(".sv-strip").press("Home")
    for _ in range(step):
        page.locator(".sv-strip").press("ArrowRight")
    order = [row[0] for row in hanging(trace.steps[step])]
    at = "document.activeElement.dataset.node"
    page.locator(".sv-why-chip[tabindex='0']").focus()
    page.keyboard.press("Home")
    for node in order:
        assert page.evaluate(at) == node
        assert page.locator(".sv-why-chip[aria-pressed=true]").get_attribute("data-node") == node
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    path = [name(node) for node in trace.steps[step].path]
    for node in path[1:]:
        page.keyboard.press("ArrowRight")
        assert page.evaluate(at) == node
    for node in reversed(path[:-1]):
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(at) == node
    assert page.locator(".sv-why-chip[tabindex='0']").count() == 1


@pytest.mark.parametrize("sampler", [Sampler(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("settings", "said"), [({"tree": True}, 1), ({"eagle.tree": True}, 1), ({"tree": False}, 0)])
def test_a_tree_alone_is_said_to_have_chosen_its_tokens(page, served_actor, settings, said, sampler):
    """In a greedy chain q is 1 as well, for another reason."""
    trace = drafted(served_actor[1], related(served_actor[1], (2, 1)), "eagle", max_new_tokens=4, sampler=sampler)
    first = trace.steps[0]
    scored = replace(first, nodes=tuple(replace(node, q=1.0, q_raw=0.5) for node in first.nodes))
    show(page, Trace(replace(trace.run, drafter_settings=settings), (scored, *trace.steps[1:])))
    page.locator(".sv-strip").press("Home")
    page.locator(".sv-why-chip[data-node='0']").press("Enter")
    assert page.get_by_text("the rule counts each as certain to be proposed (q = 1).").count() == said
    assert page.locator(".sv-why-candidates h3").inner_text() == (
        "Target p and drafter's probability" if said else "Target p and drafter q"
    )
    drafted_row = page.locator(".sv-why-row", has=page.locator("small", has_text="drafted")).first
    share = "50.0" if said or sampler.temperature == 0 else "100"
    assert " ".join(drafted_row.locator(".sv-why-numbers > span").nth(1).inner_text().split()) == (
        f"{'drafter' if said else 'q'} {share} %"
    )
    assert ("A tree's tokens of one depth stand side by side" in page.inner_text(".sv-caption")) == bool(said)


def test_after_several_rejections_the_card_says_of_which_it_speaks(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (3, 1)), "eagle", sampler=SAMPLED)
    show(page, trace)
    step = next(step for step in trace.steps if step.last and step.last.kind == "correction" and len(step.nodes) > 3)
    rejected = [n for n in step.nodes if n.outcome == "rejected" and n.parent == (step.path[-1] if step.path else -1)]
    assert len(rejected) > 1
    page.locator(".sv-column").nth(step.index).locator(".sv-own").click()
    assert page.get_by_text(", the last that was rejected").count() == 1
    notes = page.locator(".sv-why-candidates > p.sv-why-muted").all_inner_texts()
    assert not any("rank" in note for note in notes)


def test_a_combination_says_who_drafted_each_token(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (2, 1), Shared), "ngram+eagle", max_new_tokens=6)
    show(page, trace)
    page.locator(".sv-strip").press("Home")
    step = trace.steps[0]
    for index, node in enumerate(step.nodes):
        chip = page.locator(f".sv-why-chip[data-node='{index}']")
        assert chip.locator("small").inner_text() == node.by
        assert chip.get_attribute("aria-label").endswith(f"drafted by {node.by}")
        chip.press("Enter")
        assert page.inner_text(".sv-why-where").endswith(f"drafted by {node.by}")
    assert page.locator(".sv-column").first.locator(".sv-by-1").count() == 1  # eagle's sign: it drafted the first
    assert " ".join(page.inner_text(".sv-caption").split()).endswith("Drafted by ngram, eagle.")
    assert page.locator(".sv-strip").get_attribute("aria-valuetext").startswith("Step 1: eagle and ngram proposed")


def test_the_card_says_that_the_block_rule_decides_on_all_places_together(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, TopKTree(actor.model, (1, 1, 1, 1)), "draft-model", gamma=4, rule="block", sampler=SAMPLED)
    show(page, trace)
    page.locator(".sv-strip").press("Home")
    seen = set()
    for step in trace.steps:
        for index, node in enumerate(step.nodes):
            page.locator(f".sv-why-chip[data-node='{index}']").press("Enter")
            told = page.inner_text(".sv-why-sentence")
            if node.outcome == "cut":
                continue
            is_behind = node.outcome == "rejected" and node.parent >= 0 and node.parent not in step.path
            assert told.startswith("All places of the draft are tested together")
            chance, draw = expected.decimals(node.accept_prob, node.r)
            assert f"r < h = {chance}; r = {draw}" in page.inner_text(".sv-why-sections") or chance[0] in "<>"
            if is_behind:
                assert "that lies before" in told
            elif node.outcome == "accepted":
                assert told.count("but a later one did, which keeps it") == (node.r >= node.accept_prob)
            seen.add((node.outcome, is_behind, node.r < node.accept_prob))
        page.locator(".sv-strip").press("ArrowRight")
    assert {("accepted", False, True), ("rejected", False, False), ("rejected", True, False)} <= seen
    struck = page.locator(".sv-flow del").count()
    assert struck == sum(node.outcome == "rejected" for step in trace.steps for node in step.nodes)


def test_typical_acceptance_is_called_lossy_and_nothing_is_drawn(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (3, 1)), "medusa", rule="typical", sampler=SAMPLED)
    show(page, trace)
    warning = " ".join(page.inner_text(".sv-lossy").split())
    assert warning.startswith("≠ lossy typical acceptance: this text need not be")
    page.locator(".sv-strip").press("Home")
    outcomes = set()
    for step in trace.steps:
        for index, node in enumerate(step.nodes):
            if node.outcome not in ("accepted", "rejected"):
                continue
            page.locator(f".sv-why-chip[data-node='{index}']").press("Enter")
            told, sections = page.inner_text(".sv-why-sentence"), page.inner_text(".sv-why-sections")
            assert ("above the threshold, so it was kept" in told) == (node.outcome == "accepted")
            assert "Nothing is drawn here" in told and "lossy" in told
            (limit,) = [
                min(0.09, 0.3 * math.exp(-decision.entropy))
                for decision in step.decisions
                if decision.node == node.parent
            ]
            assert (node.p > limit) == (node.outcome == "accepted")
            said = page.locator(".sv-why-pairs > div", has_text="threshold").first.inner_text()
            assert float(re.search(r"([\d.]+)\s%", said)[1]) == pytest.approx(100 * limit, abs=0.05)
            assert "min(0.09, 0.3 × e^−entropy)" in sections and "The draw" not in sections and "p − q" not in sections
            outcomes.add(node.outcome)
        page.locator(".sv-strip").press("ArrowRight")
    assert outcomes == {"accepted", "rejected"}
    sampler = replace(SAMPLED, temperature=0.5)
    show(page, drafted(actor, related(actor, (3, 1)), "medusa", rule="typical", sampler=sampler))
    page.locator(".sv-flow .sv-rejected").first.click()
    said = page.locator(".sv-why-pairs > div", has_text="threshold").first.inner_text()
    assert " ".join(said.split()) == "threshold min(0.09, 0.3 × e^−entropy)"  # the trace lacks the entropy of this p
    show(page, drafted(actor, related(actor, (3, 1)), "medusa", rule="typical"))
    assert page.inner_text(".sv-lossy").endswith("At temperature 0 it keeps just what greedy decoding would.")
    show(page, drafted(actor, related(actor, (3, 1)), "medusa"))
    assert not page.locator(".sv-lossy").is_visible()


def test_the_strip_marks_the_draft_length_asked_for_where_it_varies(page, served_actor):
    actor = served_actor[1]
    trace = drafted(actor, related(actor, (2, 1, 1)), "eagle", policy="adaptive", gamma_policy="adaptive")
    show(page, trace)
    asked = page.locator(".sv-asked").evaluate_all("all => all.map(each => each.style.getPropertyValue('--sv-asked'))")
    assert asked == [str(step.gamma_asked) for step in trace.steps]
    page.locator(".sv-strip").press("Home")
    first = trace.steps[0]
    said = page.locator(".sv-strip").get_attribute("aria-valuetext")
    assert said.startswith(f"Step 1 ({first.gamma_asked} asked for, {first.gamma_used} deep): ")
    show(page, drafted(actor, related(actor, (2, 1)), "eagle"))
    assert page.locator(".sv-asked").count() == 0


def test_the_controls_of_tree_policy_and_rule_come_and_go(browser, served_actor):
    with visit(browser, served_actor[0]) as page:
        assert page.locator("#shape").is_visible() and not page.locator("#nodes").is_visible()
        unfold(page, "rules")
        rules = page.locator("#rule label")
        assert rules.all_inner_texts() == ["token by token", "block", "typical: lossy"]
        assert page.locator("#policy label").all_inner_texts() == [
            "always gamma",
            "adaptive",
        ]  # who copies is never unsure
        settle(page, shape="tree")
        page.locator("#nodes").wait_for()
        page.wait_for_function("document.querySelectorAll('#rule label').length === 2")
        settle(page, nodes=65, rule="typical: lossy")
        page.click("#run")
        wait_for_text(page, "The tree's number of nodes is 65; give a whole number from 1 to 64.", within="#verdict")
        choose_drafter(page, "Early exit", "layers")
        page.wait_for_function("!document.querySelector('#shape')?.checkVisibility()")
        settle(page, policy="by confidence")
        page.locator("#confidence").wait_for()
        choose_drafter(page, "No drafter", "Ordinary decoding")
        page.wait_for_function("!document.querySelector('#rules')?.checkVisibility()")
