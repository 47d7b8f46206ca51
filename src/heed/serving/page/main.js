/* The translation page: sends the text to the server when typing pauses, and shows the translation. */

import { startCopying } from "./copying.js";
import { showExample } from "./example.js";
import { lookInside, startInside } from "./inside.js";
import { chosen, fillLanguages, nameOf, refusal, setDetected, sourceCode, startLanguages } from "./languages.js";
import { areOffersOpen, hideOffers, showOffers, startOffers } from "./offers.js";
import { startMissing } from "./missing.js";
import { ask, Unreachable, keepKey, key, HttpError, setDeadline } from "./server.js";
import { caret, isTooLong, mark, setLimit, setText, startSource, text } from "./source.js";
import { startTheme } from "./theme.js";
import { focusTerm, showNoTranslation, showTranslation, startTranslation } from "./translation.js";
import { showExamples, trainedOn } from "./examples.js";
import { originsOf, pairsOf, piecesOf, segmentAt, segmentsOf, withSegment } from "./words.js";

const PAUSE = 250; // ms without a keystroke before the text is translated
const SHOW_WAITING = 200; // ms until the progress bar appears
const SHOW_SLOW = 5000; // ms until the status line mentions the delay
const MAX_BACKOFF = 8; // seconds between two attempts to reconnect the server

const byId = (id) => document.getElementById(id);
let settings = null; // response of /frontend/settings
let models = []; // the translation models of /models
let shown = null; // {text, translation, pairs, segments, isEdited}: the translation on the page
let running = null; // AbortController of the request that is running
let pause = null;
let retry = null;
let attempts = 0;

/* Set the status line, with an optional button. */
function showStatus(text, isError = false, action = null) {
  const status = byId("status");
  status.classList.toggle("wrong", isError);
  status.replaceChildren(text);
  if (action === null) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = action.name;
  button.addEventListener("click", action.do);
  status.append(button);
}

function show(next) {
  shown = next;
  if (next === null) showNoTranslation();
  else showTranslation(next.translation, piecesOf(next.translation, next.pairs), chosen().target);
  mark([]);
  byId("copy").disabled = next === null;
  byId("look").disabled = !next?.segments.length; // no segment was translated by a model
  byId("desk").classList.remove("stale");
  byId("hint").hidden = byId("look").disabled;
  byId("spoken").textContent = next?.translation ?? "";
}

function setWaiting(waits) {
  byId("desk").classList.toggle("waiting", waits);
  byId("translation").setAttribute("aria-busy", String(waits));
}

/* Cancel the running request and pending timers. */
function cancelRunning() {
  running?.abort();
  running = null;
  clearTimeout(pause);
  clearTimeout(retry);
  hideOffers();
}

function translateSoon(isTyping = false) {
  cancelRunning();
  showExamples(models, chosen(), !text(), useExample);
  showExample("translate", { q: text() || example(), ...chosen() }, settings?.keyRequired);
  pause = setTimeout(translate, isTyping ? PAUSE : 0);
}

/* The text of the curl command while the text field is empty. */
function example() {
  const fitting = models.find(({ source, target }) => source === chosen().source && target === chosen().target);
  return fitting?.examples?.[0] ?? "…";
}

function useExample(sentence) {
  setText(sentence);
  translateSoon();
}

async function translate() {
  cancelRunning();
  if (settings === null) return;
  const q = text();
  const problem = isTooLong() ? `The text exceeds ${settings.charLimit.toLocaleString("en")} characters.` : refusal();
  if (!q.trim() || problem !== null) {
    setWaiting(false);
    setDetected(null);
    show(null);
    showStatus(q.trim() && problem !== null ? problem : "", true);
    return;
  }
  const request = (running = new AbortController());
  const waiting = setTimeout(() => setWaiting(request === running), SHOW_WAITING);
  const late = setTimeout(() => request === running && showStatus("Still waiting for the server…"), SHOW_SLOW);
  try {
    const answer = await ask("translate", { q, ...chosen(), details: true }, { signal: request.signal });
    if (request === running) showResult(q, answer);
  } catch (error) {
    if (request === running) showError(error);
  } finally {
    clearTimeout(waiting);
    clearTimeout(late);
    if (request === running) running = null;
    if (running === null) setWaiting(false);
  }
}

function showResult(q, { translatedText, details, detectedLanguage, truncated }) {
  attempts = 0;
  setDetected(detectedLanguage?.language ?? null);
  const [pairs, segments] = [pairsOf, segmentsOf].map((of) => of(details, q, translatedText));
  show({ text: q, translation: translatedText, pairs, segments, isEdited: false });
  if (truncated) showStatus("Truncated: the output of at least one sentence reached the model’s length limit.", true);
  else showStatus(sourceCode() === chosen().target ? `The text is already in ${nameOf(sourceCode())}.` : "");
}

