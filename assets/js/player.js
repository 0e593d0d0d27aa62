// Steps through a run: to the first step, back, play, on, and a slider.
//
//   const player = mount(element, {onPick, onPlay, onPause});
//   player.draw(trace);   // how many steps there are, see trace.js
//   player.show(index);   // the step in view, null if there is none
//   player.toggle();      // plays or pauses
//   player.pause();
//
// `onPick(index)` is the reader's choice; `onPlay(index)` comes at each step while it plays, `onPause()` when it no
// longer does. Played as measured, a step comes after the time that it took, or a quarter of a second where that was
// not recorded.

import {add} from "./dom.js";

const SPEEDS = {"1": "1 step/s", "4": "4 steps/s", "measured": "as measured"};
const FALLBACK = 0.25; // seconds
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  previous: "M11.5 3v10l-7-5z",
  play: "M4 2.5v11l9-5.5z",
  pause: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z",
  next: "M4.5 3v10l7-5z",
};

export function mount(element, {onPick, onPlay, onPause}) {
  const bar = add(element, "div", "sv-player");
  addButton(bar, "first", "First step", () => pick(0));
  addButton(bar, "previous", "Previous step", () => pick(index === null ? Infinity : index - 1));
  const play = addButton(bar, "play", "Play or pause (space bar)", toggle);
  play.className += " sv-play";
  const playName = add(play, "span");
  addButton(bar, "next", "Next step", () => pick(index === null ? 0 : index + 1));
  const place = add(bar, "span", "sv-place");
  const range = add(bar, "input", "sv-range");
  Object.assign(range, {type: "range", min: 1, step: 1});
  range.setAttribute("aria-label", "Step");
  range.addEventListener("input", () => pick(range.valueAsNumber - 1));
  const speed = add(bar, "select", "sv-speed");
  speed.setAttribute("aria-label", "Speed");
  for (const [value, name] of Object.entries(SPEEDS)) add(speed, "option", "", name).value = value;
  speed.value = "4";
  speed.addEventListener("change", () => isPlaying && schedule(performance.now()));

  let trace = {steps: []};
  let index = null;
  let isPlaying = false;
  let timer;
  const last = () => trace.steps.length - 1;

  function pick(wanted) {
    if (last() >= 0) onPick(Math.max(0, Math.min(last(), wanted)));
  }

  function toggle() {
    if (isPlaying) return pause();
    if (last() < 0) return;
    isPlaying = true;
    drawPlay();
    onPlay(index === null || index === last() ? 0 : index);
    schedule(performance.now());
  }

  // `from`: when this step came, or should have, in milliseconds; so that delays do not add up.
  function schedule(from) {
    clearTimeout(timer);
    if (index === last()) return pause();
    const due = from + 1000 * duration(trace.steps[index + 1]);
    timer = setTimeout(() => {
      onPlay(index + 1);
      schedule(due);
    }, due - performance.now());
  }

  const duration = ({seconds}) => (speed.value === "measured" ? seconds ?? FALLBACK : 1 / Number(speed.value));

  function pause() {
    if (!isPlaying) return;
    clearTimeout(timer);
    isPlaying = false;
    drawPlay();
    onPause();
  }

  function drawPlay() {
    play.querySelector("path").setAttribute("d", ICONS[isPlaying ? "pause" : "play"]);
    playName.textContent = isPlaying ? "Pause" : "Play";
  }

  function draw(grown) {
    trace = grown;
    const isTimed = trace.steps.some(({seconds}) => seconds !== null);
    speed.lastChild.textContent = SPEEDS.measured + (isTimed || last() < 0 ? "" : " (not recorded)");
    for (const control of bar.querySelectorAll("button, input")) control.disabled = last() < 0;
    range.max = Math.max(1, trace.steps.length);
    show(index);
  }

  function show(shown) {
    index = shown;
    const count = trace.steps.length;
    range.value = index === null ? range.max : index + 1;
    const text = index === null ? `${count} ${count === 1 ? "step" : "steps"}` : `step ${index + 1} of ${count}`;
    place.textContent = text;
    range.setAttribute("aria-valuetext", text);
  }

  drawPlay();
  return {draw, show, toggle, pause};
}

function addButton(bar, icon, title, onClick) {
  const button = add(bar, "button", "sv-button");
  button.type = "button";
  button.title = title;
  button.setAttribute("aria-label", title);
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(space, "path"));
  svg.firstChild.setAttribute("d", ICONS[icon]);
  button.append(svg);
  button.addEventListener("click", onClick);
  return button;
}
