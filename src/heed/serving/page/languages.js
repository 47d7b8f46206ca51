/* The source and target language menus, the detected language and the swap button. */

const AUTO = "auto";
const source = document.getElementById("source-language");
const target = document.getElementById("target-language");
const swap = document.getElementById("swap");
let languages = []; // response of /languages: [{code, name, targets}]
let detected = null; // code, if the source language is to be detected and has been

export function selectedLanguages() {
  return { source: source.value, target: target.value };
}

export function languageName(code) {
  return languages.find((language) => language.code === code)?.name ?? code;
}

/* The code of the text's language: selected or detected; null: not detected yet. */
export function sourceLanguage() {
  return source.value === AUTO ? detected : source.value;
}

export function setDetectedLanguage(code) {
  detected = source.value === AUTO ? code : null;
  source.options[0].textContent = detected ? `${languageName(detected)}, detected` : "Detect language";
  updateSwap();
}

function isServed(from, to) {
  return from !== to && Boolean(languages.find(({ code }) => code === from)?.targets.includes(to));
}

/* The error message if no model translates between the selected languages, else null. */
export function unservedPairError() {
  const { source: from, target: to } = selectedLanguages();
  const all = languages.flatMap((first) => languages.map((second) => [first.code, second.code]));
  const pairs = all.filter((pair) => isServed(...pair));
  if (from === AUTO ? pairs.some((pair) => pair[1] === to) : isServed(from, to)) return null;
  const available = pairs.map(([first, second]) => `${languageName(first)} to ${languageName(second)}`).join(", ");
  const requested = from === AUTO ? `to ${languageName(to)}` : `${languageName(from)} to ${languageName(to)}`;
  return `No model translates ${requested}. Available: ${available}.`;
}

function updateSwap() {
  const from = sourceLanguage();
  swap.disabled = !from || !isServed(target.value, from);
  swap.title = swap.disabled && from ? `No model translates from ${languageName(target.value)}` : "Swap languages";
}

/* After one menu was changed: if no model serves the pair, select a language in the other menu with which one does. */
function selectServedPair(changed, other, isPairServed) {
  if (source.value !== AUTO && !isServed(source.value, target.value)) {
    const match = languages.find(({ code }) => isPairServed(changed.value, code));
    if (match) other.value = match.code;
  }
}

/* served: response of /languages. preferred: {source, target} of /frontend/settings. */
export function fillLanguageMenus(served, preferred) {
  languages = served;
  const option = ({ code, name }) => new Option(name, code);
  source.replaceChildren(new Option("Detect language", AUTO), ...languages.map(option));
  target.replaceChildren(...languages.map(option));
  source.value = preferred.source.code;
  target.value = preferred.target.code;
  updateSwap();
}

/* onChange: other languages were selected. onSwap: the two were swapped, so the caller swaps the texts. */
export function initLanguages(onChange, onSwap) {
  source.addEventListener("change", () => {
    selectServedPair(source, target, isServed);
    setDetectedLanguage(null);
    onChange();
  });
  target.addEventListener("change", () => {
    selectServedPair(target, source, (to, from) => isServed(from, to));
    setDetectedLanguage(null);
    onChange();
  });
  swap.addEventListener("click", () => {
    [source.value, target.value] = [target.value, sourceLanguage()];
    setDetectedLanguage(null);
    onSwap();
  });
}
