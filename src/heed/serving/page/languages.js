/* The two language menus, the detected language and the swap button. */

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

/* The language of the text: chosen, or detected. */
export function sourceCode() {
  return source.value === AUTO ? detected : source.value;
}

export function setDetected(code) {
  detected = source.value === AUTO ? code : null;
  source.options[0].textContent = detected ? `${nameOf(detected)}, detected` : "Detect language";
  updateSwap();
}

function isServed(from, to) {
  return from !== to && Boolean(known.find(({ code }) => code === from)?.targets.includes(to));
}

/* The error if no model translates the chosen languages, else null. */
export function refusal() {
  const { source: from, target: to } = chosen();
  const all = known.flatMap((first) => known.map((second) => [first.code, second.code]));
  const pairs = all.filter((pair) => isServed(...pair));
  if (from === AUTO ? pairs.some((pair) => pair[1] === to) : isServed(from, to)) return null;
  const available = pairs.map(([first, second]) => `${nameOf(first)} to ${nameOf(second)}`).join(", ");
  const requested = from === AUTO ? `to ${nameOf(to)}` : `${nameOf(from)} to ${nameOf(to)}`;
  return `No model translates ${requested}. Available: ${available}.`;
}

function updateSwap() {
  const from = sourceCode();
  swap.disabled = !from || !isServed(target.value, from);
  swap.title = swap.disabled && from ? `No model translates from ${nameOf(target.value)}` : "Swap languages";
}

/* When one language is changed, select a matching other one if there is a model. */
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
  updateSwap();
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
    [source.value, target.value] = [target.value, sourceCode()];
    setDetected(null);
    onSwap();
  });
}
