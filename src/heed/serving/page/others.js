/* The page of the models that do not translate: a text goes in, and what the chosen model makes of it comes out. */

import { startCopying } from "./copying.js";
import { showExample } from "./example.js";
import { lookInside, startInside } from "./inside.js";
import { startMissing } from "./missing.js";
import { ask, events, keepKey, key, setDeadline } from "./server.js";
import { startTheme } from "./theme.js";
import { trainedOn } from "./tries.js";

const byId = (id) => document.getElementById(id);
let models = []; // those of /models that do not translate
let settings = null; // /frontend/settings, once it is known
let asking = null; // what is being asked, to be broken off when something else is

/* By what a model was taught: what the page says of it, the request, and how the answer is shown. */
const TASKS = {
  "language-model": {
    about: "A language model: it goes on with your text.",
    button: "go on",
    path: "generate",
    fields: () => ({ prompt: text(), temperature: temperature() }),
    show: write,
  },
  classify: {
    about: "A classifier: it says how likely each label is. Two texts that belong together have a tab between them.",
    button: "classify",
    path: "classify",
    fields: () => ({ q: text() }),
    show: async (fields, signal) => showShares((await ask("classify", fields, { signal })).probabilities),
  },
  masked: {
    about: "A model that finds hidden words: what it would put at each place, were the word there hidden.",
    button: "find",
    path: "look",
    fields: () => ({ q: line() }),
    show: async (fields, signal) => showHoles(await ask("look", fields, { signal })),
  },
};

const text = () => byId("text").value;
const line = () => text().split("\n")[0]; // what can be looked at
const temperature = () => Number(byId("temperature").value) || 0;
const model = () => models.find(({ name }) => name === byId("model").value);
const task = () => TASKS[model().task];
const fields = () => ({ ...task().fields(), model: model().name });
const percent = (share) => `${(100 * share).toFixed(share < 0.01 && share > 0 ? 1 : 0)} %`;

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function say(words, wrong = false) {
  byId("status").classList.toggle("wrong", wrong);
  byId("status").textContent = words;
}

async function write(wanted, signal) {
  const prompt = make("span", "given");
  const written = make("span", "");
  byId("answer").replaceChildren(prompt, written);
  let whole = "";
  for await (const { name, data } of events("generate", { ...wanted, stream: true }, signal)) {
    if (name === "done") whole = data.text;
    else whole += data.text;
    const given = whole.startsWith(wanted.prompt) ? wanted.prompt.length : 0;
    prompt.textContent = whole.slice(0, given);
    written.textContent = whole.slice(given);
  }
}

function row(...cells) {
  return make("tr", "", ...cells);
}

function bar(share) {
  const meter = make("div", "meter");
  meter.style.setProperty("--share", share);
  return meter;
}

function showShares(probabilities) {
  const rows = Object.entries(probabilities)
    .sort(([, one], [, other]) => other - one)
    .map(([label, share]) => {
      const head = make("th", "", make("bdi", "", label));
      head.scope = "row";
      return row(head, make("td", "n", percent(share)), make("td", "", bar(share)));
    });
  byId("answer").replaceChildren(make("table", "shares", ...rows));
}

function showHoles({ source, holes }) {
  const rows = holes.top.map((found, place) => {
    const head = make("th", "", make("bdi", "", source.tokens[place].trim() || source.tokens[place]));
    head.scope = "row";
    const words = found.slice(0, 4).map(({ token, probability }) => {
      const isThere = token === source.tokens[place];
      return make("span", isThere ? "hit" : "", make("bdi", "", token.trim() || token), ` ${percent(probability)} `);
    });
    return row(head, make("td", "", ...words));
  });
  byId("answer").replaceChildren(make("table", "shares", ...rows));
}

async function answer() {
  asking?.abort();
  const mine = (asking = new AbortController());
  byId("desk").classList.add("waiting");
  say("");
  try {
    await task().show(fields(), mine.signal);
  } catch (error) {
    if (mine !== asking) return;
    say(error.message, true);
  } finally {
    if (mine === asking) byId("desk").classList.remove("waiting");
  }
}

/* What the page can do with what is on it. */
function settle() {
  const there = models.length > 0;
  const empty = !text().trim();
  byId("ask").disabled = !there || (empty && model().task !== "language-model");
  byId("look").disabled = !there || empty;
  if (!there) return;
  byId("about").textContent = task().about;
  byId("ask").textContent = task().button;
  byId("drawing").hidden = model().task !== "language-model";
  showExample(task().path, fields(), settings.keyRequired);
}

async function begin() {
  try {
    settings ??= await ask("frontend/settings");
    setDeadline(settings.deadline);
    byId("key-form").hidden = !settings.keyRequired;
    if (settings.keyRequired && !key()) say("Give an API key above to begin.", true);
    else {
      models = (await ask("models")).filter((one) => one.task in TASKS);
      byId("model").replaceChildren(...models.map(({ name, task: taught }) => new Option(`${name}: ${taught}`, name)));
      const facts = models.map(({ name, parameters, ...one }) => `${name}: ${parameters.toLocaleString("en")} parameters${trainedOn(one)}.`);
      byId("models").textContent = facts.join(" ");
      say(models.length ? "" : "No model here but those that translate.", !models.length);
    }
  } catch (error) {
    say(error.message, true);
  }
  settle();
  document.documentElement.dataset.ready = "yes";
}

startTheme();
startMissing();
startInside();
startCopying("copy-example", () => byId("example").textContent);
byId("model").addEventListener("change", () => {
  asking?.abort();
  asking = null;
  byId("desk").classList.remove("waiting");
  byId("answer").replaceChildren();
  say("");
  settle();
});
byId("text").addEventListener("input", settle);
byId("temperature").addEventListener("input", settle);
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("ask").disabled) answer();
});
byId("ask").addEventListener("click", answer);
byId("look").addEventListener("click", () => lookInside({ q: line(), model: model().name }));
byId("key").value = key();
byId("key").addEventListener("change", (event) => {
  keepKey(event.target.value);
  begin();
});
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
begin();
