/* The translation page: sends the text to the server when typing pauses, and shows the translation. */

import {
  alignedSourceWords,
  alignedSpans,
  replaceSegment,
  segmentIndexAt,
  segmentSpans,
  splitWords,
} from "./alignment.js";
import { areAlternativesOpen, hideAlternatives, initAlternatives, showAlternatives } from "./alternatives.js";
import { showMissingFeatures } from "./browser-support.js";
import { initCopyButton } from "./copy-button.js";
import { showCurlCommand } from "./curl-command.js";
import { showExampleSentences } from "./example-sentences.js";
import { apiKey, HttpError, request, saveApiKey, setDeadline, UnreachableError } from "./http-client.js";
import {
  fillLanguageMenus,
  initLanguages,
  languageName,
  selectedLanguages,
  setDetectedLanguage,
  sourceLanguage,
  unservedPairError,
} from "./languages.js";
import { initLookDialog, openLookDialog } from "./look-dialog.js";
import { modelSummary } from "./model-summary.js";
import {
  caretOffset,
  highlightSource,
  initSourceText,
  isTooLong,
  setCharacterLimit,
  setSourceText,
  sourceText,
} from "./source-text.js";
import { initTheme } from "./theme.js";
import { focusWord, initTranslation, showPlaceholder, showTranslation } from "./translation.js";

const TYPING_PAUSE = 250; // ms without a keystroke before the text is translated
const PROGRESS_DELAY = 200; // ms until the progress bar appears
const SLOW_DELAY = 5000; // ms until the status line mentions the delay
const MAX_BACKOFF = 8; // seconds between two attempts to reconnect to the server

const byId = (id) => document.getElementById(id);
let settings = null; // response of /frontend/settings
let models = []; // the translation models of /models
/* The translation on the page: {text, translation, pairs, segments, isEdited}; pairs and segments are those of
   alignment.js, isEdited: an alternative was chosen. */
let shown = null;
let running = null; // AbortController of the request that is running
let typingTimer = null;
let retryTimer = null;
let attempts = 0; // to reconnect, since the last response

/* Set the status line; action: {name, run} of a button after the text. */
function showStatus(text, isError = false, action = null) {
  const status = byId("status");
  status.classList.toggle("error", isError);
  status.replaceChildren(text);
  if (action === null) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  button.textContent = action.name;
  button.addEventListener("click", action.run);
  status.append(button);
}

function show(next) {
  shown = next;
  if (next === null) showPlaceholder();
  else showTranslation(next.translation, splitWords(next.translation, next.pairs), selectedLanguages().target);
  highlightSource([]);
  byId("copy").disabled = next === null;
  byId("look").disabled = !next?.segments.length; // no segment was translated by a model
  byId("panes").classList.remove("stale");
  byId("hint").hidden = byId("look").disabled;
  byId("announcement").textContent = next?.translation ?? "";
}

function setWaiting(isWaiting) {
  byId("panes").classList.toggle("waiting", isWaiting);
  byId("translation").setAttribute("aria-busy", String(isWaiting));
}

/* Cancel the running request and pending timers. */
function cancelRunning() {
  running?.abort();
  running = null;
  clearTimeout(typingTimer);
  clearTimeout(retryTimer);
  hideAlternatives();
}

function translateSoon(isTyping = false) {
  cancelRunning();
  showExampleSentences(models, selectedLanguages(), !sourceText(), useExample);
  const q = sourceText() || exampleForCurl();
  showCurlCommand("translate", { q, ...selectedLanguages() }, settings?.keyRequired);
  typingTimer = setTimeout(translate, isTyping ? TYPING_PAUSE : 0);
}

/* The text of the curl command while the text field is empty. */
function exampleForCurl() {
  const selected = selectedLanguages();
  const model = models.find(({ source, target }) => source === selected.source && target === selected.target);
  return model?.examples?.[0] ?? "…";
}

function useExample(sentence) {
  setSourceText(sentence);
  translateSoon();
}

async function translate() {
  cancelRunning();
  if (settings === null) return;
  const q = sourceText();
  const lengthError = `The text exceeds ${settings.charLimit.toLocaleString("en")} characters.`;
  const problem = isTooLong() ? lengthError : unservedPairError();
  if (!q.trim() || problem !== null) {
    setWaiting(false);
    setDetectedLanguage(null);
    show(null);
    showStatus(q.trim() && problem !== null ? problem : "", true);
    return;
  }
  const controller = (running = new AbortController());
  const isCurrent = () => controller === running; // no newer request has been sent
  const progressTimer = setTimeout(() => setWaiting(isCurrent()), PROGRESS_DELAY);
  const slowTimer = setTimeout(() => isCurrent() && showStatus("Still waiting for the server…"), SLOW_DELAY);
  try {
    const fields = { q, ...selectedLanguages(), details: true };
    const response = await request("translate", fields, { signal: controller.signal });
    if (isCurrent()) showResult(q, response);
  } catch (error) {
    if (isCurrent()) showError(error);
  } finally {
    clearTimeout(progressTimer);
    clearTimeout(slowTimer);
    if (isCurrent()) running = null;
    if (running === null) setWaiting(false);
  }
}

