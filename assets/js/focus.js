// Run and Step turn Stop on and themselves off, and a button that is turned off loses the keyboard's focus to nowhere. So
// whoever had it on one of them gets it on Stop, and afterwards back on the one that was pressed. Runs once, as it stands.

const BUTTONS = "#run, #step, #stop";
let last = null; // the element that had the focus last, null after a click elsewhere
let pressed = "#run"; // the one that was pressed last

document.addEventListener("focusin", (event) => { last = event.target; });
document.addEventListener("pointerdown", (event) => { last = event.target.closest(BUTTONS); });
document.addEventListener("click", (event) => {
  const button = event.target.closest("#run, #step");
  if (button) pressed = `#${button.id}`;
});

new MutationObserver(() => {
  const active = document.activeElement;
  const isLost = !active || active === document.body || active.disabled;
  if (!isLost || !last?.matches(BUTTONS)) return;
  const next = [pressed, "#stop"].map((name) => document.querySelector(name)).find((button) => button && !button.disabled);
  if (next) next.focus({preventScroll: true});
}).observe(document.body, {subtree: true, attributeFilter: ["disabled"]});
