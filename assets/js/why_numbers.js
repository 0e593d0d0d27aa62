// Writes probabilities. What rounds to 0 or 1 without being it says so: "<0.1 %", ">0.99".

const SPACE = "\u00a0"; // does not break

// A share of 1 in percent, for tables: one decimal. null: not recorded.
export function percent(share) {
  if (share === null) return "–";
  return `${bounded(share, 100, 1)}${SPACE}%`;
}

// The same for a sentence: no decimal where it would say little, and signs as words.
export function percentInWords(share) {
  const digits = share >= 0.0995 && share < 0.99 ? 0 : 1;
  return inWords(`${bounded(share, 100, digits).replace(/\.0$/, "")}${SPACE}%`);
}

// A limit that a share of 1 is not above, in percent, never rounded down.
export function percentAtMost(limit) {
  return limit === 0 ? percent(0) : `≤${(Math.ceil(limit * 1000) / 10).toFixed(1)}${SPACE}%`;
}

// Two probabilities that are compared with each other: as many decimals as it takes to tell them apart, at least 2.
export function decimals(first, second) {
  return apart(first, second, 1, 2);
}

// The same in percent.
export function percents(first, second) {
  return apart(first, second, 100, 1).map((number) => `${number}${SPACE}%`);
}

export function decimal(probability) {
  return bounded(probability, 1, 2);
}

// Logits or nats.
export function quantity(value) {
  return value > 0 && value < 0.005 ? "<0.01" : value.toFixed(2);
}

// "x = 0.10", "x < 0.01"
export function equation(name, number) {
  return /^[<>]/.test(number) ? `${name} ${number[0]} ${number.slice(1)}` : `${name} = ${number}`;
}

export function inWords(number) {
  return number.replace("<", "less than ").replace(">", "more than ");
}

export function count(whole) {
  return whole.toLocaleString("en");
}

// Both written with `least` decimals, or with as many as it takes to tell them apart, up to 7 more.
function apart(first, second, scale, least) {
  const written = (more) => [first, second].map((value) => bounded(value, scale, least + more));
  const isEnough = (more) => new Set(written(more)).size > 1;
  return written([0, 1, 2, 3, 4, 5, 6].find(isEnough) ?? 7);
}

// value in [0, 1] times `scale`, rounded to `digits` decimals.
function bounded(value, scale, digits) {
  if (value <= 0) return "0";
  if (value >= 1) return String(scale);
  const unit = 10 ** -digits; // the smallest value that can be written
  const text = (value * scale).toFixed(digits);
  if (Number(text) === 0) return `<${unit.toFixed(digits)}`;
  if (Number(text) === scale) return `>${(scale - unit).toFixed(digits)}`;
  return text;
}
