/* The translation as focusable words: a single Tab stop; arrow keys move between words, Enter opens alternatives. */

const pane = document.getElementById("translation");
let pieces = new Map(); // element of a word: its piece

export function showTranslation(text, segments, language) {
  const at = terms().indexOf(document.activeElement);
  pieces = new Map();
  const parts = segments.map((piece) => {
    const word = text.slice(piece.start, piece.end);
    if (!piece.isWord) return word;
    const term = document.createElement("span");
    term.className = "term";
    term.textContent = word;
    for (const [name, value] of Object.entries({ role: "button", tabindex: "-1", "aria-haspopup": "listbox" }))
      term.setAttribute(name, value);
    pieces.set(term, piece);
    return term;
  });
  pane.replaceChildren(...parts);
  pane.lang = language;
  terms()[0]?.setAttribute("tabindex", "0");
  if (at >= 0) focusTerm(Math.min(at, pieces.size - 1));
}

export function showNoTranslation() {
  const placeholder = document.createElement("span");
  placeholder.className = "empty";
  placeholder.textContent = "The translation appears here";
  pieces = new Map();
  pane.removeAttribute("lang");
  pane.replaceChildren(placeholder);
}

export function focusTerm(number) {
  const all = terms();
  if (!all[number]) return;
  for (const term of all) term.setAttribute("tabindex", term === all[number] ? "0" : "-1");
  all[number].focus();
}

function terms() {
  return [...pieces.keys()];
}

/* onPoint: with a piece, or null when none is pointed at any more. onOpen: with a piece, its element and its number. */
export function startTranslation(onPoint, onOpen) {
  const pieceOf = (event) => pieces.get(event.target) ?? null;
  const open = (event) => onOpen(pieceOf(event), event.target, terms().indexOf(event.target));
  for (const name of ["pointerover", "focusin"]) pane.addEventListener(name, (event) => onPoint(pieceOf(event)));
  pane.addEventListener("pointerleave", () => onPoint(pieces.get(document.activeElement) ?? null));
  pane.addEventListener("focusout", () => onPoint(null));
  pane.addEventListener("click", (event) => {
    if (!pieceOf(event) || !window.getSelection().isCollapsed) return; // the user is selecting text
    focusTerm(terms().indexOf(event.target));
    open(event);
  });
  pane.addEventListener("keydown", (event) => {
    if (!pieceOf(event)) return;
    const [at, last] = [terms().indexOf(event.target), pieces.size - 1];
    const forward = getComputedStyle(pane).direction === "rtl" ? -1 : 1;
    const next = { ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: last }[event.key];
    if (next !== undefined) focusTerm(Math.max(0, Math.min(last, next)));
    else if (event.key === "Enter" || event.key === " ") open(event);
    else return;
    event.preventDefault();
  });
}
