// Reads the value of the trace view, and says in words what a trace holds. Draws nothing.
//
//   const {read} = reader();
//   const trace = read(text);
//
// `text` only ever grows: a line {"view": id, "follow": bool}, then a trace as JSON lines, {"schema", "run"} and one
// step per line. What comes back is plain data: {view, follow, run, steps, isNew, added}, with `view` null while there
// is nothing, `isNew` when another view has begun and `added` steps more than the time before. `steps` is one list that
// grows. A line counts once its end is there, and is parsed once. A `selection` is {step, node}: indices into
// `trace.steps` and the step's `nodes`; node null is the token of the target's own that ends the step.

const UNSAID = {gamma_policy: "fixed", rule: "token", lossless: true}; // by headers from before there was a choice

export function reader() {
  const blank = () => ({head: "", offset: 0, view: null, follow: false, run: null, steps: []});
  let state = blank();

  function parse(line) {
    const value = JSON.parse(line);
    if ("view" in value) Object.assign(state, value);
    else if ("run" in value) state.run = {...UNSAID, ...value.run};
    else state.steps.push(value);
  }

  function read(text) {
    const head = text.slice(0, text.indexOf("\n") + 1);
    const isNew = head !== state.head || text.length < state.offset;
    if (isNew) state = {...blank(), head};
    const before = state.steps.length;
    const end = text.lastIndexOf("\n") + 1;
    if (end > state.offset) text.slice(state.offset, end).split("\n").filter(Boolean).forEach(parse);
    state.offset = end;
    const {view, follow, run, steps} = state;
    return {view, follow, run, steps, isNew, added: steps.length - before};
  }

  return {read};
}

// What a piece of the text can be, in the order of the legend.
export const KINDS = {
  accepted: "drafted, and kept by the target",
  rejected: "drafted, and rejected by the target",
  correction: "the target's own, in place of a rejected one",
  bonus: "the target's own, after all that was drafted",
  plain: "the target's own, nothing was drafted",
  cut: "drafted beyond the end of the run",
};

// [{node, text, kind}, ...] in reading order, what was rejected right before what was taken instead. Texts of kept
// tokens run on: "" while a character is incomplete, and the whole character with the token that completes it. With
// `isSibling` a rejected one was not the only token drafted for its place.
// Untested tokens are not part of the text, nor are the cut ones of a tree; a rejected one that follows another comes right after it. What the target says where nothing was drafted is no bonus, but plain.
export function pieces(step) {
  const shown = [];
  step.path.concat(null).forEach((node, place) => {
    const parent = place ? step.path[place - 1] : -1;
    shown.push(...rejectedAfter(step.nodes, parent));
    if (node !== null) shown.push({node, text: step.text[place], kind: "accepted"});
    else if (step.last) shown.push({node, text: step.text[place], kind: lastKind(step)});
  });
  if (!isChain(step.nodes)) return shown;
  step.nodes.forEach(({text, outcome}, node) => {
    if (outcome === "cut") shown.push({node, text, kind: "cut"});
  });
  return shown;
}

function rejectedAfter(nodes, place) {
  const isSibling = nodes.filter(({parent}) => parent === place).length > 1;
  return nodes.flatMap(({parent, outcome, text}, node) => {
    if (parent !== place || outcome !== "rejected") return [];
    return [{node, text, kind: "rejected", isSibling}, ...rejectedAfter(nodes, node)];
  });
}

export const lastKind = (step) => (step.nodes.length ? step.last.kind : "plain");

// The token that says most about a step: the rejected one, else the last.
export function telling(trace, index) {
  const {nodes, path, last} = trace.steps[index];
  const rejected = nodes.findIndex(({outcome}) => outcome === "rejected");
  if (rejected >= 0) return {step: index, node: rejected};
  return {step: index, node: last || !path.length ? null : path.at(-1)};
}

