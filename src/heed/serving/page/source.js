/* The source text field: character count, limit, and highlights under its words. */

const LONG = 240; // characters; longer texts get a smaller font

const area = document.getElementById("text");
const mirror = document.getElementById("mirror");
const desk = document.getElementById("desk");
let limit = null;

export function text() {
  return area.value.toWellFormed?.() ?? area.value; // lone surrogates cannot be sent
}

/* Length in code points, as the server counts. */
function size() {
  let count = 0;
  for (const _ of area.value) count++;
  return count;
}

export function isTooLong() {
  return limit !== null && size() > limit;
}

export function setLimit(maximum) {
  limit = maximum;
  update();
}

export function setText(value) {
  area.value = value;
  update();
  area.focus();
}

export function caret() {
  return area.selectionStart;
}

/* Highlight spans of the text, [[start, end], …] in order. */
export function mark(spans) {
  const parts = [];
  let offset = 0;
  for (const [start, end] of spans) {
    const marked = document.createElement("mark");
    marked.textContent = area.value.slice(start, end);
    parts.push(area.value.slice(offset, start), marked);
    offset = end;
  }
  mirror.replaceChildren(...parts, `${area.value.slice(offset)}\u200b`); // gives a last, empty line its height
}

function update() {
  mark([]);
  const count = size().toLocaleString("en");
  document.getElementById("count").textContent = limit === null ? count : `${count} / ${limit.toLocaleString("en")}`;
  document.getElementById("clear").hidden = !area.value;
  desk.classList.toggle("over", isTooLong());
  desk.classList.toggle("long", area.value.length > LONG);
  area.setAttribute("aria-invalid", String(isTooLong()));
}

/* onChange is called with true while the user is typing, so that more input is expected. */
export function startSource(onChange) {
  area.addEventListener("input", (event) => {
    update();
    onChange(/^(insertText|insertComposition|delete)/u.test(event.inputType ?? ""));
  });
  document.getElementById("clear").addEventListener("click", () => {
    setText("");
    onChange(false);
  });
  update();
}
