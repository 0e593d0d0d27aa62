// Chooses the candidates that the bars show. Pure: facts of why_facts.js in, rows out.
//
//   candidateRows(facts) -> [{token, text, kind, tags, p, q}, ...], by p, at most 6
//   residualRows(facts) -> [{token, text, kind, tags, left}, ...], at most 5
//
// kind: what became of the token here, "" if it was only a candidate. p and q are {value, limit} in [0, 1]: `value` is
// null where the token is not among the recorded candidates, which then leave it `limit` at most (null: nothing is
// known). In greedy runs they are the probabilities at temperature 1, and so is the q of a tree in every run.

const CANDIDATES = 6;
const RESIDUALS = 5;
const VISIBLE = 0.0005; // of what p has left: less would be shown as nothing
const ROUNDING = 1e-5; // of the sum of candidates, which a trace gives with six digits

export function candidateRows(facts) {
  const {node, here, own, kept, earlier, kind, decision, isChosen} = facts;
  const isFirst = !node || node === here[0] || isChosen; // the recorded q is the one of the first draft token
  const listedP = decision?.p ?? [];
  const listedQ = (isFirst && decision?.q) || [];
  const needed = [node, own, kind === "rejected" ? kept : null, ...(node ? [] : earlier)].filter(Boolean);
  const texts = new Map([...listedP, ...listedQ].map(([token, text]) => [token, text]));
  needed.forEach(({token, text}) => texts.set(token, text));
  const readP = reader(listedP, facts, facts.isGreedy);
  const readQ = reader(listedQ, facts, isRawQ(facts));
  const rows = [...texts].map(([token, text]) => {
    const {p, q} = ownShares(token, facts);
    const shares = {p: known(p, readP(token)), q: known(q, readQ(token))};
    return {token, text, kind: fate(token, facts), tags: tags(token, facts), ...shares};
  });
  return choose(rows, needed.map(({token}) => token));
}

// A draft token has its own numbers, whether or not it is among the candidates.
function ownShares(token, facts) {
  const {node, here, isGreedy, isChosen} = facts;
  const drafted = node?.token === token ? node : here.find((other) => other.token === token);
  if (!drafted) return {p: null, q: null};
  // A later one was drawn from another q than the first, but what is chosen is chosen from one and the same.
  const isComparable = drafted === node || drafted === here[0] || isChosen;
  const q = isComparable ? shownShare(drafted.q, drafted.q_raw, isRawQ(facts)) : null;
  return {p: isGreedy ? drafted.p_raw : drafted.p, q};
}

// The needed ones, the first before the others, and the likeliest of the rest.
function choose(rows, needed) {
  const weight = ({token, p, q}) => {
    const place = needed.indexOf(token);
    return place === -1 ? Math.max(p.value ?? 0, q.value ?? 0) : needed.length + 1 - place;
  };
  const shown = rows.filter((row) => weight(row) > 0).sort((one, other) => weight(other) - weight(one));
  const amount = ({value, limit}) => value ?? limit ?? -1;
  const byShare = (one, other) => amount(other.p) - amount(one.p) || amount(other.q) - amount(one.q);
  return shown.slice(0, CANDIDATES).sort(byShare);
}

export function residualRows(facts) {
  const {decision, own, kept} = facts;
  const stands = own ?? kept;
  const rows = (decision?.residual ?? []).map(([token, text, prob]) => ({token, text, left: prob}));
  const isChosen = ({token}) => token === stands?.token;
  let shown = rows.filter((row) => row.left >= VISIBLE || isChosen(row)).slice(0, RESIDUALS);
  if (own && rows.length && !shown.some(isChosen)) {
    shown = [...shown.slice(0, RESIDUALS - 1), {token: own.token, text: own.text, left: own.p}];
  }
  return shown.map((row) => ({
    ...row,
    kind: isChosen(row) ? fate(row.token, facts) : "",
    tags: isChosen(row) ? [own ? "drawn" : "tried next, accepted"] : [],
  }));
}

// Looks a token up in a list of candidates.
function reader(list, facts, isRaw) {
  const values = list.map(([, , prob, raw]) => shownShare(prob, raw, isRaw));
  const limit = limitOfOthers(list, values, facts, isRaw);
  return (token) => {
    const index = list.findIndex(([listed]) => listed === token);
    const value = index !== -1 ? values[index] : limit === 0 ? 0 : null;
    return {value, limit: value ?? limit};
  };
}

// What a tree's drafter thought is told by the raw q at any temperature, as its own is 1.
const isRawQ = ({isGreedy, isChosen}) => isGreedy || isChosen;

// One-hot probabilities tell little, so the raw ones stand for them; what was copied has none.
function shownShare(prob, raw, isRaw) {
  if (!isRaw) return prob;
  return raw ?? (prob === 1 ? 1 : null);
}

// Lists are ordered, so no other token has more than the last, nor more than all of them leave.
function limitOfOthers(list, values, {isReordered}, isRaw) {
  if (!list.length || values.includes(null)) return null;
  if (list.length === 1 && list[0][2] === 1) return 0;
  const rest = Math.max(0, 1 - values.reduce((sum, value) => sum + value, 0)) + ROUNDING;
  const isOrdered = !(isRaw && isReordered);
  return isOrdered ? Math.min(values.at(-1), rest) : rest;
}

const known = (value, otherwise) => (value === null ? otherwise : {value, limit: value});

function fate(token, {here, own, kind: selected, step}) {
  if (token === own?.token) return step.nodes.length ? own.kind : selected;
  return here.find((other) => other.token === token)?.outcome ?? "";
}

function tags(token, {here, own, favourite, isGreedy, isCopied}) {
  const drafted = here.some((other) => other.token === token);
  const isDraftersFavourite = isGreedy && !isCopied && token === here[0]?.token;
  const isTargets = token === favourite?.token;
  if (isDraftersFavourite && isTargets) return ["drafted", "favourite of both"];
  if (isTargets && drafted && isCopied) return ["favourite, copied"];
  return [
    drafted && (isCopied ? "copied" : "drafted"),
    isTargets && "target's favourite",
    isDraftersFavourite && "drafter's favourite",
    !isGreedy && token === own?.token && (here.length ? "drawn instead" : "drawn"),
  ].filter(Boolean);
}
