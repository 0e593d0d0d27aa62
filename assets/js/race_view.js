// Replays two measured runs one above the other on one time axis, as fast as they were or slower.
//
//   const view = mount(element);
//   view.update(json);
//
// `json` is {"id", "recorded": bool, "lanes": [lane, lane], "note", "lossy": bool, "sampled": bool}, a lane {"name", "kind": "plain" |
// "speculative", "tokens_per_s", "steps"}, and its steps [seconds, [text per token, ...]] per verify pass, with the
// seconds since the end of prefill when the pass was done. Another id is another race; with the same one nothing
// happens. At first the race is over, and nothing moves until Play is pressed. "" leaves the element empty, and so does
// a lane that took no time. Text only ever becomes text nodes.

import {add} from "./dom.js";
import {counted, drawLane} from "./race_lane.js";
import {drawPlayer} from "./race_player.js";

const TRACK_PX = 45; // the higher of the two tracks
const TOKEN_PX = 9; // a token in a track, if there is room
const TICKS = 7; // at most, after 0

export function mount(element) {
  element.classList.add("sv-race");
  let race = null;

  function update(json) {
    const next = json ? JSON.parse(json) : null;
    if (next && next.id === race?.id) return;
    race?.pause();
    element.replaceChildren();
    race = next?.lanes.every((lane) => lastOf(lane) > 0) ? {id: next.id, pause: drawRace(element, next)} : null;
  }

  return {update};
}

// Returns what stops the replay.
function drawRace(element, race) {
  const end = Math.max(...race.lanes.map(lastOf));
  const clock = clockOf(end);
  const result = resultOf(race, clock);
  const say = drawHead(element, race, result.sentences);
  const most = Math.max(...race.lanes.flatMap(({steps}) => steps.map(([, texts]) => texts.length)));
  const tokenPx = Math.min(TOKEN_PX, TRACK_PX / Math.max(1, most));
  const show = race.lanes.map((lane, index) =>
    drawLane(element, lane, {end, tokenPx, clock, finish: result.finishes[index], tone: result.tones[index]}),
  );

  function draw(time) {
    const written = show.map((at) => at(time));
    say(time < end ? `${clock(time)}: ${standing(race.lanes, written)}` : "");
  }
  const stops = race.lanes.flatMap(({steps}) => steps.map(([seconds]) => seconds)).sort((a, b) => a - b);
  const {pause} = drawPlayer(element, {end, stops, clock, drawScale: (parent) => drawAxis(parent, end), draw});
  drawNotes(element, race);
  return pause;
}

// Returns what replaces the outcome by a sentence; "" brings it back. Both have one cell, so that nothing moves.
function drawHead(element, {recorded}, sentences) {
  const head = add(element, "div", "sv-race-head");
  const heading = add(head, "h3", "sv-race-sentence");
  const outcome = add(heading, "span");
  for (const sentence of sentences) {
    add(outcome, "span", "", sentence); // wraps as a whole
    outcome.append(" ");
  }
  const standing = add(heading, "span");
  const pill = add(head, "span", `sv-pill sv-pill-${recorded ? "recorded" : "live"}`);
  add(pill, "span", "sv-mark", "●").setAttribute("aria-hidden", "true");
  add(pill, "span", "", recorded ? "recorded" : "live");

  return (text) => {
    if (standing.textContent !== text) standing.textContent = text;
    outcome.classList.toggle("sv-race-unseen", text !== "");
  };
}

function drawAxis(parent, end) {
  const axis = add(parent, "div", "sv-race-axis");
  axis.setAttribute("aria-hidden", "true"); // the slider says the time
  const size = 10 ** Math.floor(Math.log10(end / TICKS));
  const step = size * [1, 2, 5, 10].find((times) => times * size * TICKS >= end);
  const decimals = Math.max(0, -Math.floor(Math.log10(step * 1.001)));
  const count = Math.floor(end / step + 1e-9);
  for (let tick = 0; tick <= count; tick += 1) {
    const text = tick ? (tick * step).toFixed(decimals) : "0";
    const label = add(axis, "span", "", tick === count ? `${text} s` : text);
    label.style.left = `${(100 * tick * step) / end}%`;
  }
}

const GREEDY = " At temperature 0 it keeps just what greedy decoding would.";

function drawNotes(element, {note, lossy, sampled}) {
  const notes = [
    note && `Timed: ${note}.`,
    "Each column is one pass: as wide as the time it took, as high as the tokens it gave.",
    lossy && `The speculative lane's acceptance rule is lossy: its text need not be what the target would write.${sampled ? "" : GREEDY}`,
    sampled && !lossy && "Both lanes are draws from the same distribution, so their texts may differ.",
  ];
  const text = notes.filter(Boolean).join(" ");
  add(element, "p", "sv-race-note", text);
}

// Seconds until a lane is done.
function lastOf({steps}) {
  return steps.length ? steps[steps.length - 1][0] : 0;
}

// Writes times of this race, all with the same number of decimals, so that they compare and do not jump.
function clockOf(end) {
  const decimals = end < 0.5 ? 3 : end < 50 ? 2 : 1;
  return (seconds) => `${seconds.toFixed(decimals)} s`;
}

// The outcome in two sentences, and how each lane came in: its words and their tone.
function resultOf({lanes, is_clear: isClear}, clock) {
  const times = lanes.map(lastOf);
  const first = times.indexOf(Math.min(...times));
  const last = times.indexOf(Math.max(...times));
  const ratio = (times[last] / times[first]).toFixed(2);
  const done = times.map((time) => `done in ${clock(time)}`);
  if (ratio === "1.00") {
    const sentences = ["A tie.", `Both take ${clock(times[first])}.`];
    return {sentences, finishes: done, tones: lanes.map(() => "even")};
  }
  if (isClear === false) {
    const sentences = ["No clear winner.", "The repeats do not agree; this is one of them."];
    return {sentences, finishes: done, tones: lanes.map(() => "even")};
  }
  const longer = `${ratio}× as long`;
  return {
    sentences: [`${capital(lanes[first].name)} wins.`, `${capital(lanes[last].name)} takes ${longer}.`],
    finishes: done.map((words, index) => (index === first ? words : `${words}, ${longer}`)),
    tones: lanes.map(({kind}, index) => (index === first ? "first" : kind === "plain" ? "even" : "behind")),
  };
}

// Who is ahead while the race is on. `written`: tokens so far, per lane.
function standing(lanes, written) {
  const lead = Math.abs(written[0] - written[1]);
  const ahead = written[0] >= written[1] ? 0 : 1;
  if (written[ahead] === tokensOf(lanes[ahead])) {
    const behind = lanes[1 - ahead];
    const left = tokensOf(behind) - written[1 - ahead];
    return `${lanes[ahead].name} is done, ${behind.name} has ${counted(left, "token")} to go`;
  }
  return lead ? `${lanes[ahead].name} is ${counted(lead, "token")} ahead` : "they are level";
}

function tokensOf({steps}) {
  return steps.reduce((sum, [, texts]) => sum + texts.length, 0);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
