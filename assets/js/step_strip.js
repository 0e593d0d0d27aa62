// Draws a run as a strip, one column per verify pass, and lets the reader move along it.
//
//   const strip = mount(element, onSelect);
//   strip.clear();                     // another run begins
//   strip.draw(trace);                 // the steps that are not drawn yet, see trace.js
//   strip.select(selection, {scroll}); // marks a step and its token's cell, or with null nothing; scroll: into view
//   strip.reveal(count);               // dims all but the first `count` steps
//
// In a column the flat cell at the bottom is the target's own token, above it are the draft's, by position and outcome;
// branches of a tree stand side by side. A line tells what was asked for where the draft length varies, and in a
// combination a sign at the foot tells who drafted. `onSelect(selection)` tells what the reader picks: by mouse a cell, by touch,
// by dragging or with the keyboard a step. `strip.pane` is the element that scrolls sideways.

import {add} from "./dom.js";
import {asksForTrees, drafters, isVaried, lastKind, sentence, telling} from "./trace.js";

const WIDTHS = [24, 16, 12, 9, 7, 5]; // of a column with its gap, in pixels; the widest that fits
const DEPTHS = 96; // pixels for all draft positions, at most 16 each
const PAGE = 10; // steps
const CAPTION =
  "One column per verify pass: at the bottom the target's own token, above it the draft, first position lowest.";
const BLOCK = 50; // columns that are laid out together, and no more than these when there is one more

