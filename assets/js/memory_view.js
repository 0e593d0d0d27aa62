// Shows whether a target and its drafter fit in memory: a bar of their parts against what is free.
//
//   const view = mount(element);
//   view.update(json);
//
// `json` is {"parts": [{"name", "bytes", "text"}, ...], "available": {"bytes", "text"}, "fits": bool, "note"}, the note
// optional. "" leaves the element empty. Text only ever becomes text nodes.

import {add} from "./dom.js";

const TEXTURES = ["solid", "stripes", "dots", "lines"]; // by place; further parts start over

export function mount(element) {
  element.classList.add("sv-memory");
  let shown = "";

  function update(json) {
    if (json === shown) return;
    shown = json;
    element.replaceChildren();
    if (json) draw(element, JSON.parse(json));
  }

  return {update};
}

function draw(element, {parts, available, fits, note}) {
  const needed = parts.reduce((sum, {bytes}) => sum + bytes, 0);
  drawBar(element, parts, needed, available);
  drawLegend(element, parts);
  const need = inUnitOf(available.bytes, needed);
  const sentence = fits
    ? `Fits: ${need} of ${available.text} free`
    : `Does not fit: needs ${need}, ${available.text} is free`;
  const line = add(element, "p", fits ? "sv-memory-sum" : "sv-memory-sum sv-tone-bad");
  add(line, "span", "sv-mark", fits ? "✓ " : "✗ ").setAttribute("aria-hidden", "true");
  line.append(sentence);
  if (note) add(element, "p", "sv-memory-note", note);
}

// As long as the larger of the two: what is free ends in a gap, or a mark shows where it ends among what is needed.
function drawBar(element, parts, needed, available) {
  const room = available.bytes - needed;
  const frame = add(element, "div", room < 0 ? "sv-memory-frame sv-memory-over" : "sv-memory-frame");
  const all = parts.map(({name, text}) => `${name} ${text}`).join(", ");
  frame.setAttribute("role", "img");
  frame.setAttribute("aria-label", `Memory needed: ${all}; ${available.text} is free`);
  const bar = add(frame, "div", "sv-memory-bar");
  parts.forEach(({name, bytes, text}, place) => {
    if (bytes <= 0) return;
    const part = add(bar, "span", `sv-memory-part sv-texture-${TEXTURES[place % TEXTURES.length]}`);
    part.style.flexGrow = bytes / needed;
    part.title = `${name} ${text}`;
  });
  if (room >= 0) {
    add(bar, "span", "sv-memory-free").style.flexGrow = room / Math.max(needed, 1);
  } else {
    add(frame, "span", "sv-memory-end").style.left = `${(100 * available.bytes) / Math.max(needed, 1)}%`;
  }
}

function drawLegend(element, parts) {
  const legend = add(element, "ul", "sv-memory-legend");
  parts.forEach(({name, text}, place) => {
    const item = add(legend, "li");
    add(item, "span", `sv-memory-swatch sv-texture-${TEXTURES[place % TEXTURES.length]}`);
    add(item, "span", "", `${name} `);
    add(item, "b", "", text);
  });
}

// In the unit of what is free, so that the two compare at a glance; bytes are counted in thousands.
function inUnitOf(available, bytes) {
  return available >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${Math.round(bytes / 1e6)} MB`;
}
