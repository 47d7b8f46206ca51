/* The text to be translated: how long it is, and marks under its words. */

const LONG = 240; // characters from which on letters are smaller

const area = document.getElementById("text");
const mirror = document.getElementById("mirror");
const desk = document.getElementById("desk");
let limit = null;

export function text() {
  return area.value.toWellFormed?.() ?? area.value; // half a character cannot be sent
}

/* Counted as the server counts: in code points. */
function size() {
  let count = 0;
  for (const _ of area.value) count++;
  return count;
}

export function isTooLong() {
  return limit !== null && size() > limit;
}

export function setLimit(most) {
  limit = most;
  settle();
}

export function setText(value) {
  area.value = value;
  settle();
  area.focus();
}

export function caret() {
  return area.selectionStart;
}

/* Light up stretches of the text, [[start, end], …] in order. */
export function mark(spans) {
  const parts = [];
  let place = 0;
  for (const [start, end] of spans) {
    const marked = document.createElement("mark");
    marked.textContent = area.value.slice(start, end);
    parts.push(area.value.slice(place, start), marked);
    place = end;
  }
  mirror.replaceChildren(...parts, `${area.value.slice(place)}\u200b`); // so that a last, empty line has its height
}

function settle() {
  mark([]);
  const count = size().toLocaleString("en");
  document.getElementById("count").textContent = limit === null ? count : `${count} / ${limit.toLocaleString("en")}`;
  document.getElementById("clear").hidden = !area.value;
  desk.classList.toggle("over", isTooLong());
  desk.classList.toggle("long", area.value.length > LONG);
  area.setAttribute("aria-invalid", String(isTooLong()));
}

/* Calls back with whether letters are being typed, one by one, so that more are to be expected. */
export function startSource(onChange) {
  area.addEventListener("input", (event) => {
    settle();
    onChange(/^(insertText|insertComposition|delete)/u.test(event.inputType ?? ""));
  });
  document.getElementById("clear").addEventListener("click", () => {
    setText("");
    onChange(false);
  });
  settle();
}
