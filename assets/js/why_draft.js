// The draft of the selected token's step as buttons, with the target's own token behind it: a row if it is a chain,
// nested branches if it is a tree.
//
//   const draft = mountDraft(element, onSelect);
//   draft.show(facts)   facts of why_facts.js; null empties it
//
// The buttons are one tab stop: arrows, Home and End move between them, in a tree Left to the token before and Right to
// the one after. As long as the step stays the same the buttons stay, and with them the keyboard's focus.

import {add} from "./dom.js";
import {addToken, spoken} from "./why_tokens.js";
import {drawOwn, drawTree, following} from "./why_tree.js";

export function mountDraft(element, onSelect) {
  const rows = add(element, "div", "sv-why-draft");
  rows.setAttribute("role", "group");
  let facts = null;
  let buttons = new Map(); // node index, null for the target's own token -> button, in reading order

  function show(next) {
    const isSameStep = (facts?.step ?? null) === (next?.step ?? null);
    facts = next;
    if (!isSameStep) {
      const hadFocus = rows.contains(document.activeElement);
      rows.replaceChildren();
      buttons = facts ? drawDraft(rows, facts, choose) : new Map();
      if (hadFocus) buttons.get(facts?.nodeIndex)?.focus({preventScroll: true});
    }
    for (const [node, button] of buttons) {
      const isSelected = node === facts.nodeIndex;
      button.setAttribute("aria-pressed", String(isSelected));
      button.tabIndex = isSelected ? 0 : -1;
    }
    keepInView(rows.querySelector(".sv-why-tree"), buttons.get(facts?.nodeIndex));
  }

  function choose(node) {
    onSelect({step: facts.stepIndex, node});
  }

  rows.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !facts) return;
    const target = neighbour(event.key, facts, [...buttons.keys()]);
    if (target === undefined) return;
    event.preventDefault();
    choose(target);
    buttons.get(target).focus();
  });

  return {show};
}

// The node that a key leads to, undefined if to none.
function neighbour(key, {step, nodeIndex, isTree}, order) {
  const at = order.indexOf(nodeIndex);
  if (key === "Home") return order[0];
  if (key === "End") return order.at(-1);
  if (key === "ArrowUp" || (key === "ArrowLeft" && !isTree)) return order[at - 1];
  if (key === "ArrowDown" || (key === "ArrowRight" && !isTree)) return order[at + 1];
  if (key === "ArrowRight") return following(step, nodeIndex)[0];
  if (key !== "ArrowLeft") return undefined;
  const before = nodeIndex === null ? step.path.at(-1) ?? -1 : step.nodes[nodeIndex].parent;
  return before === -1 ? undefined : before;
}

function drawDraft(rows, facts, choose) {
  const {step, isTree} = facts;
  rows.setAttribute("aria-label", `The draft of step ${step.index + 1}`);
  const buttons = new Map();
  const addChip = (parent, node) => {
    const button = drawButton(parent, facts, node);
    button.addEventListener("click", () => choose(node));
    buttons.set(node, button);
  };
  if (isTree) drawTree(rows, step, addChip);
  else drawChain(rows, step, addChip);
  return buttons;
}

function drawChain(rows, step, addChip) {
  const row = add(rows, "div", "sv-why-chips");
  step.nodes.forEach((_, node) => addChip(row, node));
  if (!step.nodes.length) add(row, "span", "sv-why-muted", "nothing drafted");
  if (step.last) drawOwn(row, addChip);
}

function drawButton(parent, {step, isTree, isMixed}, node) {
  const subject = node === null ? step.last : step.nodes[node];
  const kind = node === null ? (step.nodes.length ? step.last.kind : "plain") : subject.outcome;
  const where = node === null ? "the target's own token" : whereabouts(step, subject, isTree);
  const button = add(parent, "button", "sv-why-chip");
  button.type = "button";
  button.dataset.node = node;
  addToken(button, subject, `sv-why-${kind}`);
  if (isMixed && subject.by) add(button, "small", "sv-why-by", subject.by);
  button.setAttribute("aria-label", `“${spoken(subject)}”, ${kind}, ${where}`);
  button.title = `${kind}, ${where}`;
  return button;
}

function whereabouts({nodes}, {parent, depth, by}, isTree) {
  const after = isTree && parent !== -1 ? ` after “${spoken(nodes[parent])}”` : "";
  return `draft position ${depth}${after}${by ? `, drafted by ${by}` : ""}`;
}

// Scrolls a large tree alone, never the page.
function keepInView(pane, button) {
  if (!pane || !button) return;
  const [frame, box] = [pane.getBoundingClientRect(), button.getBoundingClientRect()];
  if (box.top < frame.top) pane.scrollTop -= frame.top - box.top + box.height;
  else if (box.bottom > frame.bottom) pane.scrollTop += box.bottom - frame.bottom + box.height;
  if (box.left < frame.left) pane.scrollLeft -= frame.left - box.left + box.height;
  else if (box.right > frame.right) pane.scrollLeft += box.right - frame.right + box.height;
}