export function mount(element, onSelect) {
  const figure = add(element, "div", "sv-steps");
  const pane = add(figure, "div", "sv-strip");
  pane.tabIndex = 0;
  pane.dir = "ltr";
  pane.setAttribute("role", "slider");
  pane.setAttribute("aria-label", "Verify pass");
  pane.setAttribute("aria-valuemin", "1");
  const row = add(pane, "div", "sv-columns");
  const marker = add(row, "div", "sv-marker");
  const caption = add(figure, "p", "sv-caption");
  let trace, columns, selected, shown, room, width, depth, breadth;
  room = 0; // pixels for all columns

  function clear() {
    trace = {steps: []};
    columns = [];
    shown = Infinity; // how many steps are not dimmed
    depth = breadth = 0; // of the deepest and of the broadest draft
    row.replaceChildren(marker);
    row.style.setProperty("--sv-foot", "0px");
    select(null);
  }

  function draw(grown) {
    trace = grown;
    if (!columns.length && trace.run) drawCaption();
    if (trace.run?.drafter !== "plain") depth = Math.max(depth, trace.run?.gamma || 0);
    while (columns.length < trace.steps.length) drawColumn(columns.length);
    pane.setAttribute("aria-valuemax", Math.max(1, columns.length));
    fit();
  }

  function drawCaption() {
    const siblings = asksForTrees(trace.run) ? " A tree's tokens of one depth stand side by side, the kept one wider." : "";
    caption.textContent = CAPTION + siblings + (isVaried(trace.run) ? " A line marks the draft length asked for." : "");
    const parts = partsOf(trace.run);
    if (!parts.length) return;
    row.style.setProperty("--sv-foot", "9px");
    caption.append(" Drafted by ");
    parts.forEach((name, part) => {
      drawSign(caption, part);
      caption.append(` ${name}${part < parts.length - 1 ? ", " : "."}`);
    });
  }

  function drawColumn(index) {
    const step = trace.steps[index];
    if (index % BLOCK === 0) add(row, "div", "sv-block");
    const block = row.lastChild;
    block.style.setProperty("--sv-count", block.childElementCount + 1);
    const column = add(block, "div", "sv-column");
    column.classList.toggle("sv-later", index >= shown);
    if (isVaried(trace.run)) add(column, "i", "sv-asked").style.setProperty("--sv-asked", step.gamma_asked);
    const parts = partsOf(trace.run);
    if (parts.length) drawSign(column, parts.indexOf(drafters(step.nodes)[0]));
    drawCell(column, step.last ? lastKind(step) : "none", null).classList.add("sv-own");
    for (const nodes of rows(step)) {
      const cells = nodes.length > 1 ? add(column, "div", "sv-cells") : column;
      for (const node of nodes) drawCell(cells, step.nodes[node].outcome, node);
      breadth = Math.max(breadth, nodes.length);
    }
    depth = Math.max(depth, step.gamma_used);
    columns.push(column);
  }

  function fit() {
    const narrowest = Math.max(WIDTHS.at(-1), 3 * breadth); // pixels, so that the branches of a tree can be told apart
    width = Math.max(narrowest, WIDTHS.find((each) => each * columns.length <= room) || 0);
    row.style.setProperty("--sv-column", `${width}px`);
    row.style.setProperty("--sv-cell", `${Math.max(3, Math.min(16, DEPTHS / depth))}px`);
    row.style.setProperty("--sv-depth", depth);
  }

  function select(selection, {scroll = false} = {}) {
    cellOf(selected)?.classList.remove("sv-selected");
    selected = selection;
    marker.hidden = !selection;
    pane.setAttribute("aria-valuenow", selection ? selection.step + 1 : 1);
    pane.setAttribute("aria-valuetext", selection ? sentence(trace, selection.step) : "no step is selected");
    if (!selection) return;
    cellOf(selection)?.classList.add("sv-selected");
    marker.style.setProperty("--sv-index", selection.step);
    if (scroll) bringIntoView(selection.step);
  }

  // With a few columns more, so that dragging to an edge goes on beyond it.
  function bringIntoView(index) {
    const [left, right] = [(index - 3) * width, (index + 4) * width];
    if (columns.length * width <= room || !room) return;
    if (left < pane.scrollLeft) pane.scrollLeft = left;
    else if (right > pane.scrollLeft + room) pane.scrollLeft = right - room;
  }

  const cellOf = (selection) => selection && columns[selection.step]?.querySelector(`[data-node="${selection.node}"]`);

  function reveal(count) {
    const from = Math.min(shown, count);
    columns.slice(from).forEach((column, index) => column.classList.toggle("sv-later", from + index >= count));
    shown = count;
  }

  const clamped = (index) => Math.max(0, Math.min(columns.length - 1, index));
  const indexAt = (clientX) => clamped(Math.floor((clientX - row.getBoundingClientRect().left) / width));

  function go(index) {
    if (columns.length && index !== selected?.step) onSelect(telling(trace, clamped(index)));
  }

  pane.addEventListener("pointerdown", (event) => {
    const isScrollbar = event.target === pane && event.offsetY >= pane.clientHeight;
    if (event.button || isScrollbar || !columns.length) return;
    pane.setPointerCapture(event.pointerId);
    const {node} = event.target.dataset;
    if (event.pointerType !== "mouse" || node === undefined) go(indexAt(event.clientX));
    else onSelect({step: indexAt(event.clientX), node: node === "null" ? null : Number(node)});
  });
  pane.addEventListener("pointermove", (event) => {
    if (!columns.length) return;
    const index = indexAt(event.clientX);
    if (pane.hasPointerCapture(event.pointerId)) go(index);
    else columns[index].title = sentence(trace, index);
  });

  const keys = {
    ArrowLeft: () => -1,
    ArrowDown: () => -1,
    ArrowRight: () => 1,
    ArrowUp: () => 1,
    PageDown: () => -PAGE,
    PageUp: () => PAGE,
    Home: () => -Infinity,
    End: () => Infinity,
  };
  pane.addEventListener("keydown", (event) => {
    const change = keys[event.key]?.();
    if (!change || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    go(clamped((selected ? selected.step : -1) + change));
  });

  new ResizeObserver(([entry]) => {
    room = entry.contentRect.width;
    fit();
    if (selected) bringIntoView(selected.step);
  }).observe(pane);
  clear();
  return {pane, clear, draw, select, reveal};
}

// What a combination is made of; empty for a drafter alone.
const partsOf = ({drafter}) => (drafter.includes("+") ? drafter.split("+") : []);

// A shape for each part of a combination, none (-1) for nobody.
function drawSign(parent, part) {
  add(parent, "i", part < 0 ? "sv-by" : `sv-by sv-by-${part % 3}`).setAttribute("aria-hidden", "true");
}

// Indices of the nodes at each depth, shallowest first, and of these what was kept first.
function rows({nodes, path}) {
  const levels = [];
  for (const node of path) levels.push([node]);
  nodes.forEach(({depth}, node) => {
    const level = (levels[depth - 1] ||= []);
    if (!path.includes(node)) level.push(node);
  });
  return levels;
}

function drawCell(parent, kind, node) {
  const cell = add(parent, "i", `sv-cell sv-${kind}`);
  cell.dataset.node = node;
  return cell;
}
