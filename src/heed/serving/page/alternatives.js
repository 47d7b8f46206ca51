/* The popover with alternatives for a word of the translation: a listbox for arrow keys and Enter, or a click; Escape
   closes it. */

const popover = document.getElementById("alternatives");
const listbox = document.getElementById("alternatives-list");
let anchor = null; // the element of the word that the popover belongs to

/* alternatives: [{next, rest, isCurrent}], the next word and the text after it. onSelect: called with an index. */
export function showAlternatives(word, title, alternatives, onSelect) {
  hideAlternatives();
  anchor = word;
  document.getElementById("alternatives-title").textContent = title;
  listbox.replaceChildren(
    ...alternatives.map((alternative, index) => {
      const option = document.createElement("li");
      const attributes = { role: "option", tabindex: "-1", "aria-selected": alternative.isCurrent };
      for (const [name, value] of Object.entries(attributes)) option.setAttribute(name, String(value));
      const [next, rest] = [document.createElement("b"), document.createElement("span")];
      next.textContent = alternative.next;
      rest.textContent = alternative.rest;
      option.append(next, rest);
      option.addEventListener("click", () => {
        hideAlternatives();
        onSelect(index);
      });
      return option;
    }),
  );
  popover.showPopover();
  positionPopover();
  anchor.setAttribute("aria-expanded", "true");
  (listbox.querySelector('[aria-selected="true"]') ?? listbox.firstElementChild)?.focus();
}

export function areAlternativesOpen() {
  return popover.matches(":popover-open");
}

export function hideAlternatives() {
  if (areAlternativesOpen()) popover.hidePopover();
}

/* Below the word, or above it where there is no space below. */
function positionPopover() {
  const [word, box] = [anchor.getBoundingClientRect(), popover.getBoundingClientRect()];
  const below = word.bottom + 8;
  const above = word.top - box.height - 8;
  const top = below + box.height > window.innerHeight && above > 0 ? above : below;
  const left = Math.max(12, Math.min(word.left - 16, document.documentElement.clientWidth - box.width - 12));
  popover.style.top = `${top + window.scrollY}px`;
  popover.style.left = `${left + window.scrollX}px`;
}

function handleKey(event) {
  const options = [...listbox.children];
  const index = options.indexOf(document.activeElement);
  const next = {
    ArrowDown: (index + 1) % options.length,
    ArrowUp: (index - 1 + options.length) % options.length,
    Home: 0,
    End: options.length - 1,
  }[event.key];
  if (next !== undefined) options[next].focus();
  else if (event.key === "Enter" || event.key === " ") options[index]?.click();
  else if (event.key === "Tab") hideAlternatives();
  else return;
  event.preventDefault();
}

export function initAlternatives() {
  listbox.addEventListener("keydown", handleKey);
  document.getElementById("translation").addEventListener("scroll", hideAlternatives);
  popover.addEventListener("toggle", (event) => {
    if (event.newState === "closed") anchor?.removeAttribute("aria-expanded");
  });
}
