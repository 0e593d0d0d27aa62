// Run and Stop turn each other off, and a button that is turned off loses the keyboard's focus to nowhere. So whoever
// had it on one of the two gets it on the one that works. Runs once, as it stands.

const pair = () => [...document.querySelectorAll("#run, #stop")];
let last = null; // the element that had the focus last, null after a click elsewhere

document.addEventListener("focusin", (event) => { last = event.target; });
document.addEventListener("pointerdown", (event) => { last = event.target.closest("#run, #stop"); });

new MutationObserver(() => {
  const active = document.activeElement;
  const isLost = !active || active === document.body || active.disabled;
  const next = pair().find((button) => !button.disabled);
  if (isLost && last && next && pair().includes(last)) next.focus({preventScroll: true});
}).observe(document.body, {subtree: true, attributeFilter: ["disabled"]});
