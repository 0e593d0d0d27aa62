// Draws a run as flowing text: who wrote each token, what was struck out, where one verify pass ends.
//
//   const flow = mount(element, onSelect);
//   flow.clear();                     // another run begins
//   flow.draw(trace);                 // the steps that are not drawn yet, see trace.js
//   flow.select(selection, {scroll}); // marks a token and its step, or with null nothing; scroll: brings it into view
//   flow.reveal(count);               // dims all but the first `count` steps
//   flow.hide(isHiding);              // leaves rejected tokens out of view, from now on and in the runs to come
//
// `onSelect(selection)` tells what the reader picks, by pointer or keyboard; `flow.pane` is the element that scrolls.
// The text is one tab stop: arrows move between tokens and steps, Home and End to the ends. Text only ever becomes text
// nodes. What is copied is the output, neither signs nor what was rejected.

import {add} from "./dom.js";
import {pieces, quoted, segments, sentence, telling} from "./trace.js";

const DRAG = 5; // pixels; a pointer that moves further selects text
const isKept = (kind) => kind !== "rejected" && kind !== "cut";

export function mount(element, onSelect) {
  const pane = add(element, "div", "sv-flow");
  pane.setAttribute("aria-label", "The text, a group per verify pass");
  pane.dir = "ltr";
  let trace, groups, tokens, places, waiting, tabStop, selected, marked, shown;
  let isHiding = false;

  function clear() {
    trace = {steps: []};
    groups = []; // the element of each step
    tokens = []; // {element, step, node, kind} in reading order
    places = new Map(); // "step:node" -> index of the token that shows it
    waiting = []; // kept tokens of a character that is not complete yet
    tabStop = -1; // index of a token
    selected = null;
    marked = []; // elements that show what is selected
    shown = Infinity; // how many steps are not dimmed
    pane.replaceChildren();
    pane.removeAttribute("role"); // a listbox must hold something
  }

  function draw(grown) {
    trace = grown;
    while (groups.length < trace.steps.length) drawStep(groups.length);
    if (!tokens.length) return;
    pane.setAttribute("role", "listbox");
    if (tabStop < 0) keepTabStopInView();
    if (marked.length === 1 && shownBy(selected)) select(selected); // it has waited for the rest of its character
  }

  function drawStep(index) {
    const step = trace.steps[index];
    const isNewLine = !index || lastKept()?.element.textContent.endsWith("\n");
    // Blocks of their own, so that what is added moves no more than the lines since the last one that ended.
    if (isNewLine) add(pane, "div", "sv-paragraph");
    const group = add(pane.lastChild, "span", "sv-step");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", sentence(trace, index));
    group.classList.toggle("sv-later", index >= shown);
    groups.push(group);
    for (const piece of pieces(step)) drawPiece(group, {step: index, ...piece});
    if (step.cut === "stop_token") lastKept()?.element.classList.add("sv-stop");
  }

  const lastKept = () => tokens.findLast(({kind}) => isKept(kind));

  function drawPiece(group, piece) {
    const {text, kind, step, node, isSibling} = piece;
    const members = isKept(kind) ? [...waiting, piece] : [piece];
    if (isKept(kind)) waiting = text ? [] : members;
    if (!text && isKept(kind)) return;
    const token = drawToken(group, text, kind);
    if (isSibling) token.classList.add("sv-sibling");
    token.setAttribute("role", "option");
    token.setAttribute("aria-selected", "false");
    token.setAttribute("aria-label", `${quoted(text)}, ${kind}`);
    token.dataset.place = tokens.length;
    if (members.length > 1) {
      token.dataset.parts = members.length;
      token.title = `${members.length} tokens make this one character: ${members.map((each) => each.kind).join(", ")}`;
    }
    for (const each of members) places.set(`${each.step}:${each.node}`, tokens.length);
    tokens.push({element: token, step, node, kind});
  }

  function select(selection, {scroll = false} = {}) {
    for (const element of marked) element.classList.remove("sv-current", "sv-selected");
    marked.at(1)?.setAttribute("aria-selected", "false");
    selected = selection;
    marked = [];
    const group = selection && groups[selection.step];
    if (!group) return;
    group.classList.add("sv-current");
    const token = shownBy(selection);
    marked = token ? [group, token] : [group];
    token?.classList.add("sv-selected");
    token?.setAttribute("aria-selected", "true");
    const place = isShown(placeOf(selection)) ? placeOf(selection) : firstShown(selection.step);
    const target = tokens[place]?.element;
    if (target) moveTabStop(place);
    if (target === document.activeElement) target.scrollIntoView({block: "nearest"});
    else if (scroll && target) scrollWithin(pane, target);
  }

  // Index of the token that shows a selection, -1 if none does.
  const placeOf = ({step, node}) => places.get(`${step}:${node}`) ?? -1;
  const shownBy = (selection) => tokens[placeOf(selection)]?.element;
  const isShown = (place) => place in tokens && !(isHiding && tokens[place].kind === "rejected");

  // The first token in view of a step, -1 if there is none.
  const firstShown = (index) => tokens.findIndex(({step}, place) => step === index && isShown(place));

  // The first token in view from `place` on, forwards (1) or back (-1); undefined if there is none.
  function seek(place, change) {
    while (place in tokens && !isShown(place)) place += change;
    return place in tokens ? place : undefined;
  }

  function hide(isWanted) {
    isHiding = isWanted;
    pane.classList.toggle("sv-hiding", isHiding);
    if (tokens.length) keepTabStopInView();
  }

  function keepTabStopInView() {
    const from = Math.max(0, tabStop);
    const place = seek(from, 1) ?? seek(from, -1);
    if (place !== undefined) moveTabStop(place);
  }

  function moveTabStop(place) {
    const hadFocus = pane.contains(document.activeElement);
    const before = tokens[tabStop]?.element;
    tabStop = place;
    const {element} = tokens[place];
    if (element === before) return;
    element.tabIndex = 0;
    if (hadFocus) element.focus({preventScroll: true});
    before?.removeAttribute("tabindex");
  }

  function reveal(count) {
    const from = Math.min(shown, count);
    groups.slice(from).forEach((group, index) => group.classList.toggle("sv-later", from + index >= count));
    shown = count;
  }

  function pick(place) {
    const {step, node} = tokens[place];
    onSelect({step, node});
  }

  const pickNext = (from, change) => pick(seek(from, change) ?? tabStop);

  function pickStep(change) {
    const step = Math.max(0, Math.min(groups.length - 1, (selected || tokens[tabStop]).step + change));
    const told = telling(trace, step);
    const isHidden = shownBy(told) && !isShown(placeOf(told));
    const instead = isHidden ? firstShown(step) : -1;
    if (instead < 0) onSelect(told);
    else pick(instead);
  }

  const keys = {
    ArrowLeft: () => pickNext(tabStop - 1, -1),
    ArrowRight: () => pickNext(tabStop + 1, 1),
    ArrowUp: () => pickStep(-1),
    ArrowDown: () => pickStep(1),
    PageUp: () => pickStep(-1),
    PageDown: () => pickStep(1),
    Home: () => pickNext(0, 1),
    End: () => pickNext(tokens.length - 1, -1),
    Enter: () => pick(tabStop),
  };
  pane.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || tabStop < 0) return;
    event.preventDefault();
    keys[event.key]();
  });

  let pressed = null; // where the pointer went down
  pane.addEventListener("pointerdown", ({clientX, clientY}) => { pressed = {clientX, clientY}; });
  pane.addEventListener("click", ({target, clientX, clientY}) => {
    const token = target.closest(".sv-token");
    const isDrag = pressed && Math.hypot(clientX - pressed.clientX, clientY - pressed.clientY) > DRAG;
    if (!token || isDrag) return;
    pick(Number(token.dataset.place));
    token.focus({preventScroll: true}); // so that the arrows go on from here
  });
  pane.addEventListener("pointerover", ({target}) => {
    const group = target.closest(".sv-step");
    if (group) group.title = group.getAttribute("aria-label");
  });

  clear();
  return {pane, clear, draw, select, reveal, hide};
}

