// Draws a run as flowing text: who wrote each token, what was struck out, where one verify pass ends.
//
//   const view = mount(element);
//   view.update(text);
//
// `text` is JSON, one value per line, and only ever grows: first {"run": id, ...}, then per step {"step": 1,
// "drafted": 4, "accepted": 2, "untested": 1, "tokens": [["text", kind], ...], "end": reason or null}, with kind
// accepted, rejected, correction, bonus, plain or cut. Another run id starts anew. A token whose text is "" is part of a
// character that a later one completes. Text only ever becomes text nodes.

const KINDS = {
  accepted: "drafted, and kept by the target",
  rejected: "drafted, and rejected by the target",
  correction: "the target's own, in place of a rejected one",
  bonus: "the target's own, after all that was drafted",
  plain: "the target's own, nothing was drafted",
  cut: "drafted beyond the end of the run",
};
const ENDS = {stop_token: "the answer ends here", stop_string: "a stop string ends the run", length: "the budget ends the run"};
const GLYPHS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"};

export function mount(element) {
  const legend = add(element, "ul", "sv-legend");
  legend.setAttribute("aria-label", "Tokens by kind");
  const counters = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, legendItem(legend, kind)]));
  const note = add(legend, "li", "sv-untested");
  const flow = add(element, "div", "sv-flow");
  flow.setAttribute("role", "group");
  flow.setAttribute("aria-label", "The text, a group per verify pass");
  flow.dir = "ltr";
  const key = add(element, "details", "sv-key");
  add(key, "summary").textContent = "What the colours mean";
  explain(key);

  let state;
  function reset() {
    state = {run: null, offset: 0, counts: {}, untested: 0, parts: []};
    flow.replaceChildren();
    legend.hidden = key.hidden = true;
    drawEmpty(flow);
  }

  function read(line) {
    const value = JSON.parse(line);
    if ("run" in value) {
      state.run = value.run;
      flow.replaceChildren();
      legend.hidden = key.hidden = false;
    } else {
      drawStep(flow, value, state);
    }
  }

  function update(text) {
    const first = text.slice(0, text.indexOf("\n") + 1);
    const run = first ? JSON.parse(first).run : null;
    if (run !== state.run || text.length < state.offset) reset();
    const end = text.lastIndexOf("\n") + 1; // a line without its end is still on its way
    for (const line of text.slice(state.offset, end).split("\n")) if (line) read(line);
    state.offset = Math.max(state.offset, end);
    for (const [kind, counter] of Object.entries(counters)) {
      counter.textContent = state.run === null ? "" : state.counts[kind] || 0;
    }
    note.textContent = state.untested ? `${state.untested} more drafted, untested after a rejection` : "";
  }

  reset();
  return {update};
}

function drawStep(flow, step, state) {
  const group = add(flow, "span", "sv-step");
  group.setAttribute("role", "group");
  const own = step.tokens.map(([, kind]) => kind).find((kind) => ["correction", "bonus", "plain"].includes(kind));
  const drafted = step.drafted ? `drafted ${step.drafted}, accepted ${step.accepted}` : "nothing drafted";
  const title = [`step ${step.step}: ${drafted}`, own, ENDS[step.end]].filter(Boolean).join(", ");
  group.setAttribute("aria-label", title);
  group.title = title;
  const last = step.tokens.reduce((place, [, kind], index) => (isCommitted(kind) ? index : place), -1);
  step.tokens.forEach(([text, kind], index) => {
    state.counts[kind] = (state.counts[kind] || 0) + 1;
    const parts = isCommitted(kind) ? [...state.parts, kind] : [kind];
    if (isCommitted(kind)) state.parts = text === "" ? parts : [];
    if (text === "" && isCommitted(kind)) return;
    const token = drawToken(group, text, kind, parts);
    if (step.end === "stop_token" && index === last) token.classList.add("sv-stop");
  });
  state.untested += step.untested;
}

const isCommitted = (kind) => kind !== "rejected" && kind !== "cut";

function drawToken(group, text, kind, parts) {
  const token = add(group, kind === "rejected" ? "del" : "span", `sv-token sv-${kind}`);
  if (parts.length > 1) {
    token.dataset.parts = parts.length;
    token.title = `${parts.length} tokens make this one character: ${parts.join(", ")}`;
  }
  if (/^[\s\p{Z}\p{C}]+$/u.test(text)) {
    // Nothing to see, so signs stand for it. They are generated content: what is copied is the text itself.
    const body = add(token, "span", "sv-body");
    for (const letter of text) {
      const space = add(body, "span", "sv-space");
      space.dataset.sign = GLYPHS[letter] || `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
      space.textContent = letter;
    }
  } else {
    // The space before a word stays plain, so that no line ends in a coloured blank.
    const [lead] = text.match(/^ */);
    if (lead) token.append(lead);
    add(token, "span", "sv-body").textContent = text.slice(lead.length);
  }
  return token;
}

function drawEmpty(flow) {
  const empty = add(flow, "div", "sv-empty");
  add(empty, "p").textContent = "The text appears here as it is written. Every token shows where it comes from:";
  explain(empty);
}

function explain(parent) {
  const list = add(parent, "dl");
  for (const [kind, meaning] of Object.entries(KINDS)) {
    const pair = add(list, "div");
    drawToken(add(pair, "dt"), kind, kind, []);
    add(pair, "dd").textContent = meaning;
  }
  add(parent, "p").textContent = "A thin line ends each verify pass. ␣ ⏎ ⇥ stand for space, new line and tab.";
}

function legendItem(legend, kind) {
  const item = add(legend, "li");
  item.title = KINDS[kind];
  drawToken(item, kind, kind, []);
  return add(item, "b");
}

function add(parent, tag, className = "") {
  const child = document.createElement(tag);
  child.className = className;
  parent.append(child);
  return child;
}
