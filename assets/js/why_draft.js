// The draft of the selected token's step as a row of buttons, a row per depth if it is a tree, and behind it the
// target's own token.
//
//   const draft = mountDraft(element, onSelect);
//   draft.show(facts)   facts of why_facts.js; null empties it
//
// As long as the step stays the same the buttons stay, and with them the keyboard's focus.

import {add} from "./dom.js";
import {addToken, spoken} from "./why_tokens.js";

export function mountDraft(element, onSelect) {
  const rows = add(element, "div", "sv-why-draft");
  rows.setAttribute("role", "group");
  let step = null;
  let buttons = new Map(); // node index, null for the target's own token -> button

  function show(facts) {
    if (step !== (facts?.step ?? null)) {
      const hadFocus = rows.contains(document.activeElement);
      step = facts?.step ?? null;
      rows.replaceChildren();
      buttons = step ? drawDraft(rows, facts, onSelect) : new Map();
      if (hadFocus) buttons.get(facts?.nodeIndex)?.focus({preventScroll: true});
    }
    for (const [node, button] of buttons) button.setAttribute("aria-pressed", String(node === facts.nodeIndex));
  }

  return {show};
}

function drawDraft(rows, {step, stepIndex, isTree}, onSelect) {
  rows.setAttribute("aria-label", `The draft of step ${step.index + 1}`);
  const buttons = new Map();
  const addButton = (row, subject, kind, where, node) => {
    const button = drawButton(row, subject, kind, where);
    button.addEventListener("click", () => onSelect({step: stepIndex, node}));
    buttons.set(node, button);
  };
  let row;
  for (const group of isTree ? byDepth(step) : [step.nodes.map((_, index) => index)]) {
    row = addRow(rows, isTree ? String(step.nodes[group[0]].depth) : "");
    for (const index of group) {
      const node = step.nodes[index];
      addButton(row, node, node.outcome, `draft position ${node.depth}${isTree ? parentWords(step, node) : ""}`, index);
    }
  }
  if (!step.nodes.length) add(row, "span", "sv-why-muted", "nothing drafted");
  if (step.last) {
    const own = isTree ? addRow(rows, "→") : add(row, "span", "sv-why-own");
    if (!isTree) add(own, "span", "", "→").setAttribute("aria-hidden", "true");
    addButton(own, step.last, step.nodes.length ? step.last.kind : "plain", "the target's own token", null);
  }
  return buttons;
}

// A row of tokens, with the draft position before it if there are several.
function addRow(rows, label) {
  const row = add(rows, "div", "sv-why-depth");
  if (label) add(row, "span", "", label).setAttribute("aria-hidden", "true");
  return add(row, "div", "sv-why-chips");
}

function drawButton(row, subject, kind, where) {
  const button = add(row, "button", "sv-why-chip");
  button.type = "button";
  addToken(button, subject, `sv-why-${kind}`);
  button.setAttribute("aria-label", `“${spoken(subject)}”, ${kind}, ${where}`);
  button.title = `${kind}, ${where}`;
  return button;
}

// Node indices per depth, the children of the accepted path before the others.
function byDepth({nodes, path}) {
  const depths = [...new Set(nodes.map(({depth}) => depth))].sort((one, other) => one - other);
  const isOffPath = (index) => Number(nodes[index].parent !== -1 && !path.includes(nodes[index].parent));
  return depths.map((depth) => {
    const group = nodes.map((_, index) => index).filter((index) => nodes[index].depth === depth);
    return group.sort((one, other) => isOffPath(one) - isOffPath(other));
  });
}

function parentWords({nodes}, {parent}) {
  return parent === -1 ? "" : ` after “${spoken(nodes[parent])}”`;
}