function showResult(q, { translatedText, details, detectedLanguage, truncated, corrections = [] }) {
  attempts = 0;
  setDetectedLanguage(detectedLanguage?.language ?? null);
  const pairs = alignedSpans(details, q, translatedText);
  const segments = segmentSpans(details, q, translatedText);
  show({ text: q, translation: translatedText, pairs, segments, isEdited: false });
  const corrected = corrections.map(({ word, replacement }) => `${word} → ${replacement}`).join(", ");
  if (truncated) showStatus("Truncated: the output of at least one sentence reached the model’s length limit.", true);
  else if (sourceLanguage() === selectedLanguages().target)
    showStatus(`The text is already in ${languageName(sourceLanguage())}.`);
  else showStatus(corrected && `Translated with corrected spelling: ${corrected}.`);
}

/* Show an error, and retry if that may help. */
function showError(error) {
  byId("panes").classList.toggle("stale", shown !== null && shown.text !== sourceText());
  if (error instanceof UnreachableError) {
    const seconds = Math.min(2 ** attempts++, MAX_BACKOFF);
    showStatus(`${error.message} Retrying…`, true, { name: "retry now", run: reconnect });
    retryTimer = setTimeout(reconnect, 1000 * seconds);
  } else if (error instanceof HttpError && (error.status === 429 || error.status === 503)) {
    const seconds = error.retryAfter ?? 5;
    const reason = error.status === 429 ? "Too many requests." : `${error.message}.`;
    showStatus(`${reason} Retrying in ${seconds} s.`, true);
    retryTimer = setTimeout(settings === null ? start : translate, 1000 * seconds);
  } else if (error instanceof HttpError) {
    const isKeyError = settings?.keyRequired && (error.status === 403 || /API key/u.test(error.message));
    if (isKeyError) byId("key").focus();
    const keyError = apiKey() ? "Unknown API key." : "Enter an API key above to translate.";
    showStatus(isKeyError ? keyError : error.message, true);
  } else throw error;
}

async function reconnect() {
  clearTimeout(retryTimer);
  try {
    await request("health/ready");
    attempts = 0;
    showStatus("Connected again.");
    await (settings === null ? start() : translate());
  } catch (error) {
    showError(error instanceof HttpError ? new UnreachableError() : error); // it responds, but is not ready yet
  }
}

/* Show alternatives for a word of the translation; wordIndex: among the words of the translation. */
async function openAlternatives(word, element, wordIndex) {
  if (sourceText() !== shown.text) return; // the text has changed: a new translation is on its way
  const segmentIndex = segmentIndexAt(shown.segments, "target", word.start);
  if (segmentIndex < 0) return; // no segment was translated by a model
  const segment = shown.segments[segmentIndex];
  const prefix = shown.translation.slice(segment.target[0], word.start);
  const before = shown;
  try {
    const q = shown.text.slice(...segment.source).trim();
    const fields = { q, ...selectedLanguages(), prefix, details: true };
    const { alternatives } = await request("alternatives", fields);
    if (shown !== before || sourceText() !== shown.text) return;
    const current = shown.translation.slice(...segment.target);
    const options = alternatives.map(({ text, next }) => {
      const nextEnd = text.indexOf(next, prefix.trimEnd().length) + next.length;
      return { next, rest: text.slice(nextEnd).trim(), isCurrent: text === current };
    });
    showAlternatives(element, "Continue with", options, (index) => {
      const { text, details } = alternatives[index];
      if (text !== current) {
        show({ ...replaceSegment(shown, segmentIndex, text, details), isEdited: true });
        const restore = { name: "restore the model’s translation", run: () => translateSoon() };
        showStatus("Alternative chosen; the rest was translated again.", false, restore);
      }
      focusWord(wordIndex);
    });
  } catch (error) {
    showError(error);
  }
}

/* Trace the sentence at the caret. */
function look() {
  const { source, target } = shown.segments[segmentIndexAt(shown.segments, "source", caretOffset())];
  const edited = shown.isEdited ? { translation: shown.translation.slice(...target) } : {};
  openLookDialog({ q: shown.text.slice(...source).trim(), ...selectedLanguages(), ...edited });
}

function swapTexts() {
  if (shown !== null) setSourceText(shown.translation);
  translateSoon();
}

async function loadModels() {
  if (settings.keyRequired && !apiKey()) return;
  const all = await request("models").catch(() => []);
  models = all.filter(({ source }) => source);
  byId("lm-and-classifier-link").hidden = all.length === models.length;
  byId("model-summary").textContent = models
    .map((model) => modelSummary(model, `${languageName(model.source)} to ${languageName(model.target)}, `))
    .join(" ");
  if (!sourceText()) translateSoon(); // shows the example sentences
}

async function start() {
  try {
    const [response, languages] = await Promise.all([request("frontend/settings"), request("languages")]);
    settings = response;
    setDeadline(response.deadline);
    fillLanguageMenus(languages, response.language);
    setCharacterLimit(response.charLimit);
    byId("key-form").hidden = !response.keyRequired;
    showStatus("");
    translateSoon();
    loadModels();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    showError(error);
  }
}

initTheme();
showMissingFeatures();
initAlternatives();
initLookDialog();
initSourceText(translateSoon);
initLanguages(translateSoon, swapTexts);
initTranslation((word) => {
  if (areAlternativesOpen()) return;
  highlightSource(word && sourceText() === shown.text ? alignedSourceWords(word, shown.pairs, shown.text) : []);
}, openAlternatives);
initCopyButton("copy", () => shown.translation);
initCopyButton("copy-curl", () => byId("curl-command").textContent);
byId("look").addEventListener("click", look);
byId("key").value = apiKey();
byId("key").addEventListener("input", (event) => {
  saveApiKey(event.target.value);
  translateSoon(true);
});
byId("key").addEventListener("change", loadModels);
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
show(null);
start();
