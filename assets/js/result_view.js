// Draws what a run came to: a sentence, figures, lines and notes.
//
//   const view = mount(element);
//   view.update(json);
//
// `json` is one object, every key optional: "headline" [[text, tone], ...], "status" text and its "tone", "busy" bool,
// "tiles" [{"value", "name", "definition"}], "lines" [[name, text], ...], "notes" [text, ...],
// "definitions" [[name, text], ...] and "announce", which screen readers say aloud. With "earlier" the tiles drawn last
// stay, and its text is the status if there are any figures in them. Text only ever becomes text nodes.

export function mount(element) {
  const body = add(element, "div", "sv-result");
  const spoken = add(element, "p", "sv-spoken");
  spoken.setAttribute("role", "status");
  spoken.setAttribute("aria-live", "polite");
  let shown = null;
  let tiles = null;

  function update(json) {
    if (json === shown) return;
    shown = json;
    const result = json ? JSON.parse(json) : {};
    if (result.tiles) tiles = result.tiles;
    if (result.earlier && tiles?.some(({value}) => /\d/.test(value))) result.status = result.earlier;
    const wasOpen = body.querySelector("details")?.open;
    body.replaceChildren();
    body.classList.toggle("sv-busy", Boolean(result.busy));
    if (result.headline) drawHeadline(body, result.headline);
    if (result.status !== undefined) {
      add(body, "p", `sv-status ${result.tone ? `sv-tone-${result.tone}` : ""}`, result.status);
    }
    if (tiles) drawTiles(body, tiles);
    if (result.lines) drawPairs(body, "sv-lines", result.lines);
    for (const note of result.notes || []) add(body, "p", "sv-note", note);
    if (result.definitions) {
      const details = add(body, "details", "sv-definitions");
      details.open = Boolean(wasOpen);
      add(details, "summary", "", "What the numbers mean");
      drawPairs(details, "", result.definitions);
    }
    if (spoken.textContent !== (result.announce || "")) spoken.textContent = result.announce || "";
  }

  return {update};
}

function drawHeadline(body, pieces) {
  const headline = add(add(body, "div", "sv-head"), "h2", "sv-headline");
  for (const [text, tone] of pieces) add(headline, "span", tone ? `sv-tone-${tone}` : "", text);
}

function drawTiles(body, tiles) {
  const list = add(body, "dl", "sv-tiles");
  for (const {value, name, definition} of tiles) {
    const tile = add(list, "div");
    if (definition) tile.title = definition;
    add(tile, "dt", "", name);
    add(tile, "dd", "", value);
  }
}

function drawPairs(body, className, pairs) {
  const list = add(body, "dl", className);
  for (const [name, text] of pairs) {
    const pair = add(list, "div");
    add(pair, "dt", "", name);
    add(pair, "dd", "", text);
  }
}

function add(parent, tag, className = "", text = "") {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  parent.append(child);
  return child;
}
