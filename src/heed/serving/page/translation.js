/* The translation, each of its words a button: a single Tab stop; arrow keys move between words, Enter opens
   alternatives. A word is a {start, end, isWord} of splitWords in alignment.js. */

const pane = document.getElementById("translation");
let words = new Map(); // element: its word

/* pieces: of splitWords. language: its code. */
export function showTranslation(text, pieces, language) {
  const focused = wordElements().indexOf(document.activeElement);
  words = new Map();
  const parts = pieces.map((piece) => {
    const content = text.slice(piece.start, piece.end);
    if (!piece.isWord) return content;
    const element = document.createElement("span");
    element.className = "word";
    element.textContent = content;
    for (const [name, value] of Object.entries({ role: "button", tabindex: "-1", "aria-haspopup": "listbox" }))
      element.setAttribute(name, value);
    words.set(element, piece);
    return element;
  });
  pane.replaceChildren(...parts);
  pane.lang = language;
  wordElements()[0]?.setAttribute("tabindex", "0");
  if (focused >= 0) focusWord(Math.min(focused, words.size - 1));
}

export function showPlaceholder() {
  const placeholder = document.createElement("span");
  placeholder.className = "placeholder";
  placeholder.textContent = "The translation appears here";
  words = new Map();
  pane.removeAttribute("lang");
  pane.replaceChildren(placeholder);
}

export function focusWord(index) {
  const elements = wordElements();
  if (!elements[index]) return;
  for (const element of elements) element.setAttribute("tabindex", element === elements[index] ? "0" : "-1");
  elements[index].focus();
}

function wordElements() {
  return [...words.keys()];
}

/* onHover: called with a word, or null when none is hovered or focused. onOpen: with a word, its element and index. */
export function initTranslation(onHover, onOpen) {
  const wordOf = (event) => words.get(event.target) ?? null;
  const open = (event) => onOpen(wordOf(event), event.target, wordElements().indexOf(event.target));
  for (const name of ["pointerover", "focusin"]) pane.addEventListener(name, (event) => onHover(wordOf(event)));
  pane.addEventListener("pointerleave", () => onHover(words.get(document.activeElement) ?? null));
  pane.addEventListener("focusout", () => onHover(null));
  pane.addEventListener("click", (event) => {
    if (!wordOf(event) || !window.getSelection().isCollapsed) return; // the user is selecting text
    focusWord(wordElements().indexOf(event.target));
    open(event);
  });
  pane.addEventListener("keydown", (event) => {
    if (!wordOf(event)) return;
    const [index, last] = [wordElements().indexOf(event.target), words.size - 1];
    const forward = getComputedStyle(pane).direction === "rtl" ? -1 : 1;
    const next = { ArrowRight: index + forward, ArrowLeft: index - forward, Home: 0, End: last }[event.key];
    if (next !== undefined) focusWord(Math.max(0, Math.min(last, next)));
    else if (event.key === "Enter" || event.key === " ") open(event);
    else return;
    event.preventDefault();
  });
}
