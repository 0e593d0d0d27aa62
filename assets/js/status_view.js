// Shows the state of the model in one line: on its way, ready, or not to be had.
//
//   const view = mount(element);
//   view.update(json);
//
// `json` is {"state": "loading" | "ready" | "failed", "text", "fraction": 0 to 1 or null, "detail"}; `fraction` counts
// only while loading, null where nobody knows. "" leaves the element empty. A new text is said aloud, a new fraction or
// detail is not. Text only ever becomes text nodes.

import {add} from "./dom.js";

const SIGNS = {ready: "✓", failed: "✗"};

export function mount(element) {
  element.classList.add("sv-model");
  element.setAttribute("aria-live", "polite");
  let line = null;

  function update(json) {
    const value = json ? JSON.parse(json) : null;
    if (value?.state !== line?.state) {
      element.replaceChildren();
      line = value && drawLine(element, value.state);
    }
    line?.write(value);
  }

  return {update};
}

function drawLine(element, state) {
  const box = add(element, "div", `sv-model-line sv-model-${state}`);
  if (SIGNS[state]) add(box, "span", "sv-mark", `${SIGNS[state]} `).setAttribute("aria-hidden", "true");
  const sentence = add(box, "span", "sv-model-text");
  if (state === "failed") sentence.setAttribute("role", "alert");
  const bar = state === "loading" ? drawBar(box) : null;
  const detail = add(box, "span", "sv-model-detail");
  detail.setAttribute("aria-live", "off");

  function write(value) {
    if (sentence.textContent !== value.text) sentence.textContent = value.text;
    const more = value.detail ? (state === "ready" ? " · " : " ") + value.detail : "";
    if (detail.textContent !== more) detail.textContent = more;
    bar?.(value);
  }
  return {state, write};
}

function drawBar(box) {
  const bar = add(box, "progress", "sv-model-bar");
  const share = add(box, "span", "sv-model-share");
  share.setAttribute("aria-hidden", "true"); // the bar says it

  return ({fraction, text}) => {
    bar.setAttribute("aria-label", text);
    if (typeof fraction === "number") bar.value = Math.min(1, Math.max(0, fraction));
    else bar.removeAttribute("value");
    share.textContent = typeof fraction === "number" ? `${Math.floor(100 * bar.value)} %` : "";
  };
}
