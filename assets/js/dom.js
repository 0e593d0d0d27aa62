// Makes an element: its text only ever becomes a text node.

export function add(parent, tag, className = "", text = "") {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  parent.append(child);
  return child;
}
