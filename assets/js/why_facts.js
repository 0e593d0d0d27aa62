// Gathers what a trace says about one token, so that the other why_ modules need not search for it.
//
//   readFacts(trace, selection) -> facts, or null if the selection names no token
//
// facts: {
//   run, step, stepIndex,
//   node       the draft token as the trace has it; null for the target's own token
//   nodeIndex  its index; null for the target's own token
//   token, text, kind   kind: accepted, rejected, untested, cut, correction, bonus or plain
//   place      the node after which the token stands, -1: the last committed token
//   decision   what target and drafter thought at that place; null where it is not recorded
//   here       the draft tokens proposed at that place, in the order in which they are tried
//   earlier    those of them that had been rejected before this token was tried
//   kept       the one of them that was accepted, or null
//   own        the target's own token at that place, or null
//   isGreedy   temperature 0: p is one-hot, so the raw probabilities say more
//   isReordered  a repetition penalty or a logit bias: the raw probabilities do not tell the favourite
//   applied    the sampler's settings that make p another than the target's raw probabilities, in words
//   rule       how drafts are tested: token, block or typical
//   isCopied   it was copied from the text, so its q is 1 and means nothing
//   isChosen   it was chosen for a tree, not drawn, so its q is 1 whatever the drafter thinks of it
//   isBehind   it follows a rejected token and was rejected too, as the block rule does
//   isTree     some place has several draft tokens
//   isMixed    the step's draft is the work of more than one drafter
//   isVaried   the draft length is not the same in every step
//   isNearTie  in a greedy run, the target's two largest logits are so close that rounding may decide
//   favourite  {token, text, raw}: the target's arg-max at that place, known in greedy runs; or null
// }

import {asksForTrees, drafters, isVaried} from "./trace.js";

const NEAR_TIE = 0.25; // logits; low precision moves them by about as much

export function readFacts(trace, selection) {
  const step = selection && trace?.steps[selection.step];
  if (!step) return null;
  const {run} = trace;
  const nodeIndex = selection.node ?? null;
  const node = nodeIndex === null ? null : step.nodes[nodeIndex];
  const subject = node === null ? step.last : node;
  if (!subject) return null;

  const end = step.path.at(-1) ?? -1;
  const place = node ? node.parent : end;
  const here = step.nodes.filter(({parent}) => parent === place);
  const before = node ? here.slice(0, here.indexOf(node)) : here;
  const {temperature, repetition_penalty: penalty = 1, logit_bias: bias = {}} = run.sampler;
  const drafted = node ?? here[0];
  const facts = {
    run,
    step,
    stepIndex: selection.step,
    node,
    nodeIndex,
    token: subject.token,
    text: subject.text,
    kind: node ? node.outcome : step.nodes.length ? step.last.kind : "plain",
    place,
    decision: step.decisions.find((decision) => decision.node === place) ?? null,
    here,
    earlier: before.filter(({outcome}) => outcome === "rejected"),
    kept: here.find(({outcome}) => outcome === "accepted") ?? null,
    own: place === end ? step.last : null,
    isGreedy: temperature === 0,
    isReordered: penalty !== 1 || Object.keys(bias).length > 0,
    applied: applied(run.sampler),
    rule: run.rule,
    isCopied: (drafted?.by ?? run.drafter) === "ngram",
    isChosen: asksForTrees(run) && drafted?.q === 1 && drafted.q_raw !== null && drafted.q_raw < 1,
    isBehind: node?.outcome === "rejected" && step.nodes[node.parent]?.outcome === "rejected",
    isTree: step.nodes.some(({parent}, index) => step.nodes.findIndex((other) => other.parent === parent) !== index),
    isMixed: drafters(step.nodes).length > 1,
    isVaried: isVaried(run),
  };
  const margin = facts.decision?.margin ?? null;
  const isNearTie = facts.isGreedy && !facts.isReordered && margin !== null && margin < NEAR_TIE;
  return {...facts, isNearTie, favourite: facts.isGreedy ? readFavourite(facts) : null};
}

function applied({temperature, top_k = 0, top_p = 1, min_p = 0, repetition_penalty = 1, logit_bias = {}}) {
  const biased = Object.keys(logit_bias).length;
  return [
    ![0, 1, undefined].includes(temperature) && `temperature ${temperature}`,
    top_k > 0 && `top-k ${top_k}`,
    top_p < 1 && `top-p ${top_p}`,
    min_p > 0 && `min-p ${min_p}`,
    repetition_penalty !== 1 && `repetition penalty ${repetition_penalty}`,
    biased > 0 && `a logit bias on ${biased} ${biased === 1 ? "token" : "tokens"}`,
  ].filter(Boolean);
}

// Greedy p is one-hot; without recorded candidates, whatever the target let stand at that place was its favourite.
function readFavourite({decision, kept, own}) {
  const top = decision?.p.find(([, , prob]) => prob === 1);
  if (top) return {token: top[0], text: top[1], raw: top[3]};
  const stands = kept ?? own;
  return stands && {token: stands.token, text: stands.text, raw: stands.p_raw ?? null};
}

// The draft token whose test decided here: the token itself, or the last one that the target's own token replaced.
export function testedNode({node, kind, earlier}) {
  if (node) return kind === "accepted" || kind === "rejected" ? node : null;
  return earlier.at(-1) ?? null;
}
