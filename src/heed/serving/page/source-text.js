/* The source text field: its character count and limit, and the highlights drawn under its words. */

const LONG_TEXT = 240; // characters; longer texts get a smaller font

const field = document.getElementById("text");
const highlights = document.getElementById("highlights"); // an invisible copy of the text under the field
const panes = document.getElementById("panes");
let limit = null; // characters

export function sourceText() {
  return field.value.toWellFormed?.() ?? field.value; // lone surrogates cannot be sent
}

/* Length in code points, as the server counts. */
function characterCount() {
  let count = 0;
  for (const _ of field.value) count++;
  return count;
}

export function isTooLong() {
  return limit !== null && characterCount() > limit;
}

export function setCharacterLimit(maximum) {
  limit = maximum;
  update();
}

export function setSourceText(value) {
  field.value = value;
  update();
  field.focus();
}

export function caretOffset() {
  return field.selectionStart;
}

/* Highlight spans of the text: [[start, end], …], in order; [] removes all highlights. */
export function highlightSource(spans) {
  const parts = [];
  let offset = 0;
  for (const [start, end] of spans) {
    const mark = document.createElement("mark");
    mark.textContent = field.value.slice(start, end);
    parts.push(field.value.slice(offset, start), mark);
    offset = end;
  }
  highlights.replaceChildren(...parts, `${field.value.slice(offset)}\u200b`); // gives a last, empty line its height
}

function update() {
  highlightSource([]);
  const count = characterCount().toLocaleString("en");
  const countAndLimit = limit === null ? count : `${count} / ${limit.toLocaleString("en")}`;
  document.getElementById("character-count").textContent = countAndLimit;
  document.getElementById("clear").hidden = !field.value;
  panes.classList.toggle("too-long", isTooLong());
  panes.classList.toggle("long-text", field.value.length > LONG_TEXT);
  field.setAttribute("aria-invalid", String(isTooLong()));
}

/* onChange: called with true while the user is typing, so that more input is expected, else with false. */
export function initSourceText(onChange) {
  field.addEventListener("input", (event) => {
    update();
    onChange(/^(insertText|insertComposition|delete)/u.test(event.inputType ?? ""));
  });
  document.getElementById("clear").addEventListener("click", () => {
    setSourceText("");
    onChange(false);
  });
  update();
}