// The token that shows best what speculative decoding is: a word that was rejected right after another was accepted,
// else any rejected word or token, else the first accepted one, else the first of all; null in a trace without steps.
export function instructive({steps}) {
  const isRejected = ({outcome}) => outcome === "rejected";
  const isWord = (node) => isRejected(node) && /\p{L}/u.test(node.text) && !/^(<.*>|⟨.*⟩)$/s.test(node.text);
  const wishes = [
    (step) => (step.path.length ? step.nodes.findIndex(isWord) : -1),
    (step) => step.nodes.findIndex(isWord),
    (step) => step.nodes.findIndex(isRejected),
    (step) => step.path[0] ?? -1,
  ];
  for (const wish of wishes) {
    const step = steps.findIndex((each) => wish(each) >= 0);
    if (step >= 0) return {step, node: wish(steps[step])};
  }
  return steps.length ? {step: 0, node: null} : null;
}

const SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"};
const UNSEEN = /([\p{Cc}\p{Zl}\p{Zp}\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff])/u;

// [{text, sign}, ...]: the text in parts, with a sign for each character that would not be seen, "" for what is.
// The spaces of a text that holds more than spaces need no sign, nor does what joins or varies letters.
export function segments(text) {
  const isBlank = /^[\s\p{Z}\p{C}]*$/u.test(text);
  return text
    .split(isBlank ? /([^])/u : UNSEEN)
    .map((part, index) => ({text: part, sign: index % 2 ? SIGNS[part] || code(part) : ""}))
    .filter((part) => part.text);
}

const code = (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

export const quoted = (text) => `“${segments(text).map((part) => part.sign || part.text).join("")}”`;

const ENDS = {
  stop_token: " The stop token ends the run.",
  stop_string: " A stop string ends the run.",
  length: " The token budget ends the run.",
};

// One plain sentence for a step, and one more where the run ends.
export function sentence(trace, index) {
  const step = trace.steps[index];
  const what = step.nodes.length ? `${proposal(step.nodes)}; ${verdict(step)}` : `nothing was drafted${plainly(step)}`;
  const length = isVaried(trace.run) ? ` (${step.gamma_asked} asked for, ${step.gamma_used} deep)` : "";
  return `Step ${index + 1}${length}: ${what}.${ENDS[step.cut] || ""}`;
}

// Whether the draft length is not the same in every step.
export const isVaried = (run) => run.gamma_policy !== "fixed";

// Whether the drafter, or in a combination one of its parts ("eagle.tree"), drafts trees.
export function asksForTrees({drafter_settings: settings}) {
  return Object.entries(settings).some(([name, value]) => value === true && /(^|\.)tree$/.test(name));
}

// Who drafted a step's tokens, each once, in a combination; else nobody is named.
export const drafters = (nodes) => [...new Set(nodes.map(({by}) => by).filter(Boolean))];

export const isChain = (nodes) => nodes.every(({parent}, node) => parent === node - 1);

function proposal(nodes) {
  const who = drafters(nodes).join(" and ") || "the drafter";
  if (isChain(nodes)) return `${who} proposed ${quoted(nodes.map(({text}) => text).join(""))}`;
  return `${who} proposed a tree of ${nodes.length} tokens`;
}

function verdict({nodes, path, last}) {
  const accepted = quoted(path.map((node) => nodes[node].text).join(""));
  const rejected = nodes.filter(({outcome}) => outcome === "rejected").map(({text}) => quoted(text)).join(" and ");
  const cut = nodes.filter(({outcome}) => outcome === "cut").length;
  const clauses = [];
  const all = path.length === 1 ? "it was accepted" : `all ${path.length} were accepted`;
  if (path.length === nodes.length) clauses.push(all);
  else if (path.length) clauses.push(`${accepted} was accepted`);
  if (rejected) clauses.push(`${rejected} ${path.length ? "" : "was "}rejected`);
  if (cut) clauses.push(`${cut} more cut off`);
  const own = last && quoted(last.text);
  if (last?.kind === "correction") return `${clauses.join(", ")} and replaced by the target's own ${own}`;
  if (last) clauses.push(`and the target added ${own} as a bonus`);
  return clauses.join(", ");
}

const plainly = ({last}) => (last ? `; the target wrote ${quoted(last.text)}` : "");
