/* Tokens, numbers and formulas as text that can be shown. */

/* Control, format and private characters, and line and paragraph separators, as ⏎, ⇥ or ‹code point›. */
function visibleCharacter(character) {
  const symbols = { "\n": "⏎", "\t": "⇥" };
  return symbols[character] ?? `‹${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
}

/* A text, with a visible symbol for every invisible character. */
function visibleText(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, visibleCharacter);
}

/* The label of a token: without its leading space, with a visible symbol for every invisible character and space. */
function tokenLabel(token) {
  const text = /^ \S/u.test(token) ? token.slice(1) : token;
  const visible = visibleText(text).replace(/\p{Zs}/gu, "␣");
  return (/^\p{M}/u.test(visible) ? "◌" : "") + visible || "∅";
}

function tokenElement(token) {
  return make("bdi", {}, tokenLabel(token));
}

/* The label in plain text, as for an aria-label, between Unicode bidi isolates. */
function isolatedLabel(token) {
  return `\u2068${tokenLabel(token)}\u2069`;
}

function formatNumber(value, digits = 3) {
  if (value === 0 || Object.is(value, -0)) return "0";
  const size = Math.abs(value);
  const text = size >= 1000 ? size.toFixed(0) : size >= 0.001 ? size.toPrecision(digits) : size.toExponential(1);
  return (value < 0 ? "−" : "") + text;
}

/* fraction: from 0 to 1. */
function formatPercent(fraction) {
  if (fraction < 0.0005) return fraction > 0 ? "<0.1%" : "0%";
  return fraction > 0.9995 ? "100%" : `${(100 * fraction).toFixed(fraction < 0.0995 ? 1 : 0)}%`;
}

function capitalize(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/* Text and elements in which x_i, x_{ij} and x^i have become subscripts and superscripts. */
function withSubscripts(text) {
  return text.split(/([_^]\{[^}]*\}|[_^].)/u).map((piece) => {
    const match = /^([_^])\{?([^}]*)\}?$/u.exec(piece);
    return match ? make(match[1] === "_" ? "sub" : "sup", {}, match[2]) : piece;
  });
}

function formula(text) {
  return make("p", { class: "formula" }, withSubscripts(text));
}
