// What decided: in a sampled run the draw, or the threshold of typical acceptance, in a greedy one the two favourites.
//
//   drawDraw(section, node, facts)   node: the draft token that was tested
//   drawThreshold(section, node, facts)   the same where nothing is drawn
//   drawFavourites(section, facts)
//
// facts: as why_facts.js gives them. Text only ever becomes text nodes.

import {add} from "./dom.js";
import {decimal, decimals, equation, inWords, percent, percents, quantity} from "./why_numbers.js";
import {UNRECORDED} from "./why_pieces.js";
import {THRESHOLD, threshold} from "./why_test.js";
import {addPieces} from "./why_tokens.js";

const WIDE = 0.25; // of the scale: room for a word
const H =
  "h weighs the ratios p/q of this place and all before it against what a further draft token could still gain, so " +
  "that all places together leave the output distributed as p.";
const LOSSY = "The output need not be distributed as p: lossy.";

export function drawDraw(section, node, facts) {
  drawTitle(section, "The draw", node, facts);
  if (node.accept_prob === null) {
    add(section, "p", "sv-why-muted", `The draw is ${UNRECORDED}.`);
    return;
  }
  const [chance, r] = decimals(node.accept_prob, node.r ?? 1);
  drawScale(section, node, r, facts.rule === "block" ? ["passes", "does not"] : ["accept", "reject"]);
  const drawn = node.r === null ? `r is ${UNRECORDED}` : equation("r", r);
  if (facts.rule === "block") {
    add(section, "p", "", `passes if ${lessThan("h", chance)}; ${drawn}`);
    add(section, "p", "sv-why-muted", H);
    return;
  }
  const isFirst = node === facts.here[0];
  add(section, "p", "", `${ratio(node.accept_prob, chance, isFirst ? "p" : "p′")}; ${drawn}`);
  if (!isFirst) add(section, "p", "sv-why-muted", "p′ is what the tokens rejected before it had left of p.");
}

export function drawOverlap(section, {decision, here}) {
  const which = here.length > 1 ? "The first token" : "A token";
  const odds = `accepted with probability ${inWords(decimal(decision.overlap))} (the overlap of p and q)`;
  add(section, "p", "sv-why-muted", `${which} drafted here is ${odds}.`);
}

export function drawThreshold(section, node, facts) {
  drawTitle(section, "The threshold", node, facts);
  const list = add(section, "dl", "sv-why-pairs");
  const nats = entropyOfP(facts);
  const isKnown = node.p !== null && nats !== null;
  const [p, limit] = isKnown ? percents(node.p, threshold(nats)) : [recorded(node.p), THRESHOLD];
  addPair(list, "p", [p]);
  addPair(list, "threshold", [isKnown ? `${limit} (entropy ${quantity(nats)} nats)` : limit]);
  addPair(list, "kept if", ["p > threshold"]);
  addPair(list, "draw", ["none"]);
  const meaning = isKnown ? `The threshold is ${THRESHOLD}` : "Entropy is p's, in nats";
  add(section, "p", "sv-why-muted", `${meaning}: the less sure the target is, the more it lets pass. ${LOSSY}`);
}

const recorded = (p) => (p === null ? UNRECORDED : percent(p));

function drawTitle(section, name, node, {node: selected, earlier}) {
  const last = earlier.length > 1 ? [", the last that was rejected"] : [];
  addPieces(add(section, "h3"), node === selected ? [name] : [`${name} for `, node, ...last]);
}

// A trace has the entropy at temperature 1 with nothing applied; of any other p it is not known.
const entropyOfP = ({decision, applied}) => (applied.length ? null : decision?.entropy ?? null);

// chance: the number as text; p: the name of what it is held against.
function ratio(acceptProb, chance, p) {
  if (acceptProb === 1) return `${p} ≥ q, so it is always accepted`;
  if (acceptProb === 0) return `${p} = 0, so it can't be accepted`;
  return `accept if ${lessThan(`${p}/q`, chance)}`;
}

const lessThan = (limit, chance) =>
  /^[<>]/.test(chance) ? `r < ${limit}, ${inWords(chance)}` : `r < ${limit} = ${chance}`;

// From 0 to 1: the part below the chance accepts, the rest rejects, and a mark stands where the draw fell.
function drawScale(section, {accept_prob: chance, r}, label, [below, above]) {
  const scale = add(section, "div", "sv-why-scale");
  scale.setAttribute("aria-hidden", "true");
  drawZone(scale, "sv-why-accept", below, 0, chance, r);
  drawZone(scale, "sv-why-reject", above, chance, 1, r);
  add(scale, "span", "sv-why-zero", "0");
  add(scale, "span", "sv-why-one", "1");
  if (r === null) return;
  add(scale, "span", "sv-why-mark").style.left = `${r * 100}%`;
  add(scale, "span", "sv-why-mark-label", equation("r", label)).style.left = `clamp(24px, ${r * 100}%, 100% - 24px)`;
}

// The zone's word stands at the end that the mark leaves free.
function drawZone(scale, className, word, start, end, r) {
  if (start === end) return;
  const zone = add(scale, "span", className);
  zone.style.width = `${(end - start) * 100}%`;
  zone.style.textAlign = r !== null && r < (start + end) / 2 ? "right" : "left";
  if (end - start >= WIDE) add(zone, "span", "", word);
}

export function drawFavourites(section, facts) {
  const {favourite, here, isCopied} = facts;
  const drafted = here[0];
  add(section, "h3", "", drafted ? "Two favourites" : "The target's favourite");
  const list = add(section, "dl", "sv-why-pairs");
  if (favourite) addPair(list, "target", [favourite, shareOf(favourite.raw)]);
  if (drafted) addPair(list, "drafter", [drafted, isCopied ? ", copied from the text" : shareOf(drafted.q_raw)]);
  addPair(list, "margin", [margin(facts)]);
  addPair(list, "entropy", [entropy(facts)]);
}

const shareOf = (raw) => (raw === null ? "" : ` ${percent(raw)}`);

function margin({decision, isNearTie, isReordered}) {
  const logits = decision?.margin ?? null;
  if (logits === null) return UNRECORDED;
  if (isNearTie) return `only ${quantity(logits)} logits, a near tie`;
  return `${quantity(logits)} logits over the runner-up${isReordered ? ", before penalty and bias" : ""}`;
}

// Made tangible: so many equally likely tokens would have the same entropy.
function entropy({decision}) {
  const nats = decision?.entropy ?? null;
  if (nats === null) return UNRECORDED;
  const choices = Math.exp(nats);
  return `${quantity(nats)} nats, as of ${choices.toFixed(choices < 9.95 ? 1 : 0)} equally likely tokens`;
}

function addPair(list, name, pieces) {
  const pair = add(list, "div");
  add(pair, "dt", "", name);
  addPieces(add(pair, "dd"), pieces);
}
