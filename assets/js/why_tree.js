// Draws a draft that is a tree, as nested branches: what was kept runs on first, the other branches hang below it.
//
//   drawTree(element, step, addChip)
//   drawOwn(parent, addChip)   the target's own token, apart from what was drafted
//
// addChip(parent, node) draws one token; node: its index, null for the target's own. A branch stays in one row until it
// forks, so that as little as possible is indented; the target's own token ends the row of what was kept, or stands
// first where nothing was. Text only ever becomes text nodes.

import {add} from "./dom.js";

const OWN = null;

export function drawTree(element, step, addChip) {
  const pane = add(element, "div", "sv-why-tree");
  if (following(step, -1)[0] === OWN) drawOwn(add(pane, "div", "sv-why-branch"), addChip);
  drawForks(add(pane, "ul", "sv-why-forks"), -1);

  function drawForks(list, place) {
    for (const node of drafted(place)) {
      const item = add(list, "li", step.path.includes(node) ? "sv-why-kept" : "");
      const last = drawRow(add(item, "div", "sv-why-branch"), node);
      if (drafted(last).length) drawForks(add(item, "ul", "sv-why-forks"), last);
    }
  }

  // Draws tokens for as long as only one follows; returns the last.
  function drawRow(row, first) {
    addChip(row, first);
    let node = first;
    for (let next = following(step, node); next.length === 1 && next[0] !== OWN; next = following(step, node)) {
      [node] = next;
      const isKept = step.path.includes(node);
      add(row, "i", isKept ? "sv-why-link sv-why-kept-link" : "sv-why-link").setAttribute("aria-hidden", "true");
      addChip(row, node);
    }
    if (following(step, node)[0] === OWN) drawOwn(row, addChip);
    return node;
  }

  function drafted(place) {
    return following(step, place).filter((node) => node !== OWN);
  }
}

export function drawOwn(parent, addChip) {
  const own = add(parent, "span", "sv-why-own");
  add(own, "span", "", "→").setAttribute("aria-hidden", "true");
  addChip(own, OWN);
}

// What stands after a node (-1: after the last committed token): what was kept, else the target's own, then the others
// in the order of trial.
export function following({nodes, path, last}, place) {
  if (place === OWN) return [];
  const drafted = nodes.flatMap(({parent}, node) => (parent === place ? [node] : []));
  const kept = drafted.filter((node) => path.includes(node));
  const own = last && place === (path.at(-1) ?? -1) ? [OWN] : [];
  return [...kept, ...own, ...drafted.filter((node) => !path.includes(node))];
}
