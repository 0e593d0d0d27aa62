// Draws a run with every decision in view: its text, its verify passes as a strip, a player, and why a token is there.
//
//   const view = mount(element);
//   view.update(text);
//
// `text` is what trace.js reads; "" is the empty state. One token at a time is selected, in all parts alike. A run that
// arrives as a whole gets an instructive token selected, and so does one that has ended, unless the reader has chosen;
// where the view follows a run step by step (`follow`), it is the newest step's.

import {add} from "./dom.js";
import {mount as mountPlayer} from "./player.js";
import {mount as mountStrip} from "./step_strip.js";
import {drawToken, mount as mountFlow} from "./token_view.js";
import {KINDS, instructive, isChain, lastKind, reader, telling} from "./trace.js";
import {mount as mountWhy} from "./why_card.js";

const ALWAYS = ["accepted", "rejected", "correction", "bonus"]; // in the legend, even while there are none
const CONTROLS = "button, input, select, summary, textarea, a[href]"; // which need the space bar themselves

export function mount(element) {
  const root = add(element, "div", "sv-trace");
  const grid = add(root, "div", "sv-trace-grid");
  const main = addPanel(grid, "sv-main", "Text");
  const side = addPanel(grid, "sv-side", "Why this token");
  const controls = addPanel(grid, "sv-controls", "Verify passes");

  const lossy = mountLossy(main);
  const head = add(main, "div", "sv-text-head");
  const legend = mountLegend(head);
  const flow = mountFlow(main, choose);
  mountHide(head, flow.hide);
  const empty = drawEmpty(main);
  const card = mountWhy(side, choose);
  const strip = mountStrip(controls, stepTo);
  const player = mountPlayer(controls, {
    onPick: (step) => stepTo(telling(trace, step)),
    onPlay: play,
    onPause: () => reveal(Infinity),
  });
  const foot = add(controls, "div", "sv-foot");
  explain(foot);
  const save = add(foot, "button", "sv-save", "Save the trace");
  save.type = "button";
  save.addEventListener("click", () => download(text));
  root.addEventListener("keydown", (event) => {
    if (event.key !== " " || event.defaultPrevented || event.target.closest(CONTROLS)) return;
    event.preventDefault(); // the page would scroll
    player.toggle();
  });

  const {read} = reader();
  const ends = [keepEnd(flow.pane), keepEnd(strip.pane)];
  let text = "";
  let trace = read(text);
  let selected = null;

  function update(grown) {
    text = grown;
    trace = read(text);
    if (trace.isNew) clear();
    if (trace.isNew || trace.added) draw();
  }

  function clear() {
    player.pause();
    side.style.minHeight = "";
    for (const part of [lossy, legend, flow, strip, ...ends]) part.clear();
    const isEmpty = trace.view === null;
    empty.hidden = !isEmpty;
    for (const part of [head, flow.pane, side, controls]) part.hidden = isEmpty;
    select(null);
  }

  function draw() {
    const {steps, added, isNew, follow} = trace;
    for (const part of [lossy, legend, flow, strip, player]) part.draw(trace);
    save.disabled = !steps.length;
    const isOver = added > 0 && steps.at(-1).cut !== null;
    const isWhole = isNew && (isOver || (trace.run && trace.run.mode !== "live"));
    if (isWhole && !follow) select(instructive(trace), {scroll: true});
    else if (follow && added) select(telling(trace, steps.length - 1));
    else if (isOver && !selected) select(instructive(trace));
    if (!isWhole) ends.forEach((end) => end.keep());
  }

  function select(selection, {scroll = false} = {}) {
    selected = selection;
    flow.select(selection, {scroll});
    strip.select(selection, {scroll});
    player.show(selection && selection.step);
    card.show(trace, selection);
  }

  // What the reader picks in the text or on the card.
  function choose(selection) {
    side.style.minHeight = "";
    player.pause();
    select(selection, {scroll: true});
  }

  function stepTo(selection) {
    holdHeight();
    player.pause();
    select(selection, {scroll: true});
  }

  function play(step) {
    holdHeight();
    reveal(step + 1);
    select(telling(trace, step), {scroll: true});
  }

  // In one column the controls are below the card: they stay where they are while steps with shorter cards go by.
  function holdHeight() {
    side.style.minHeight = `${side.offsetHeight}px`;
  }

  function reveal(count) {
    flow.reveal(count);
    strip.reveal(count);
  }

  clear();
  return {update};
}

function addPanel(grid, className, name) {
  const panel = add(grid, "section", `sv-panel ${className}`);
  panel.setAttribute("aria-label", name);
  return panel;
}

