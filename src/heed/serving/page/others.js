/* The page for language models, classifiers and masked language models: runs the chosen model on a text. */

import { startCopying } from "./copying.js";
import { showExample } from "./example.js";
import { lookInside, startInside } from "./inside.js";
import { startMissing } from "./missing.js";
import { ask, events, keepKey, key, setDeadline } from "./server.js";
import { startTheme } from "./theme.js";
import { trainedOn } from "./examples.js";

const byId = (id) => document.getElementById(id);
let models = []; // the models of /models that are not translation models
let settings = null; // response of /frontend/settings
let running = null; // AbortController of the request that is running

/* For each task: description, request and how the response is shown. */
const TASKS = {
  "language-model": {
    about: "A language model: it continues your text.",
    button: "generate",
    path: "generate",
    fields: () => ({ prompt: text(), temperature: temperature() }),
    show: streamText,
  },
  classify: {
    about: "A classifier: the probability of each label. Separate a text pair with a tab.",
    button: "classify",
    path: "classify",
    fields: () => ({ q: text() }),
    show: async (fields, signal) => showProbabilities((await ask("classify", fields, { signal })).probabilities),
  },
  masked: {
    about: "A masked language model: its predictions for each token, as if that token were masked.",
    button: "predict",
    path: "look",
    fields: () => ({ q: line() }),
    show: async (fields, signal) => showMaskedPredictions(await ask("look", fields, { signal })),
  },
};

const text = () => byId("text").value;
const line = () => text().split("\n")[0]; // /look traces a single line
const temperature = () => Number(byId("temperature").value) || 0;
const model = () => models.find(({ name }) => name === byId("model").value);
const task = () => TASKS[model().task];
const fields = () => ({ ...task().fields(), model: model().name });
const percent = (probability) => `${(100 * probability).toFixed(probability < 0.01 && probability > 0 ? 1 : 0)} %`;

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function showStatus(text, isError = false) {
  byId("status").classList.toggle("wrong", isError);
  byId("status").textContent = text;
}

async function streamText(query, signal) {
  const prompt = make("span", "given");
  const written = make("span", "");
  byId("answer").replaceChildren(prompt, written);
  let whole = "";
  for await (const { name, data } of events("generate", { ...query, stream: true }, signal)) {
    if (name === "done") whole = data.text;
    else whole += data.text;
    const given = whole.startsWith(query.prompt) ? query.prompt.length : 0;
    prompt.textContent = whole.slice(0, given);
    written.textContent = whole.slice(given);
  }
}

function row(...cells) {
  return make("tr", "", ...cells);
}

function bar(probability) {
  const meter = make("div", "meter");
  meter.style.setProperty("--share", probability);
  return meter;
}

function showProbabilities(probabilities) {
  const rows = Object.entries(probabilities)
    .sort(([, first], [, second]) => second - first)
    .map(([label, probability]) => {
      const head = make("th", "", make("bdi", "", label));
      head.scope = "row";
      return row(head, make("td", "n", percent(probability)), make("td", "", bar(probability)));
    });
  byId("answer").replaceChildren(make("table", "shares", ...rows));
}

function showMaskedPredictions({ source, holes }) {
  const rows = holes.top.map((predictions, position) => {
    const head = make("th", "", make("bdi", "", source.tokens[position].trim() || source.tokens[position]));
    head.scope = "row";
    const words = predictions.slice(0, 4).map(({ token, probability }) => {
      const isThere = token === source.tokens[position];
      return make("span", isThere ? "hit" : "", make("bdi", "", token.trim() || token), ` ${percent(probability)} `);
    });
    return row(head, make("td", "", ...words));
  });
  byId("answer").replaceChildren(make("table", "shares", ...rows));
}

async function answer() {
  running?.abort();
  const request = (running = new AbortController());
  byId("desk").classList.add("waiting");
  showStatus("");
  try {
    await task().show(fields(), request.signal);
  } catch (error) {
    if (request !== running) return;
    showStatus(error.message, true);
  } finally {
    if (request === running) byId("desk").classList.remove("waiting");
  }
}

/* Enable the buttons that apply to the text and the chosen model. */
function updateButtons() {
  const there = models.length > 0;
  const empty = !text().trim();
  byId("ask").disabled = !there || (empty && model().task !== "language-model");
  byId("look").disabled = !there || empty;
  if (!there) return;
  byId("about").textContent = task().about;
  byId("ask").textContent = task().button;
  byId("sampling").hidden = model().task !== "language-model";
  showExample(task().path, fields(), settings.keyRequired);
}

async function begin() {
  try {
    settings ??= await ask("frontend/settings");
    setDeadline(settings.deadline);
    byId("key-form").hidden = !settings.keyRequired;
    if (settings.keyRequired && !key()) showStatus("Enter an API key above.", true);
    else {
      models = (await ask("models")).filter((one) => one.task in TASKS);
      byId("model").replaceChildren(...models.map(({ name, task: taskName }) => new Option(`${name}: ${taskName}`, name)));
      const facts = models.map(({ name, parameters, ...one }) => `${name}: ${parameters.toLocaleString("en")} parameters${trainedOn(one)}.`);
      byId("models").textContent = facts.join(" ");
      showStatus(models.length ? "" : "This server has translation models only.", !models.length);
    }
  } catch (error) {
    showStatus(error.message, true);
  }
  updateButtons();
  document.documentElement.dataset.ready = "yes";
}

startTheme();
startMissing();
startInside();
startCopying("copy-example", () => byId("example").textContent);
byId("model").addEventListener("change", () => {
  running?.abort();
  running = null;
  byId("desk").classList.remove("waiting");
  byId("answer").replaceChildren();
  showStatus("");
  updateButtons();
});
byId("text").addEventListener("input", updateButtons);
byId("temperature").addEventListener("input", updateButtons);
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