/* Show an error, and retry if that may help. */
function showError(error) {
  byId("desk").classList.toggle("stale", shown !== null && shown.text !== text());
  if (error instanceof Unreachable) {
    const wait = Math.min(2 ** attempts++, MAX_BACKOFF);
    showStatus(`${error.message} Retrying…`, true, { name: "retry now", do: reconnect });
    retry = setTimeout(reconnect, 1000 * wait);
  } else if (error instanceof HttpError && (error.status === 429 || error.status === 503)) {
    const wait = error.seconds ?? 5;
    const busy = error.status === 429 ? "Too many requests." : `${error.message}.`;
    showStatus(`${busy} Retrying in ${wait} s.`, true);
    retry = setTimeout(settings === null ? begin : translate, 1000 * wait);
  } else if (error instanceof HttpError) {
    const keyless = settings?.keyRequired && (error.status === 403 || /API key/u.test(error.message));
    if (keyless) byId("key").focus();
    const about = key() ? "Unknown API key." : "Enter an API key above to translate.";
    showStatus(keyless ? about : error.message, true);
  } else throw error;
}

async function reconnect() {
  clearTimeout(retry);
  try {
    await ask("health/ready");
    attempts = 0;
    showStatus("Connected again.");
    await (settings === null ? begin() : translate());
  } catch (error) {
    showError(error instanceof HttpError ? new Unreachable() : error); // it answers, but is not ready yet
  }
}

/* Show alternatives for a word of the translation. */
async function showAlternativesFor(piece, element, term) {
  if (text() !== shown.text) return; // the text has changed: a new translation is on its way
  const number = segmentAt(shown.segments, "target", piece.start);
  if (number < 0) return; // no segment was translated by a model
  const { source: from, target: to } = shown.segments[number];
  const prefix = shown.translation.slice(to[0], piece.start);
  const before = shown;
  try {
    const { source, target } = chosen();
    const fields = { q: shown.text.slice(...from).trim(), source, target, prefix, details: true };
    const { alternatives } = await ask("alternatives", fields);
    if (shown !== before || text() !== shown.text) return;
    const present = shown.translation.slice(...to);
    const offers = alternatives.map((one) => {
      const after = one.text.indexOf(one.next, prefix.trimEnd().length) + one.next.length;
      return { next: one.next, rest: one.text.slice(after).trim(), isShown: one.text === present };
    });
    showOffers(element, "Continue with", offers, (at) => {
      if (alternatives[at].text !== present) {
        show({ ...withSegment(shown, number, alternatives[at].text, alternatives[at].details), isEdited: true });
        const back = { name: "restore the model’s translation", do: () => translateSoon() };
        showStatus("Alternative chosen; the rest was translated again.", false, back);
      }
      focusTerm(term);
    });
  } catch (error) {
    showError(error);
  }
}

/* Trace the sentence at the caret. */
function look() {
  const { source, target } = shown.segments[segmentAt(shown.segments, "source", caret())];
  const wording = shown.isEdited ? { translation: shown.translation.slice(...target) } : {};
  lookInside({ q: shown.text.slice(...source).trim(), ...chosen(), ...wording });
}

function swapTexts() {
  if (shown !== null) setText(shown.translation);
  translateSoon();
}

async function nameModels() {
  if (settings.keyRequired && !key()) return;
  const all = await ask("models").catch(() => []);
  models = all.filter(({ source }) => source);
  byId("others").hidden = all.length === models.length;
  byId("models").textContent = models
    .map(({ name, source, target, parameters, ...one }) => {
      const languages = `${nameOf(source)} to ${nameOf(target)}`;
      return `${name}: ${languages}, ${parameters.toLocaleString("en")} parameters${trainedOn(one)}.`;
    })
    .join(" ");
  if (!text()) translateSoon(); // shows the example sentences
}

async function begin() {
  try {
    const [response, languages] = await Promise.all([ask("frontend/settings"), ask("languages")]);
    settings = response;
    setDeadline(response.deadline);
    fillLanguages(languages, response.language);
    setLimit(response.charLimit);
    byId("key-form").hidden = !response.keyRequired;
    showStatus("");
    translateSoon();
    nameModels();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    showError(error);
  }
}

startTheme();
startMissing();
startOffers();
startInside();
startSource(translateSoon);
startLanguages(translateSoon, swapTexts);
startTranslation((piece) => {
  if (!areOffersOpen()) mark(piece && text() === shown.text ? originsOf(piece, shown.pairs, shown.text) : []);
}, showAlternativesFor);
startCopying("copy", () => shown.translation);
startCopying("copy-example", () => byId("example").textContent);
byId("look").addEventListener("click", look);
byId("key").value = key();
byId("key").addEventListener("input", (event) => {
  keepKey(event.target.value);
  translateSoon(true);
});
byId("key").addEventListener("change", nameModels);
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
show(null);
begin();
