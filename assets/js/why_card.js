// The "why" card: for one token of a run, why it was accepted, rejected, drawn or never tested.
//
//   const card = mount(element, onSelect);
//   card.show(trace, selection);
//
// trace: {run, steps}, parsed from the lines of a trace; the card never changes it. selection: {step: index into
// trace.steps, node: index into its nodes, or null for the target's own token}; null is the empty state.
// onSelect(selection) is called when the reader picks another token of the same step; the card shows it once `show` is
// called with it. A step is taken as unchanged as long as it is the same object.

import {add} from "./dom.js";
import {drawCandidates, drawResidual} from "./why_bars.js";
import {mountDraft} from "./why_draft.js";
import {drawDraw, drawFavourites, drawOverlap, drawThreshold} from "./why_draw.js";
import {readFacts, testedNode} from "./why_facts.js";
import {addPieces} from "./why_tokens.js";
import {explanation, question, whereabouts} from "./why_words.js";

const INVITATION = "Choose a token in the text (click, tap or arrow keys) and this card shows why it is there.";

export function mount(element, onSelect) {
  const card = add(element, "div", "sv-why");
  const title = add(card, "h2");
  const where = add(card, "p", "sv-why-where sv-why-muted");
  const sentence = add(card, "p", "sv-why-sentence");
  sentence.setAttribute("role", "status");
  sentence.setAttribute("aria-live", "polite");
  const draft = mountDraft(card, onSelect);
  const sections = add(card, "div", "sv-why-sections");
  let shown; // the facts drawn last

  function show(trace, selection) {
    const facts = readFacts(trace, selection);
    if (shown !== undefined && isSame(facts, shown)) return;
    shown = facts;
    title.replaceChildren();
    addPieces(title, facts ? question(facts) : ["Why this token?"]);
    where.textContent = facts ? whereabouts(facts) : "";
    sentence.replaceChildren();
    addPieces(sentence, facts ? explanation(facts) : [INVITATION]);
    draft.show(facts);
    sections.replaceChildren();
    if (facts) drawSections(sections, facts);
  }

  show(null, null);
  return {show};
}

function isSame(facts, shown) {
  return facts?.step === shown?.step && facts?.run === shown?.run && facts?.nodeIndex === shown?.nodeIndex;
}

// Always in this order, so that a part stays where it is from one token to the next.
function drawSections(sections, facts) {
  drawCandidates(add(sections, "section", "sv-why-candidates"), facts);
  const tested = testedNode(facts);
  const isUndecided = facts.kind === "untested" || facts.kind === "cut";
  if (facts.isGreedy && !isUndecided) drawFavourites(add(sections, "section"), facts);
  if (!facts.isGreedy && tested) drawTest(add(sections, "section"), tested, facts);
  const isReplaced = facts.kind === "rejected" || facts.kind === "correction";
  if (isReplaced && facts.rule !== "typical" && !facts.isBehind) drawResidual(add(sections, "section"), facts);
}

function drawTest(section, tested, facts) {
  if (facts.rule === "typical") return drawThreshold(section, tested, facts);
  drawDraw(section, tested, facts);
  if (facts.rule === "token" && (facts.decision?.overlap ?? null) !== null) drawOverlap(section, facts);
}
