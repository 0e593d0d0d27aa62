// Bars of probabilities: p and q side by side, and what a rejection leaves of p.
//
//   drawCandidates(section, facts), drawResidual(section, facts)   facts of why_facts.js
//
// A bar's length is a share of 100 %, whatever else is shown. Text only ever becomes text nodes.

import {add} from "./dom.js";
import {count, percent, percentAtMost} from "./why_numbers.js";
import {UNRECORDED} from "./why_pieces.js";
import {candidateRows, residualRows} from "./why_rows.js";
import {addPieces, addToken} from "./why_tokens.js";

const CHOSEN = "A tree's tokens are chosen, not drawn, so the rule counts each as certain to be proposed (q = 1).";

export function drawCandidates(section, facts) {
  const rows = candidateRows(facts);
  const hasP = rows.some(({p}) => p.value !== null);
  const hasQ = rows.some(({q}) => q.value !== null);
  const drafter = facts.isChosen ? "drafter's probability" : "drafter q";
  add(section, "h3", "", hasQ || facts.here.length ? `Target p and ${drafter}` : "Target p");
  if (!hasP && !hasQ) {
    add(section, "p", "sv-why-muted", `The probabilities are ${UNRECORDED}.`);
    return;
  }
  drawLegend(section, facts, hasQ);
  const list = add(section, "ul", facts.isChosen ? "sv-why-rows sv-why-rows-named" : "sv-why-rows");
  for (const row of rows) drawRow(list, row, hasQ ? {p: row.p, q: {...row.q, name: qName(facts)}} : {p: row.p});
  for (const note of notes(facts, hasQ)) addPieces(add(section, "p", "sv-why-muted"), note);
}

export function drawResidual(section, facts) {
  const {own, kept, rule, isGreedy} = facts;
  add(section, "h3", "", own ? "Replaced from what p has left" : "What p had left");
  const rows = residualRows(facts);
  const remark = add(section, "p", "sv-why-muted");
  if (isGreedy && own) {
    addPieces(remark, ["Greedy p is all on one token, ", own, ", so that is what it has left."]);
  } else if (!rows.length) {
    const chance = own && own.p !== null ? [own, ` had ${percent(own.p)} of it; the rest is `] : ["It is "];
    addPieces(remark, [...chance, `${UNRECORDED}.`]);
  } else {
    const scaled = rule === "block" ? "p times the ratios p/q of the places before it, less q," : "p − q";
    remark.textContent = `${scaled} where p is larger, scaled up to 1${kept ? ", when the next token was tried" : ""}`;
    const list = add(section, "ul", "sv-why-rows");
    for (const row of rows) drawRow(list, row, {left: {value: row.left, limit: row.left}});
  }
}

function drawLegend(section, facts, hasQ) {
  const legend = add(section, "p", "sv-why-legend");
  add(legend, "span", "sv-why-key sv-why-p-key", "p target");
  if (hasQ) add(legend, "span", "sv-why-key sv-why-q-key", facts.isChosen ? "drafter's probability" : "q drafter");
  const {before, settings} = basis(facts);
  const text = add(legend, "span", "sv-why-muted", before);
  settings.forEach((setting, index) => {
    if (index > 0) text.append(", ");
    add(text, "span", "", setting);
  });
  if (hasQ && facts.isChosen && !facts.isGreedy && settings.length) text.append("; the drafter's at temperature 1");
}

// What the drafter gives a token that it chose for a tree is not the q of its test.
const qName = ({isChosen}) => (isChosen ? "drafter" : "q");

// Which probabilities these are: {before: text, settings: [text, ...] that go on with it}.
function basis({applied: settings, isGreedy, isReordered}) {
  if (!isGreedy) return settings.length ? {before: "after ", settings} : {before: "at temperature 1", settings};
  if (!isReordered) return {before: "at temperature 1; greedy takes the longest bar", settings: []};
  return {before: "at temperature 1; greedy takes the favourite after ", settings};
}

// shares: {p: {value, limit, name}, ...}, one bar for each, by its own name if it has one; a single one needs no name.
function drawRow(list, {kind, tags, ...subject}, shares) {
  const item = add(list, "li", "sv-why-row");
  const label = add(item, "span", "sv-why-label");
  addToken(label, subject, kind && `sv-why-${kind}`);
  if (tags.length) add(label, "small", "", tags.join(", "));
  const bars = add(item, "span", "sv-why-bars");
  bars.setAttribute("aria-hidden", "true");
  const numbers = add(item, "span", "sv-why-numbers");
  for (const [name, share] of Object.entries(shares)) {
    drawBar(bars, name, share);
    drawNumber(numbers, Object.keys(shares).length > 1 ? name : "", share);
  }
}

function drawBar(bars, name, {value}) {
  const track = add(bars, "span", "sv-why-track");
  if (value > 0) add(track, "span", `sv-why-bar sv-why-${name}`).style.width = `${Math.min(1, value) * 100}%`;
}

function drawNumber(numbers, name, {value, limit, name: ownName}) {
  const number = add(numbers, "span", value === null ? "sv-why-muted" : "");
  if (name) add(number, "i", `sv-why-${name}-name`, ownName ?? name);
  add(number, "span", "", value === null && limit !== null ? percentAtMost(limit) : percent(value));
  if (value === null) number.title = limit === null ? UNRECORDED : "not among the recorded candidates, so at most this";
}

function notes(facts, hasQ) {
  const {node, earlier, here, decision, isCopied, isChosen, isReordered} = facts;
  const drafted = node ?? earlier.at(-1);
  const isOne = node || earlier.length === 1; // of several that were rejected, each has its own card
  const ranks = drafted && isOne && [
    drafted.rank_p !== null && `target's rank ${count(drafted.rank_p)}`,
    drafted.rank_q !== null && `drafter's rank ${count(drafted.rank_q)}`,
  ].filter(Boolean);
  return [
    ranks?.length && [drafted, `: ${ranks.join(", ")}${isReordered ? ", before penalty and bias" : ""}.`],
    drafted && isCopied && hasQ && [`The drafter copied ${isOne ? "it" : "them"}: q = 1.`],
    drafted && isChosen && !isCopied && [CHOSEN],
    drafted && !hasQ && ["q is ", `${UNRECORDED}.`],
    node && !decision && ["The other candidates are recorded along the accepted path only."],
    node && decision && node !== here[0] && hasQ && !isChosen && ["Only the first token drafted here has its whole q recorded."],
    !drafted && facts.kind !== "plain" && ["Nothing was drafted at this place, so there is no q."],
  ].filter(Boolean);
}
