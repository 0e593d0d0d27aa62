// Plays a span of measured time: Play and Pause, back to the start, a slider over the time, and how fast.
//
//   const {pause} = drawPlayer(parent, {end, stops, clock, drawScale, draw});
//
// `end`: seconds at which it is over, and where it stands at first; `stops`: ascending times to which the arrow keys
// move the slider; `clock` writes seconds; `drawScale(parent)` adds the slider's scale below it; `draw(seconds)` shows
// a moment. Frames are asked for only while it plays, and it pauses when the page is hidden.

import {add} from "./dom.js";

const SPEEDS = [["real time", 1], ["¼", 1 / 4], ["1/10", 1 / 10]];
const SHORT_S = 2; // what is over sooner plays at a quarter of its speed, unless asked otherwise
const NOTCHES = 10000; // of the slider
const NEAREST = 1 / 200; // of the time: how far the arrow keys go at least
const PAGE = 1 / 10; // of the time

export function drawPlayer(parent, {end, stops, clock, drawScale, draw}) {
  const slider = drawSlider(parent);
  drawScale(parent);
  const controls = add(parent, "div", "sv-race-player");
  const button = addButton(controls, "sv-race-play", "Play");
  const rewind = addButton(controls, "sv-race-rewind", "");
  rewind.setAttribute("aria-label", "To the start");
  rewind.title = "To the start";
  const reading = add(controls, "span", "sv-race-player-time");

  let speed = end < SHORT_S ? 1 / 4 : 1;
  let time = end;
  let frame = null; // the animation frame asked for while it plays
  let began; // {time, clock}: the moment shown when it was set going, and when that was, in milliseconds

  function show(seconds) {
    time = Math.min(end, Math.max(0, seconds));
    slider.value = Math.round((NOTCHES * time) / end);
    reading.textContent = `${clock(time).replace(" s", "")} of ${clock(end)}`;
    // A slider that says every frame aloud would drown all else.
    if (frame === null) slider.setAttribute("aria-valuetext", `${clock(time)} of ${clock(end)}`);
    draw(time);
  }

  function start() {
    began = {time, clock: performance.now()};
  }

  function advance(now) {
    if (!slider.isConnected) return pause();
    const passed = Math.max(0, now - began.clock) / 1000;
    frame = requestAnimationFrame(advance);
    show(began.time + passed * speed);
    if (time >= end) pause();
  }

  function play() {
    if (time >= end) show(0);
    start();
    frame = requestAnimationFrame(advance);
    document.addEventListener("visibilitychange", pause);
    name(true);
  }

  function pause() {
    if (frame === null) return;
    cancelAnimationFrame(frame);
    frame = null;
    document.removeEventListener("visibilitychange", pause);
    name(false);
    show(time);
  }

  function name(isPlaying) {
    button.textContent = isPlaying ? "Pause" : "Play";
    button.classList.toggle("sv-race-playing", isPlaying);
  }

  function seek(seconds) {
    pause();
    show(seconds);
  }

  button.addEventListener("click", () => (frame === null ? play() : pause()));
  rewind.addEventListener("click", () => {
    show(0);
    start();
  });
  slider.addEventListener("input", () => seek((end * slider.value) / NOTCHES));
  slider.addEventListener("keydown", (event) => {
    const target = keyTarget(event.key, time, end, stops);
    if (target === null) return;
    event.preventDefault();
    seek(target);
  });
  drawSpeeds(controls, speed, (next) => {
    speed = next;
    start();
  });
  show(end);
  return {pause};
}

// The moment to which a key leads, null if it is none of the slider's. Arrows go from pass to pass.
function keyTarget(key, time, end, stops) {
  const nearest = NEAREST * end;
  switch (key) {
    case "ArrowRight":
    case "ArrowUp":
      return stops.find((stop) => stop > time + nearest) ?? end;
    case "ArrowLeft":
    case "ArrowDown":
      return stops.findLast((stop) => stop < time - nearest) ?? 0;
    case "PageUp":
      return time + PAGE * end;
    case "PageDown":
      return time - PAGE * end;
    case "Home":
      return 0;
    case "End":
      return end;
    default:
      return null;
  }
}

function drawSlider(parent) {
  const slider = add(parent, "input", "sv-race-player-slider");
  slider.type = "range";
  slider.max = NOTCHES;
  slider.setAttribute("aria-label", "Time of the race");
  return slider;
}

function addButton(parent, className, text) {
  const button = add(parent, "button", className, text);
  button.type = "button";
  return button;
}

function drawSpeeds(parent, chosen, choose) {
  const group = add(parent, "div", "sv-race-speeds");
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", "Speed of the replay");
  const name = `sv-race-speed-${Math.random().toString(36).slice(2)}`;
  for (const [label, speed] of SPEEDS) {
    const choice = add(group, "label");
    const radio = add(choice, "input");
    radio.type = "radio";
    radio.name = name;
    radio.checked = speed === chosen;
    radio.addEventListener("change", () => choose(speed));
    add(choice, "span", "", label);
  }
}