// Says of a run that it is lossy, wherever it is shown.
function mountLossy(parent) {
  const line = add(parent, "p", "sv-lossy");
  const badge = add(line, "span", "sv-badge sv-badge-lossy");
  add(badge, "span", "sv-mark", "≠").setAttribute("aria-hidden", "true");
  add(badge, "span", "", "lossy");
  const why = add(line, "span");

  function draw({run}) {
    line.hidden = !run || run.lossless;
    why.textContent = run ? ` ${run.rule} acceptance: this text need not be what the target alone would write.${greedily(run)}` : "";
  }

  return {clear: () => draw({run: null}), draw};
}

const greedily = ({sampler}) => (sampler.temperature === 0 ? " At temperature 0 it keeps just what greedy decoding would." : "");

// How many tokens there are of each kind. `draw` counts the steps that are not counted yet.
function mountLegend(parent) {
  const element = add(parent, "ul", "sv-legend");
  element.setAttribute("aria-label", "Tokens by kind");
  const items = Object.keys(KINDS).map((kind) => {
    const item = add(element, "li");
    item.title = KINDS[kind];
    drawToken(item, kind, kind);
    return {kind, item, number: add(item, "b")};
  });
  const untested = add(element, "li", "sv-untested");
  let counts, counted, reason;

  function clear() {
    counts = {untested: 0};
    counted = 0;
    reason = "untested after a rejection";
  }

  function draw({steps}) {
    for (; counted < steps.length; counted += 1) {
      const {nodes} = steps[counted];
      const outcomes = nodes.map(({outcome}) => outcome);
      const own = steps[counted].last ? [lastKind(steps[counted])] : [];
      for (const kind of [...outcomes, ...own]) counts[kind] = (counts[kind] || 0) + 1;
      if (!isChain(nodes)) reason = "untested after a rejection or off the path";
    }
    for (const {kind, item, number} of items) {
      item.hidden = !counts[kind] && !ALWAYS.includes(kind);
      number.textContent = counts[kind] || 0;
    }
    untested.textContent = counts.untested ? `${counts.untested} more drafted, ${reason}` : "";
  }

  return {clear, draw};
}

function mountHide(parent, onChange) {
  const label = add(parent, "label", "sv-hide");
  const box = add(label, "input");
  box.type = "checkbox";
  box.addEventListener("change", () => onChange(box.checked));
  label.append("Hide rejected tokens");
}

function drawEmpty(parent) {
  const empty = add(parent, "div", "sv-empty");
  add(empty, "p", "", "The text appears here as it is written. Every token shows where it comes from:");
  drawMeanings(empty);
  return empty;
}

function explain(parent) {
  const key = add(parent, "details", "sv-key");
  add(key, "summary", "", "What the colours mean");
  drawMeanings(key);
}

function drawMeanings(parent) {
  const list = add(parent, "dl");
  for (const [kind, meaning] of Object.entries(KINDS)) {
    const pair = add(list, "div");
    drawToken(add(pair, "dt"), kind, kind);
    add(pair, "dd", "", meaning);
  }
  add(parent, "p", "", "A thin line begins each verify pass. ␣ ⏎ ⇥ stand for space, new line and tab.");
  add(parent, "p", "", "Dotted lines set apart what a tree drafted for one and the same place.");
  add(parent, "p", "", "A dashed or pale cell in the strip is a draft token that was left untested.");
}

// Keeps the end of what a pane holds in view, unless the reader has scrolled back from it.
function keepEnd(pane) {
  let isFollowing, before, isAsked;

  function clear() {
    isFollowing = true;
    before = 0; // pixels that were scrolled, along both axes
  }

  // News of a scroll comes late, when there may be more below already: only going back means that the reader has left.
  pane.addEventListener("scroll", () => {
    const place = pane.scrollTop + pane.scrollLeft;
    const end = pane.scrollHeight - pane.clientHeight + pane.scrollWidth - pane.clientWidth;
    if (end - place < 8) isFollowing = true;
    else if (place < before) isFollowing = false;
    before = place;
  });

  // In the next frame, so that the layout is not asked for more than once.
  function keep() {
    if (!isFollowing || isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      pane.scrollTo(pane.scrollWidth, pane.scrollHeight);
    });
  }

  clear();
  return {clear, keep};
}

// The trace as a file that the command line reads as well: all but the line that names the view.
function download(text) {
  const lines = text.slice(text.indexOf("\n") + 1, text.lastIndexOf("\n") + 1);
  const address = URL.createObjectURL(new Blob([lines], {type: "application/x-ndjson"}));
  const link = document.createElement("a");
  link.href = address;
  link.download = "specviz-trace.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address)); // not before the browser has taken it up
}
