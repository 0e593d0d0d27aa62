// Draws a draft that is a tree, as nested branches: what was kept runs on first, the other branches hang below it.
//
//   drawTree(element, step, addChip)
//
// addChip(parent, node) draws one token; node: its index, null for the target's own. A branch stays in one row until it
// forks, so that as little as possible is indented. Text only ever becomes text nodes.

import {add} from "./dom.js";

const OWN = null;

export function drawTree(element, step, addChip) {
  const pane = add(element, "div", "sv-why-tree");
  drawForks(add(pane, "ul", "sv-why-forks"), -1);

  function drawForks(list, place) {
    for (const node of following(step, place)) {
      const item = add(list, "li", isKept(step, node) ? "sv-why-kept" : "");
      const last = drawRow(add(item, "div", "sv-why-branch"), node);
      if (following(step, last).length) drawForks(add(item, "ul", "sv-why-forks"), last);
    }
  }

  // Draws tokens for as long as only one follows; returns the last.
  function drawRow(row, first) {
    addChip(row, first);
    let node = first;
    for (let next = following(step, node); next.length === 1; next = following(step, node)) {
      [node] = next;
      add(row, "i", isKept(step, node) ? "sv-why-link sv-why-kept-link" : "sv-why-link").setAttribute("aria-hidden", "true");
      addChip(row, node);
    }
    return node;
  }
}

// What stands after a node (-1: after the last committed token), what was kept first, the others in the order of trial.
export function following({nodes, path, last}, place) {
  if (place === OWN) return [];
  const drafted = nodes.flatMap(({parent}, node) => (parent === place ? [node] : []));
  const kept = drafted.filter((node) => path.includes(node));
  const own = last && place === (path.at(-1) ?? -1) ? [OWN] : [];
  return [...kept, ...own, ...drafted.filter((node) => !path.includes(node))];
}

const isKept = ({path}, node) => node === OWN || path.includes(node);
