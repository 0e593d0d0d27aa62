// Draws one lane of a race: its name, its text as far as it is written, and its passes on the time axis.
//
//   const show = drawLane(parent, lane, {end, tokenPx, clock, finish, tone});
//   const written = show(seconds);
//
// `lane` as in race_view.js; `end`: seconds that the axis is long; `tokenPx`: height of a token in the track; `clock`
// writes seconds; `finish` and `tone` (first, behind, even) say how it came in. `show` returns the tokens written by
// then. All text is laid out from the start and only becomes visible: however long it is, no frame lays it out again.

import {add} from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000; // of the drawing, in its own units
const MOST_SINGLE = 150; // passes up to which every token gets a cell of its own
const BELOW_PX = 3; // what a line has below the box of its letters

export function drawLane(parent, lane, {end, tokenPx, clock, finish, tone}) {
  const box = add(parent, "section", `sv-lane sv-lane-${lane.kind === "plain" ? "plain" : "speculative"}`);
  const times = lane.steps.map(([seconds]) => seconds);
  const totals = [0];
  for (const [, texts] of lane.steps) totals.push(totals[totals.length - 1] + texts.length);
  const tokens = totals[lane.steps.length];
  const write = drawHead(box, lane, {tokens, finish, tone});
  const reveal = drawText(box, lane);
  const amounts = `${counted(lane.steps.length, "pass", "passes")}, ${counted(tokens, "token")}`;
  const track = drawTrack(box, lane, {end, tokenPx, summary: `${lane.name}: ${amounts}, ${finish}`});

  return (seconds) => {
    const passes = passesBy(times, seconds);
    write(totals[passes], clock(seconds), passes === times.length);
    reveal(passes);
    track.style.setProperty("--sv-now", `${(100 * seconds) / end}%`);
    return totals[passes];
  };
}

export function counted(number, noun, plural = `${noun}s`) {
  return `${number} ${number === 1 ? noun : plural}`;
}

// How many of the ascending `times` have come.
function passesBy(times, seconds) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= seconds) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawHead(box, lane, {tokens, finish, tone}) {
  const head = add(box, "div", "sv-lane-head");
  add(head, "h4", "sv-lane-name", lane.name);
  const counter = add(head, "span", "sv-lane-count");
  // Both in one cell, and only one of them visible, so that nothing moves when the lane comes in.
  const clock = add(head, "span", "sv-lane-clock");
  const running = add(clock, "span");
  const done = add(clock, "span", `sv-lane-finish sv-lane-${tone}`, finish);
  const speed = lane.tokens_per_s;
  const facts = [counted(lane.steps.length, "pass", "passes"), `${speed.toFixed(speed < 100 ? 1 : 0)} tokens/s`];
  add(head, "span", "sv-lane-facts", facts.join(" · "));

  return (written, elapsed, isDone) => {
    const text = `${written} of ${tokens} tokens`;
    if (counter.textContent !== text) counter.textContent = text;
    if (running.textContent !== elapsed) running.textContent = elapsed;
    running.classList.toggle("sv-race-unseen", isDone);
    done.classList.toggle("sv-race-unseen", !isDone);
  };
}

function drawText(box, lane) {
  const pane = add(add(box, "div", "sv-lane-frame"), "div", "sv-lane-text");
  pane.tabIndex = 0; // so that the keyboard can scroll it
  pane.setAttribute("role", "group");
  pane.setAttribute("aria-label", `Text of ${lane.name}`);
  const passes = lane.steps.map(([, texts]) => add(pane, "span", "sv-race-unseen", texts.join("")));
  let shown = 0;
  let latest;

  return (count) => {
    if (count === shown) return;
    for (; shown < count; shown += 1) passes[shown].classList.remove("sv-race-unseen");
    for (; shown > count; shown -= 1) passes[shown - 1].classList.add("sv-race-unseen");
    latest?.classList.remove("sv-race-latest");
    latest = passes[count - 1];
    if (count < passes.length) latest?.classList.add("sv-race-latest");
    pane.scrollTop = latest ? latest.offsetTop + latest.offsetHeight + BELOW_PX - pane.clientHeight : 0;
  };
}

function drawTrack(box, lane, {end, tokenPx, summary}) {
  const track = add(box, "div", "sv-lane-track");
  track.setAttribute("role", "img");
  track.setAttribute("aria-label", summary);
  const height = tokenPx * Math.max(1, ...lane.steps.map(([, texts]) => texts.length));
  const isSingle = lane.steps.length <= MOST_SINGLE && tokenPx >= 4;
  const outline = outlineOf(lane.steps, {end, tokenPx, height, isSingle});
  for (const part of ["ahead", "done"]) {
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("class", `sv-lane-track-${part}${isSingle ? " sv-lane-track-single" : ""}`);
    drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("height", height);
    drawing.append(document.createElementNS(SVG, "path"));
    drawing.firstChild.setAttribute("d", outline);
    track.append(drawing);
  }
  const finish = add(track, "span", "sv-lane-track-finish");
  finish.style.left = `${(100 * lane.steps[lane.steps.length - 1][0]) / end}%`;
  return track;
}

// A column per pass, as one path: with so many passes elements of their own would be slow.
function outlineOf(steps, {end, tokenPx, height, isSingle}) {
  let from = 0;
  const columns = steps.map(([seconds, texts]) => {
    const [left, right] = [from, seconds].map((time) => ((WIDTH * time) / end).toFixed(2));
    from = seconds;
    const cells = isSingle ? texts.map((_, place) => [place + 1, 1]) : [[texts.length, texts.length]];
    return cells.map(([top, high]) => `M${left} ${height - top * tokenPx}H${right}v${high * tokenPx}H${left}z`);
  });
  return columns.flat().join("");
}
