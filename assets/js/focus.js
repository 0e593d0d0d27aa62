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

// A key that is held down must not press the button that the focus has gone to.
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.target.closest?.(BUTTONS)) event.preventDefault();
}, true);

// A list of choices that scrolls would take the focus of Tab, and lose it to nowhere as it closes.
document.addEventListener("focusin", ({target}) => {
  const list = target.role === "combobox" && document.getElementById(target.getAttribute("aria-controls"));
  if (list) list.tabIndex = -1;
});

// On a phone what a run shows lies below the settings, so whoever asks for one is taken there.
const NARROW = matchMedia("(max-width: 860px)");
document.addEventListener("click", (event) => {
  if (NARROW.matches && event.target.closest("#run, #step, #examples button")) {
    document.querySelector("#verdict").scrollIntoView({block: "start"});
  }
});

new MutationObserver(() => {
  const active = document.activeElement;
  const isLost = !active || active === document.body || active.disabled;
  if (!isLost || !last?.matches(BUTTONS)) return;
  const next = [pressed, "#stop"].map((name) => document.querySelector(name)).find((button) => button && !button.disabled);
  if (next) next.focus({preventScroll: true});
}).observe(document.body, {subtree: true, attributeFilter: ["disabled"]});
