// A row of figures. A tile that has a definition is a button: pressed, it shows the definition in a line below the row.
//
//   const draw = tileList();
//   draw(box, [{"value", "name", "definition", "note"}, ...]);
//
// Drawn again into the same box, the tiles take their new texts where they stand: focus and what is open stay.

import {add} from "./dom.js";

export function tileList() {
  const id = `sv-meaning-${Math.random().toString(36).slice(2)}`;
  let list;
  let meaning;
  let tiles = [];
  let drawn = []; // what `drawTile` gives, in the order of `tiles`
  let open = -1; // the tile whose definition is shown

  function build(box) {
    box.replaceChildren();
    list = add(box, "ul", "sv-tiles");
    list.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || open < 0) return;
      event.stopPropagation();
      toggle(open);
    });
    meaning = add(box, "p", "sv-meaning");
    meaning.id = id;
    meaning.setAttribute("aria-live", "polite");
    drawn = tiles.map((tile, index) => drawTile(list, tile, id, () => toggle(index)));
    open = -1;
  }

  function toggle(index) {
    open = open === index ? -1 : index;
    showMeaning();
  }

  function showMeaning() {
    drawn.forEach(({button}, index) => button?.setAttribute("aria-expanded", String(index === open)));
    const {name, definition} = tiles[open] || {};
    meaning.hidden = open < 0;
    const text = open < 0 ? "" : `${name}: ${definition}`;
    if (meaning.textContent === text) return;
    meaning.replaceChildren();
    if (open >= 0) {
      add(meaning, "b", "", name);
      meaning.append(`: ${definition}`);
    }
  }

  return (box, next) => {
    const isSameRow = next.length === drawn.length && next.every((tile, at) => !tile.definition === !drawn[at].button);
    tiles = next;
    if (!isSameRow) build(box);
    tiles.forEach((tile, index) => drawn[index].write(tile));
    showMeaning();
  };
}

// Returns the tile's button, null if it explains nothing, and `write`, which gives it new texts.
function drawTile(list, {definition}, id, press) {
  const item = add(list, "li");
  const tile = add(item, definition ? "button" : "div", "sv-tile");
  const texts = ["value", "name", "note"].map((part) => [part, add(tile, "span", `sv-tile-${part}`)]);
  if (definition) {
    tile.type = "button";
    tile.setAttribute("aria-controls", id);
    tile.addEventListener("click", press);
  }
  function write(next) {
    for (const [part, box] of texts) if (box.textContent !== (next[part] || "")) box.textContent = next[part] || "";
  }
  return {button: definition ? tile : null, write};
}
