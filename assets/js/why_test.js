// Says how a draft token was put to the test in a sampled run, by each acceptance rule. Pure: facts of why_facts.js in,
// pieces of text out.
//
//   test(facts)    of an accepted or rejected draft token
//   THRESHOLD      typical acceptance's, as a formula
//   threshold(nats)   the same for p of that entropy

import {decimals, inWords, percentInWords} from "./why_numbers.js";
import {UNRECORDED, capitalised, listed, were} from "./why_pieces.js";

export const THRESHOLD = "min(0.09, 0.3 × e^−entropy)";
export const threshold = (nats) => Math.min(0.09, 0.3 * Math.exp(-nats));

export function test(facts) {
  return {token: tokenTest, block: blockTest, typical: typicalTest}[facts.rule](facts);
}

function tokenTest(facts) {
  return [...capitalised(offer(facts)), ...draw(facts), ...replacement(facts)];
}

// What drafter and target thought of the token.
function offer({node, earlier, isCopied, isChosen}) {
  const p = node.p_trial ?? node.p;
  if (p === null) return [node, " was put to the test"];
  const given = percentInWords(p);
  const target = earlier.length ? "what was left of the target's p" : "the target";
  const before = earlier.length ? ["once ", ...listed(earlier), ` ${were(earlier)} rejected, `] : [];
  if (isCopied) return [node, " was copied from earlier in the text; ", ...before, `${target} gave it ${given}`];
  if (isChosen) return [node, " was chosen for the tree, not drawn, so it counts as certain to be proposed (q = 1); ", ...before, `${target} gave it ${given}`];
  if (node.q === null) return [...before, `${target} gave `, node, ` ${given}`];
  const only = p > 0 && p < node.q / 2 && !given.startsWith("less") ? "only " : "";
  return [...before, "the drafter gave ", node, ` ${percentInWords(node.q)}, ${target} ${only}${given}`];
}

function draw({node: {accept_prob: chance, r, q, outcome}, isCopied, isChosen}) {
  if (chance === null) return [`; it was ${outcome}, and the draw is ${UNRECORDED}.`];
  if (chance === 0) return [", so it can't be accepted."];
  if (chance === 1) {
    if (q === null) return [": p is at least q, so it is always accepted."];
    return [`${q < 1 ? ": at least as much" : ""}, so it is always accepted.`];
  }
  const [limit, drawn] = decimals(chance, r ?? 1);
  const told = r === null ? "" : `, and the draw was ${inWords(drawn)}${outcome === "accepted" ? ", below that" : ""}`;
  return [`${isCopied || isChosen ? ", so it" : ": it"} is accepted with probability ${inWords(limit)}${told}.`];
}

function replacement({node, kind, own, kept}) {
  if (kind === "accepted") return [];
  if (own) return [node.accept_prob === 0 ? " The" : " So the", " target drew its own token instead: ", own, "."];
  return kept ? [" The next token drafted for this place, ", kept, ", was accepted."] : [];
}

function blockTest({node: {accept_prob: chance, r}, kind, own}) {
  const told = ["All places of the draft are tested together, and it is kept up to the last that passes. "];
  if (chance === null || r === null) return [...told, `This one was ${kind}; its draw is ${UNRECORDED}.`];
  const [limit, drawn] = decimals(chance, r);
  const passes = r < chance;
  told.push(`This one passes with probability ${inWords(limit)}; the draw was ${inWords(drawn)}, `);
  if (kind === "accepted") return [...told, passes ? "so it passed." : "so it did not, but a later one did, which keeps it."];
  told.push("so it did not, nor did any after it.");
  return own ? [...told, " The target drew its own token instead: ", own, "."] : told;
}

function typicalTest({node, kind, own}) {
  const given = node.p === null ? ["The target's p is ", UNRECORDED] : ["The target gave ", node, ` ${percentInWords(node.p)}`];
  const passed = kind === "accepted";
  const told = [...given, `, ${passed ? "above" : "not above"} the threshold, so it was ${passed ? "kept" : "rejected"}. `];
  told.push("Nothing is drawn here, whatever q was: typical acceptance is lossy.");
  return !passed && own ? [...told, " The target's own token was drawn from p: ", own, "."] : told;
}
