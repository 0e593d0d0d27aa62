// Says in plain words why a token is where it is. Pure: facts of why_facts.js in, pieces of text out.
//
//   question(facts), explanation(facts) -> pieces: strings, and {token, text} for a token to be quoted
//   whereabouts(facts) -> a string

import {count, inWords, percentInWords, quantity} from "./why_numbers.js";
import {capitalised, listed, were} from "./why_pieces.js";
import {test} from "./why_test.js";

const ENDS = {
  stop_token: "the answer had come to its stop token",
  stop_string: "the text had come to a stop string",
  length: "the token budget was used up",
};
const STOPS = {
  stop_token: " The stop token ends the run.",
  stop_string: " It completes a stop string, which ends the run.",
  length: " The token budget ends the run here.",
};

export function question(facts) {
  const asked = {
    accepted: ["Why was ", facts, " accepted?"],
    rejected: ["Why was ", facts, " rejected?"],
    untested: ["Why was ", facts, " not tested?"],
    cut: ["Why was ", facts, " cut?"],
  };
  return asked[facts.kind] ?? ["Where does ", facts, " come from?"];
}

export function whereabouts(facts) {
  const {step, node, kind} = facts;
  const where = `step ${step.index + 1}`;
  const asked = facts.isVaried && step.gamma_asked !== step.gamma_used ? ` (${step.gamma_asked} asked for)` : "";
  if (node) return `${where}, draft position ${node.depth} of ${step.gamma_used}${asked}${by(node)}`;
  if (kind === "plain") return `${where}, nothing drafted${asked}`;
  const accepted = step.path.length;
  return `${where}, ${kind} after ${accepted || "no"} accepted draft ${accepted === 1 ? "token" : "tokens"}`;
}

const by = (node) => (node.by ? `, drafted by ${node.by}` : "");

export function explanation(facts) {
  const {kind, isGreedy} = facts;
  const told = {
    accepted: isGreedy ? greedyAccepted : test,
    rejected: facts.isBehind ? behind : isGreedy ? greedyRejected : test,
    untested,
    cut: ({step}) => [`The run ended before it: ${ENDS[step.cut] ?? "it was stopped"}.`],
    correction,
    bonus,
    plain,
  }[kind](facts);
  return [...told, ...nearTie(facts), ...end(facts)];
}

function greedyAccepted({node, isCopied, isReordered}) {
  const drafted = isCopied ? "was copied from earlier in the text" : "the drafter proposed";
  return [favouriteIs(isReordered), node, share(node.p_raw, isReordered), `, and that is what ${drafted}.`];
}

function greedyRejected({node, favourite, isCopied, isReordered}) {
  const rank = node.rank_p === null || isReordered
    ? "not the target's favourite"
    : `the target's number ${count(node.rank_p)}${share(node.p_raw, isReordered)}`;
  const drafted = isCopied
    ? [node, ", copied from earlier in the text, is"]
    : ["the drafter proposed ", node, ", which is"];
  const target = favourite ? [favouriteIs(isReordered), favourite, `${share(favourite.raw, isReordered)}; `] : [];
  return capitalised([...target, ...drafted, ` ${rank}.`]);
}

// Only the block rule tests what follows a rejected token.
function behind({step, node}) {
  return [
    "All places of the draft are tested together. It is kept up to the last that passes, and that lies before ",
    step.nodes[node.parent],
    ".",
  ];
}

function untested({step, node, kept, rule}) {
  for (let index = node.parent; index >= 0; index = step.nodes[index].parent) {
    if (step.nodes[index].outcome === "rejected") {
      return ["It follows a rejected token, ", step.nodes[index], ", so it was never tested."];
    }
  }
  if (kept && rule === "typical") {
    return ["Another branch, the one with ", kept, ", is longer or likelier, so this one was not taken."];
  }
  if (kept) return ["Another token drafted for this place, ", kept, ", was accepted first, so it was never tested."];
  return ["It is off the accepted path of the draft, so it was never tested."];
}

function correction({own, earlier, favourite, rule, isGreedy, isReordered}) {
  if (!earlier.length) return ["It is the target's own token after a rejection."];
  const rejected = ["The draft had ", ...listed(earlier), ` here, which ${were(earlier)} rejected. `];
  if (isGreedy) {
    return [...rejected, "The target's own favourite takes the place: ", own, `${share(favourite.raw, isReordered)}.`];
  }
  const chance = own.p === null ? "" : `, which has ${percentInWords(own.p)} of it`;
  const left = rule === "typical" ? "p as it is" : "what p has left";
  return [...rejected, `So the target drew its own token from ${left}: `, own, `${chance}.`];
}

function bonus(facts) {
  const {length} = facts.step.path;
  const next = `the token after ${length === 1 ? "it" : "them"}, for free: `;
  return [`${allAccepted(facts, length)}, so the same pass also gives ${next}`, ...ownChoice(facts)];
}

function allAccepted({isTree}, length) {
  const tokens = length === 1 ? "token" : "tokens";
  if (isTree) return `A branch of the draft was accepted to its end, ${length} ${tokens} deep`;
  return length === 1 ? "The one draft token was accepted" : `All ${length} draft tokens were accepted`;
}

function plain(facts) {
  return [`${whyPlain(facts)}, so the pass gave one token, the target's own: `, ...ownChoice(facts)];
}

function whyPlain({run, step, isCopied}) {
  if (run.drafter === "plain") return "Plain decoding drafts nothing";
  if (step.gamma_asked === 0) return `${run.gamma_policy === "adaptive" ? "The adaptive policy asked for no draft" : "No draft was asked for"} in this step`;
  return isCopied ? "The drafter found nothing to copy from the text" : "Nothing was drafted in this step";
}

function ownChoice({own, favourite, isGreedy, isReordered}) {
  if (isGreedy) return [own, `, its favourite${share(favourite.raw, isReordered)}.`];
  return [own, own.p === null ? ", drawn from p." : `, drawn from p, which gives it ${percentInWords(own.p)}.`];
}

function nearTie({decision, kind, isNearTie}) {
  if (!isNearTie || kind === "untested" || kind === "cut") return [];
  return [` It was a near tie: the target's two favourites are ${inWords(quantity(decision.margin))} logits apart.`];
}

function end({step, nodeIndex, kind}) {
  const isLast = step.last ? nodeIndex === null : kind === "accepted" && nodeIndex === step.path.at(-1);
  return isLast && step.cut ? [STOPS[step.cut]] : [];
}

const favouriteIs = (isReordered) =>
  isReordered ? "With penalty and bias applied, the target's favourite here is " : "The target's favourite here is ";

// A raw share says how sure the target is, but not of its choice once a penalty or a bias has changed the order.
const share = (raw, isReordered) => (raw === null || isReordered ? "" : ` (${percentInWords(raw)})`);
