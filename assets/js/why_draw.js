// What decided: the draw against p/q in a sampled run, the two favourites in a greedy one.
//
//   drawDraw(section, node, facts)   node: the draft token that was tested
//   drawFavourites(section, facts)
//
// facts: as why_facts.js gives them. Text only ever becomes text nodes.

import {add} from "./dom.js";
import {decimal, decimals, equation, inWords, percent, quantity} from "./why_numbers.js";
import {addPieces} from "./why_tokens.js";
import {UNRECORDED} from "./why_words.js";

const WIDE = 0.25; // of the scale: room for a word

export function drawDraw(section, node, facts) {
  addPieces(add(section, "h3"), node === facts.node ? ["The draw"] : ["The draw for ", node]);
  if (node.accept_prob === null) {
    add(section, "p", "sv-why-muted", `The draw is ${UNRECORDED}.`);
  } else {
    const [chance, r] = decimals(node.accept_prob, node.r ?? 1);
    drawScale(section, node, r);
    const isFirst = node === facts.here[0];
    const drawn = node.r === null ? `r is ${UNRECORDED}` : equation("r", r);
    add(section, "p", "", `${rule(node.accept_prob, chance, isFirst ? "p" : "p′")}; ${drawn}`);
    if (!isFirst) add(section, "p", "sv-why-muted", "p′ is what the tokens rejected before it had left of p.");
  }
  const overlap = facts.decision?.overlap ?? null;
  if (overlap === null) return;
  const which = facts.here.length > 1 ? "The first token" : "A token";
  const odds = `accepted with probability ${inWords(decimal(overlap))} (the overlap of p and q)`;
  add(section, "p", "sv-why-muted", `${which} drafted here is ${odds}.`);
}

// chance: the number as text; p: the name of what it is held against.
function rule(acceptProb, chance, p) {
  if (acceptProb === 1) return `${p} ≥ q, so it is always accepted`;
  if (acceptProb === 0) return `${p} = 0, so it can't be accepted`;
  return /^[<>]/.test(chance) ? `accept if r < ${p}/q, ${inWords(chance)}` : `accept if r < ${p}/q = ${chance}`;
}

// From 0 to 1: the part below the chance accepts, the rest rejects, and a mark stands where the draw fell.
function drawScale(section, {accept_prob: chance, r}, label) {
  const scale = add(section, "div", "sv-why-scale");
  scale.setAttribute("aria-hidden", "true");
  drawZone(scale, "accept", 0, chance, r);
  drawZone(scale, "reject", chance, 1, r);
  add(scale, "span", "sv-why-zero", "0");
  add(scale, "span", "sv-why-one", "1");
  if (r === null) return;
  add(scale, "span", "sv-why-mark").style.left = `${r * 100}%`;
  add(scale, "span", "sv-why-mark-label", equation("r", label)).style.left = `clamp(24px, ${r * 100}%, 100% - 24px)`;
}

// The zone's word stands at the end that the mark leaves free.
function drawZone(scale, word, start, end, r) {
  if (start === end) return;
  const zone = add(scale, "span", `sv-why-${word}`);
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
