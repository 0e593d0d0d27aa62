// Writes token texts: what can't be seen gets a sign, and what is long is cut. Text only ever becomes text nodes.
//
//   addToken(parent, {token, text}, className = "") -> the element
//   addPieces(parent, pieces)   pieces: strings, and {token, text}, which come in quotation marks
//   spoken({token, text})       for names that are only heard

import {add} from "./dom.js";

const LONGEST = 24; // characters
const SIGNS = {
  " ": ["␣", "space"],
  "\n": ["⏎", "new line"],
  "\t": ["⇥", "tab"],
  "\r": ["␍", "carriage return"],
};
const JOINER = "\u200d"; // holds the parts of an emoji together

export function addToken(parent, subject, className = "") {
  const element = add(parent, "bdi", `sv-why-token ${className}`);
  const {parts, isCut} = spell(subject);
  for (const {shown, name} of parts) {
    if (name === undefined) {
      element.append(shown);
      continue;
    }
    const sign = add(element, "span", "sv-why-sign", shown);
    if (name === "") {
      sign.setAttribute("aria-hidden", "true");
    } else {
      sign.setAttribute("role", "img");
      sign.setAttribute("aria-label", name);
    }
  }
  if (isCut) element.title = subject.text;
  return element;
}

export function addPieces(parent, pieces) {
  for (const piece of pieces) {
    if (typeof piece === "string") {
      parent.append(piece);
    } else {
      const quotation = add(parent, "span", "sv-why-quotation", "“");
      addToken(quotation, piece);
      quotation.append("”");
    }
  }
}

export function spoken(subject) {
  return spell(subject).parts.map(({shown, name}) => name ?? shown).join(" ").trim();
}

const isName = (text) => /^⟨[\dA-F ]+⟩$/.test(text); // how traces spell bytes and ids that are no text

// Parts {shown, name}: `name` is how a sign is read out, "" if it is not, and undefined for plain text.
function spell({token, text}) {
  if (text === "") return spell({token, text: `⟨${token}⟩`});
  if (isName(text)) return {parts: [{shown: text}], isCut: false};
  const letters = [...text];
  const parts = [];
  let room = LONGEST;
  let index = 0;
  while (index < letters.length && room > 0) {
    const end = runEnd(letters, index);
    const part = isUnseen(letters, index)
      ? signPart(letters[index], end - index)
      : {shown: letters.slice(index, Math.min(end, index + room)).join("")};
    parts.push(part);
    index += part.name ? end - index : [...part.shown].length;
    room -= [...part.shown].length;
  }
  if (parts[0].name === "space" && parts.length > 1) parts[0].name = ""; // most words begin with one
  if (/^\p{M}/u.test(parts[0].shown)) parts[0].shown = `◌${parts[0].shown}`;
  const isCut = index < letters.length;
  if (isCut) parts.push({shown: "…"});
  return {parts, isCut};
}

// The end of the run that begins at `start`: one sign again and again, or letters that can be seen.
function runEnd(letters, start) {
  const goesOn = (letter, index) =>
    isUnseen(letters, start) ? letter === letters[start] : !isUnseen(letters, index);
  const end = letters.findIndex((letter, index) => index > start && !goesOn(letter, index));
  return end === -1 ? letters.length : end;
}

function isUnseen(letters, index) {
  const isInEmoji = letters[index] === JOINER && index > 0 && index < letters.length - 1;
  return !isInEmoji && /^[\p{Z}\p{C}]$/u.test(letters[index]);
}

function signPart(letter, length) {
  const code = `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  const [sign, name] = SIGNS[letter] ?? [`⟨${code}⟩`, code];
  if (length === 1) return {shown: sign, name};
  return {shown: length <= 4 ? sign.repeat(length) : `${sign}×${length}`, name: `${length} times ${name}`};
}