// One token: its kind's colour and shape lie under the text alone. The spaces around a word stay plain, so that no line
// ends in a coloured blank, and so does the end of a line, whose colour would begin the next one. Signs are generated
// content, so what is copied is the text itself.
export function drawToken(parent, text, kind) {
  const token = add(parent, kind === "rejected" ? "del" : "span", `sv-token sv-${kind}`);
  const isSeen = segments(text).some(({sign}) => !sign);
  const [, lead, core, tail] = isSeen ? /^( *)(.*?)( *)$/s.exec(text) : ["", "", text, ""];
  if (lead && token === parent.firstChild) add(token, "span", "sv-lead", lead); // a step's mark begins after it
  else token.append(lead);
  let body = null;
  for (const {text: part, sign} of segments(core)) {
    body ??= add(token, "span", "sv-body");
    if (!sign) {
      body.append(part);
    } else if (part === "\n") {
      add(body, "span", "sv-sign").dataset.sign = sign;
      token.append(part);
      body = null;
    } else {
      add(body, "span", "sv-sign", part).dataset.sign = sign;
    }
  }
  if (tail) token.append(tail);
  return token;
}

// Scrolls the pane alone, never the page.
function scrollWithin(pane, element) {
  const [frame, box] = [pane.getBoundingClientRect(), element.getBoundingClientRect()];
  const margin = box.height;
  if (box.top < frame.top) pane.scrollTop -= frame.top - box.top + margin;
  else if (box.bottom > frame.bottom) pane.scrollTop += box.bottom - frame.bottom + margin;
}
