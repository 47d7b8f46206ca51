/* The page for language models, classifiers and masked language models: runs the selected model on a text. */

import { showMissingFeatures } from "./browser-support.js";
import { initCopyButton } from "./copy-button.js";
import { showCurlCommand } from "./curl-command.js";
import { apiKey, request, saveApiKey, setDeadline, streamEvents } from "./http-client.js";
import { initLookDialog, openLookDialog } from "./look-dialog.js";
import { modelSummary } from "./model-summary.js";
import { initTheme } from "./theme.js";

const byId = (id) => document.getElementById(id);
let models = []; // the models of /models that are not translation models
let settings = null; // response of /frontend/settings
let running = null; // AbortController of the request that is running

/* By task of a model: its description, the request, and how the response is shown. */
const TASKS = {
  "language-model": {
    description: "A language model: it continues your text.",
    button: "generate",
    path: "generate",
    fields: () => ({ prompt: inputText(), temperature: temperature() }),
    show: streamText,
  },
  classify: {
    description: "A classifier: the probability of each label. Separate a text pair with a tab.",
    button: "classify",
    path: "classify",
    fields: () => ({ q: inputText() }),
    show: async (fields, signal) => showProbabilities(await request("classify", fields, { signal })),
  },
  masked: {
    description: "A masked language model: its predictions for each token, as if that token were masked.",
    button: "predict",
    path: "look",
    fields: () => ({ q: firstLine() }),
    show: async (fields, signal) => showMaskedPredictions(await request("look", fields, { signal })),
  },
};

const inputText = () => byId("text").value;
const firstLine = () => inputText().split("\n")[0]; // /look traces a single line
const temperature = () => Number(byId("temperature").value) || 0;
const selectedModel = () => models.find(({ name }) => name === byId("model").value);
const selectedTask = () => TASKS[selectedModel().task];
const requestFields = () => ({ ...selectedTask().fields(), model: selectedModel().name });
const formatPercent = (probability) =>
  `${(100 * probability).toFixed(probability < 0.01 && probability > 0 ? 1 : 0)} %`;

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function showStatus(text, isError = false) {
  byId("status").classList.toggle("error", isError);
  byId("status").textContent = text;
}

/* The text as it is generated, with the prompt, if it is part of it, in another colour. */
async function streamText(fields, signal) {
  const prompt = make("span", "prompt");
  const continuation = make("span", "");
  byId("output").replaceChildren(prompt, continuation);
  let text = "";
  for await (const { name, data } of streamEvents("generate", { ...fields, stream: true }, signal)) {
    if (name === "done") text = data.text;
    else text += data.text;
    const promptLength = text.startsWith(fields.prompt) ? fields.prompt.length : 0;
    prompt.textContent = text.slice(0, promptLength);
    continuation.textContent = text.slice(promptLength);
  }
}

/* A table row that begins with a label, isolated from the direction of the text around it. */
function labelledRow(label, ...cells) {
  const header = make("th", "", make("bdi", "", label));
  header.scope = "row";
  return make("tr", "", header, ...cells);
}

function probabilityBar(probability) {
  const meter = make("div", "meter");
  meter.style.setProperty("--fraction", probability);
  return meter;
}

function showProbabilities({ probabilities }) {
  const rows = Object.entries(probabilities)
    .sort(([, first], [, second]) => second - first)
    .map(([label, probability]) => {
      const percentage = make("td", "numeric", formatPercent(probability));
      return labelledRow(label, percentage, make("td", "", probabilityBar(probability)));
    });
  byId("output").replaceChildren(make("table", "probabilities", ...rows));
}

/* trace: response of /look; its `holes` are the predictions at each position with the token there masked. */
function showMaskedPredictions({ source, holes }) {
  const label = (token) => token.trim() || token;
  const rows = holes.top.map((predictions, position) => {
    const topTokens = predictions.slice(0, 4).map(({ token, probability }) => {
      const isOriginal = token === source.tokens[position];
      const percentage = ` ${formatPercent(probability)} `;
      return make("span", isOriginal ? "match" : "", make("bdi", "", label(token)), percentage);
    });
    return labelledRow(label(source.tokens[position]), make("td", "", ...topTokens));
  });
  byId("output").replaceChildren(make("table", "probabilities", ...rows));
}

async function run() {
  running?.abort();
  const controller = (running = new AbortController());
  byId("panes").classList.add("waiting");
  showStatus("");
  try {
    await selectedTask().show(requestFields(), controller.signal);
  } catch (error) {
    if (controller !== running) return;
    showStatus(error.message, true);
  } finally {
    if (controller === running) byId("panes").classList.remove("waiting");
  }
}

/* After the text or the model has changed: the description, the buttons that apply, and the curl command. */
function updateControls() {
  const hasModel = models.length > 0;
  const isEmpty = !inputText().trim();
  byId("run").disabled = !hasModel || (isEmpty && selectedModel().task !== "language-model");
  byId("look").disabled = !hasModel || isEmpty;
  if (!hasModel) return;
  byId("task-description").textContent = selectedTask().description;
  byId("run").textContent = selectedTask().button;
  byId("sampling").hidden = selectedModel().task !== "language-model";
  showCurlCommand(selectedTask().path, requestFields(), settings.keyRequired);
}

async function start() {
  try {
    settings ??= await request("frontend/settings");
    setDeadline(settings.deadline);
    byId("key-form").hidden = !settings.keyRequired;
    if (settings.keyRequired && !apiKey()) showStatus("Enter an API key above.", true);
    else {
      models = (await request("models")).filter(({ task }) => task in TASKS);
      byId("model").replaceChildren(...models.map(({ name, task }) => new Option(`${name}: ${task}`, name)));
      byId("model-summary").textContent = models.map((model) => modelSummary(model)).join(" ");
      showStatus(models.length ? "" : "This server has translation models only.", !models.length);
    }
  } catch (error) {
    showStatus(error.message, true);
  }
  updateControls();
  document.documentElement.dataset.ready = "yes";
}

initTheme();
showMissingFeatures();
initLookDialog();
initCopyButton("copy-curl", () => byId("curl-command").textContent);
byId("model").addEventListener("change", () => {
  running?.abort();
  running = null;
  byId("panes").classList.remove("waiting");
  byId("output").replaceChildren();
  showStatus("");
  updateControls();
});
byId("text").addEventListener("input", updateControls);
byId("temperature").addEventListener("input", updateControls);
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("run").disabled) run();
});
byId("run").addEventListener("click", run);
byId("look").addEventListener("click", () => openLookDialog({ q: firstLine(), model: selectedModel().name }));
byId("key").value = apiKey();
byId("key").addEventListener("change", (event) => {
  saveApiKey(event.target.value);
  start();
});
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
start();
