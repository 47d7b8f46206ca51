/* The list of alternatives under a word: arrow keys and Enter, or a click; Escape closes it. */

const box = document.getElementById("offers");
const list = document.getElementById("offers-list");
let anchor = null;

/* offers: [{next, rest, isShown}]; onChoose is called with the index of the chosen alternative. */
export function showOffers(under, title, offers, onChoose) {
  hideOffers();
  anchor = under;
  document.getElementById("offers-title").textContent = title;
  list.replaceChildren(
    ...offers.map((offer, number) => {
      const option = document.createElement("li");
      for (const [name, value] of Object.entries({ role: "option", tabindex: "-1", "aria-selected": offer.isShown }))
        option.setAttribute(name, String(value));
      const [next, rest] = [document.createElement("b"), document.createElement("span")];
      next.textContent = offer.next;
      rest.textContent = offer.rest;
      option.append(next, rest);
      option.addEventListener("click", () => {
        hideOffers();
        onChoose(number);
      });
      return option;
    }),
  );
  box.showPopover();
  position();
  anchor.setAttribute("aria-expanded", "true");
  (list.querySelector('[aria-selected="true"]') ?? list.firstElementChild)?.focus();
}

export function areOffersOpen() {
  return box.matches(":popover-open");
}

export function hideOffers() {
  if (areOffersOpen()) box.hidePopover();
}

function position() {
  const [word, popover] = [anchor.getBoundingClientRect(), box.getBoundingClientRect()];
  const below = word.bottom + 8;
  const above = word.top - popover.height - 8;
  const top = below + popover.height > window.innerHeight && above > 0 ? above : below;
  const left = Math.max(12, Math.min(word.left - 16, document.documentElement.clientWidth - popover.width - 12));
  box.style.top = `${top + window.scrollY}px`;
  box.style.left = `${left + window.scrollX}px`;
}

function move(event) {
  const options = [...list.children];
  const at = options.indexOf(document.activeElement);
  const next = {
    ArrowDown: (at + 1) % options.length,
    ArrowUp: (at - 1 + options.length) % options.length,
    Home: 0,
    End: options.length - 1,
  }[event.key];
  if (next !== undefined) options[next].focus();
  else if (event.key === "Enter" || event.key === " ") options[at]?.click();
  else if (event.key === "Tab") hideOffers();
  else return;
  event.preventDefault();
}

export function startOffers() {
  list.addEventListener("keydown", move);
  document.getElementById("translation").addEventListener("scroll", hideOffers);
  box.addEventListener("toggle", (event) => {
    if (event.newState === "closed") anchor?.removeAttribute("aria-expanded");
  });
}
