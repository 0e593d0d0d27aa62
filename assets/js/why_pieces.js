// Small parts of sentences. Pieces are strings, and {token, text} for a token to be quoted.

export const UNRECORDED = "not recorded in this trace";

export const capitalised = ([first, ...others]) =>
  typeof first === "string" ? [first[0].toUpperCase() + first.slice(1), ...others] : [first, ...others];

export const were = (nodes) => (nodes.length === 1 ? "was" : "were");

export const listed = (nodes) => nodes.flatMap((node, index) => {
  if (index === 0) return [node];
  return [index === nodes.length - 1 ? " and " : ", ", node];
});
