/* The page: what is typed becomes a question, what the server says becomes the translation. */

import { startCopying } from "./copying.js";
import { showExample } from "./example.js";
import { lookInside, startInside } from "./inside.js";
import { chosen, fillLanguages, nameOf, refusal, setDetected, spoken, startLanguages } from "./languages.js";
import { areOffersOpen, hideOffers, showOffers, startOffers } from "./offers.js";
import { startMissing } from "./missing.js";
import { ask, Gone, keepKey, key, Refused, setDeadline } from "./server.js";
import { caret, isTooLong, mark, setLimit, setText, startSource, text } from "./source.js";
import { startTheme } from "./theme.js";
import { focusTerm, showNoTranslation, showTranslation, startTranslation } from "./translation.js";
import { showTries, trainedOn } from "./tries.js";
import { originsOf, pairsOf, piecesOf, segmentAt, segmentsOf, withSegment } from "./words.js";

const PAUSE = 250; // ms without a letter until what is typed is translated
const PATIENCE = 200; // ms until the page says that it waits
const LONG = 5000; // ms until it says so in words
const LONGEST = 8; // seconds between two tries to reach a server that is gone

const byId = (id) => document.getElementById(id);
let settings = null; // /frontend/settings, once it is known
let models = []; // those of /models that translate
let shown = null; // {text, translation, pairs, segments, own}: what the page has a translation of
let asking = null; // what is being asked, to be broken off when something else is
let pause = null;
let retry = null;
let tries = 0;

/* What the page says about itself, if there is anything to say. */
function say(words, wrong = false, action = null) {
  const status = byId("status");
  status.classList.toggle("wrong", wrong);
  status.replaceChildren(words);
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
  byId("look").disabled = !next?.segments.length; // nothing has gone through a model
  byId("desk").classList.remove("stale");
  byId("hint").hidden = byId("look").disabled;
  byId("spoken").textContent = next?.translation ?? "";
}

function isWaiting(waits) {
  byId("desk").classList.toggle("waiting", waits);
  byId("translation").setAttribute("aria-busy", String(waits));
}

/* Forget what is under way. */
function breakOff() {
  asking?.abort();
  asking = null;
  clearTimeout(pause);
  clearTimeout(retry);
  hideOffers();
}

function translateSoon(isTyping = false) {
  breakOff();
  showTries(models, chosen(), !text(), tryOut);
  showExample("translate", { q: text() || example(), ...chosen() }, settings?.keyRequired);
  pause = setTimeout(translate, isTyping ? PAUSE : 0);
}

/* A text for the command that is shown while there is none. */
function example() {
  const fitting = models.find(({ source, target }) => source === chosen().source && target === chosen().target);
  return fitting?.examples?.[0] ?? "…";
}

function tryOut(sentence) {
  setText(sentence);
  translateSoon();
}

async function translate() {
  breakOff();
  if (settings === null) return;
  const q = text();
  const why = isTooLong() ? `This is longer than ${settings.charLimit.toLocaleString("en")} characters.` : refusal();
  if (!q.trim() || why !== null) {
    isWaiting(false);
    setDetected(null);
    show(null);
    say(q.trim() && why !== null ? why : "", true);
    return;
  }
  const mine = (asking = new AbortController());
  const patience = setTimeout(() => isWaiting(mine === asking), PATIENCE);
  const late = setTimeout(() => mine === asking && say("The server is taking its time…"), LONG);
  try {
    const answer = await ask("translate", { q, ...chosen(), details: true }, { signal: mine.signal });
    if (mine === asking) arrived(q, answer);
  } catch (error) {
    if (mine === asking) trouble(error);
  } finally {
    clearTimeout(patience);
    clearTimeout(late);
    if (mine === asking) asking = null;
    if (asking === null) isWaiting(false);
  }
}

function arrived(q, { translatedText, details, detectedLanguage, truncated }) {
  tries = 0;
  setDetected(detectedLanguage?.language ?? null);
  const [pairs, segments] = [pairsOf, segmentsOf].map((found) => found(details, q, translatedText));
  show({ text: q, translation: translatedText, pairs, segments, own: false });
  if (truncated) say("The model reached its length limit: the end of the text, or of a sentence in it, is missing.", true);
  else say(spoken() === chosen().target ? `This is ${nameOf(spoken())} already.` : "");
}

/* Something was not to be had: say so, and try again where that may help. */
function trouble(error) {
  byId("desk").classList.toggle("stale", shown !== null && shown.text !== text());
  if (error instanceof Gone) {
    const wait = Math.min(2 ** tries++, LONGEST);
    say(`${error.message} Trying again…`, true, { name: "try now", do: reach });
    retry = setTimeout(reach, 1000 * wait);
  } else if (error instanceof Refused && (error.status === 429 || error.status === 503)) {
    const wait = error.seconds ?? 5;
    const busy = error.status === 429 ? "That was too many requests at a time." : `${error.message}.`;
    say(`${busy} Trying again in ${wait} s.`, true);
    retry = setTimeout(settings === null ? begin : translate, 1000 * wait);
  } else if (error instanceof Refused) {
    const keyless = settings?.keyRequired && (error.status === 403 || /API key/u.test(error.message));
    if (keyless) byId("key").focus();
    const about = key() ? "This key is not known here." : "Give an API key above to translate.";
    say(keyless ? about : error.message, true);
  } else throw error;
}

async function reach() {
  clearTimeout(retry);
  try {
    await ask("health/ready");
    tries = 0;
    say("The server is back.");
    await (settings === null ? begin() : translate());
  } catch (error) {
    trouble(error instanceof Refused ? new Gone() : error); // up again, and not ready so far
  }
}

/* A word was pressed: what else could stand there? */
async function offer(piece, element, term) {
  if (text() !== shown.text) return; // the next translation is on its way
  const number = segmentAt(shown.segments, "target", piece.start);
  if (number < 0) return; // nothing has gone through a model
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
    showOffers(element, "Go on from here with", offers, (at) => {
      if (alternatives[at].text !== present) {
        show({ ...withSegment(shown, number, alternatives[at].text, alternatives[at].details), own: true });
        const back = { name: "the model’s own again", do: () => translateSoon() };
        say("Your choice, and what follows from it.", false, back);
      }
      focusTerm(term);
    });
  } catch (error) {
    trouble(error);
  }
}

/* Of several sentences, the one that the caret is in. */
function look() {
  const { source, target } = shown.segments[segmentAt(shown.segments, "source", caret())];
  const wording = shown.own ? { translation: shown.translation.slice(...target) } : {};
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
  if (!text()) translateSoon(); // shows what there is to try
}

async function begin() {
  try {
    const [found, languages] = await Promise.all([ask("frontend/settings"), ask("languages")]);
    settings = found;
    setDeadline(found.deadline);
    fillLanguages(languages, found.language);
    setLimit(found.charLimit);
    byId("key-form").hidden = !found.keyRequired;
    say("");
    translateSoon();
    nameModels();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    trouble(error);
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
}, offer);
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
