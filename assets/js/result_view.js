// Draws what a run came to: where it is from, a sentence, its figures, lines and notes.
//
//   const view = mount(element);
//   view.update(json);
//
// `json` is one object, every key optional, in the order in which they are drawn:
//   "source"       {"kind": "recorded" | "live" | "step", "text"}
//   "headline"     [[text, tone], ...]; tone: faster, slower, good, bad, error, muted or ""
//   "status"       text: how far the run is, or why it came out as it did; "busy" marks that it goes on
//   "equality"     {"tone": "good" | "near" | "bad" | "lossy" | "", "label", "text"}: whether the output is plain decoding's
//   "tiles"        [{"value", "name", "definition", "note"}, ...]; a tile that has a definition shows it when pressed
//   "lines"        [[name, text], ...]
//   "notes"        [text, ...]
//   "definitions"  [[name, text], ...], folded
//   "announce"     text that screen readers say aloud
// With "earlier" the tiles drawn last stay, and its text is the status if there are any figures in them. "" draws
// nothing. What has not changed is not drawn again, so focus, selection and what is open outlast every update of a run.
// Text only ever becomes text nodes.

import {add} from "./dom.js";
import {tileList} from "./result_tiles.js";

const SOURCES = {recorded: ["●", "recorded"], live: ["●", "live"], step: ["▸", "step by step"]};
const SIGNS = {good: "✓", near: "≈", bad: "✗", lossy: "≠", "": "◇"};

export function mount(element) {
  const body = add(element, "div", "sv-result");
  const spoken = add(element, "p", "sv-spoken");
  spoken.setAttribute("role", "status");
  spoken.setAttribute("aria-live", "polite");
  const sections = [
    section("sv-source", ({source}) => source, drawSource),
    section("sv-head", headOf, drawHead),
    section("sv-result-figures", ({tiles}) => filled(tiles), tileList()),
    section("sv-lines", ({lines}) => filled(lines), drawPairs),
    section("sv-result-notes", ({notes}) => filled(notes), drawNotes),
    section("sv-result-meanings", ({definitions}) => filled(definitions), drawDefinitions),
  ];
  let shown = null;
  let tiles;

  function update(json) {
    if (json === shown) return;
    shown = json;
    const result = json ? JSON.parse(json) : {};
    if ("earlier" in result) {
      result.tiles = tiles;
      if (tiles?.some(({value}) => /\d/.test(value))) result.status = result.earlier;
    }
    tiles = result.tiles;
    body.classList.toggle("sv-busy", Boolean(result.busy));
    place(body, sections.filter((each) => each.update(result)).map(({box}) => box));
    if (spoken.textContent !== (result.announce || "")) spoken.textContent = result.announce || "";
  }

  return {update};
}

// A part of the card. `update` draws it if its share of the result has changed, and tells whether there is anything.
function section(className, choose, draw) {
  const box = document.createElement("div");
  box.className = className;
  let drawn;
  function update(result) {
    const value = choose(result);
    const text = JSON.stringify(value);
    if (value && text !== drawn) draw(box, value);
    drawn = text;
    return Boolean(value);
  }
  return {box, update};
}

function filled(list) {
  return list?.length ? list : undefined;
}

// Makes `boxes` the children of `body` without moving any that is already there: a moved element loses the focus.
function place(body, boxes) {
  for (const child of [...body.children]) if (!boxes.includes(child)) child.remove();
  boxes.forEach((box, index) => {
    if (body.children[index] !== box) body.insertBefore(box, body.children[index] || null);
  });
}

function drawSource(box, {kind, text}) {
  const [sign, word] = SOURCES[kind] || ["●", kind];
  box.replaceChildren();
  const pill = add(box, "span", `sv-pill sv-pill-${kind}`);
  add(pill, "span", "sv-mark", sign).setAttribute("aria-hidden", "true");
  add(pill, "span", "", word);
  if (text) add(box, "span", "sv-source-text", text);
}

// One section, because together they keep a height: a sentence that grows must not push the figures about.
function headOf({headline, status, equality}) {
  return headline || status || equality ? {headline, status, equality} : undefined;
}

function drawHead(box, {headline, status, equality}) {
  box.replaceChildren();
  if (headline) {
    const heading = add(box, "h2", "sv-headline");
    for (const [text, tone] of headline) add(heading, "span", tone ? `sv-tone-${tone}` : "", text);
  }
  if (status) add(box, "p", "sv-status", status);
  if (equality) drawEquality(box, equality);
}

function drawEquality(box, {tone, label, text}) {
  const line = add(box, "p", "sv-equality");
  const badge = add(line, "span", `sv-badge sv-badge-${tone || "plain"}`);
  add(badge, "span", "sv-mark", SIGNS[tone] || SIGNS[""]).setAttribute("aria-hidden", "true");
  add(badge, "span", "", label);
  if (text) line.append(` ${text}`);
}

function drawPairs(box, pairs) {
  box.replaceChildren();
  const list = add(box, "dl");
  for (const [name, text] of pairs) {
    const pair = add(list, "div");
    add(pair, "dt", "", name);
    add(pair, "dd", "", text);
  }
}

function drawNotes(box, notes) {
  box.replaceChildren();
  for (const note of notes) add(box, "p", "sv-note", note);
}

function drawDefinitions(box, definitions) {
  const wasOpen = box.querySelector("details")?.open;
  box.replaceChildren();
  const details = add(box, "details", "sv-definitions");
  details.open = Boolean(wasOpen);
  add(details, "summary", "", "What the numbers mean");
  drawPairs(add(details, "div"), definitions);
}
