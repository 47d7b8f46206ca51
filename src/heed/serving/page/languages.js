/* From which language to which: what there is, what was chosen, what was found out. */

const AUTO = "auto";
const source = document.getElementById("source-language");
const target = document.getElementById("target-language");
const swap = document.getElementById("swap");
let known = []; // [{code, name, targets}], as /languages has it
let detected = null;

export function chosen() {
  return { source: source.value, target: target.value };
}

export function nameOf(code) {
  return known.find((language) => language.code === code)?.name ?? code;
}

/* The language of the text: the one chosen, or the one that was found out. */
export function spoken() {
  return source.value === AUTO ? detected : source.value;
}

export function setDetected(code) {
  detected = source.value === AUTO ? code : null;
  source.options[0].textContent = detected ? `${nameOf(detected)}, detected` : "Detect language";
  settle();
}

function isServed(from, to) {
  return from !== to && Boolean(known.find(({ code }) => code === from)?.targets.includes(to));
}

/* Why there is nothing to be had for the languages chosen; null: there is. */
export function refusal() {
  const { source: from, target: to } = chosen();
  const all = known.flatMap((one) => known.map((other) => [one.code, other.code]));
  const pairs = all.filter((pair) => isServed(...pair));
  if (from === AUTO ? pairs.some((pair) => pair[1] === to) : isServed(from, to)) return null;
  const there = pairs.map(([one, other]) => `${nameOf(one)} to ${nameOf(other)}`).join(", ");
  const wanted = from === AUTO ? `to ${nameOf(to)}` : `${nameOf(from)} to ${nameOf(to)}`;
  return `No model here translates ${wanted}. There is ${there}.`;
}

function settle() {
  const from = spoken();
  swap.disabled = !from || !isServed(target.value, from);
  swap.title = swap.disabled && from ? `No model here translates ${nameOf(target.value)} back` : "Swap languages";
}

/* When one side is chosen, the other follows where it can. */
function follow(changed, other, served) {
  if (source.value !== AUTO && !isServed(source.value, target.value)) {
    const fitting = known.find(({ code }) => served(changed.value, code));
    if (fitting) other.value = fitting.code;
  }
}

export function fillLanguages(languages, preferred) {
  known = languages;
  const option = ({ code, name }) => new Option(name, code);
  source.replaceChildren(new Option("Detect language", AUTO), ...known.map(option));
  target.replaceChildren(...known.map(option));
  source.value = preferred.source.code;
  target.value = preferred.target.code;
  settle();
}

/* onChange: other languages were chosen; onSwap: the two were swapped, so the texts are, too. */
export function startLanguages(onChange, onSwap) {
  source.addEventListener("change", () => {
    follow(source, target, isServed);
    setDetected(null);
    onChange();
  });
  target.addEventListener("change", () => {
    follow(target, source, (to, from) => isServed(from, to));
    setDetected(null);
    onChange();
  });
  swap.addEventListener("click", () => {
    [source.value, target.value] = [target.value, spoken()];
    setDetected(null);
    onSwap();
  });
}
