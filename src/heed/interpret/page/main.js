/* Starts the report: header, tabs and theme. The view of a tab is built when it is first opened. */

/* Id, title, and the function that builds the view; it returns {view, refresh}: the element and, where the view has a
   selection, a function that shows a changed one. */
const VIEWS = [
  ["overview", "Overview", () => overviewView(goTo)],
  ["heads", "Heads", headsView],
  ["all-heads", "All heads", () => allHeadsView((kind, layer, head) => goTo("heads", { kind, layer, head }))],
  ["steps", "Step by step", stepsView],
  ["positions", "Positions", positionsView],
  ["search", "Search", searchView],
  ["output", "Output", outputView],
];
const openedViews = new Map(); // id: {view, refresh}

function availableViews() {
  return VIEWS.filter(([id]) => id !== "search" || trace.beam);
}

function openView(id) {
  if (!openedViews.has(id)) {
    const opened = VIEWS.find(([other]) => other === id)[2]();
    configure(opened.view, { id: `view-${id}`, role: "tabpanel", "aria-labelledby": `tab-${id}`, tabindex: -1 }, []);
    document.getElementById("views").append(opened.view);
    openedViews.set(id, opened);
  }
  for (const [other] of availableViews()) {
    const tab = document.getElementById(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === id));
    tab.setAttribute("tabindex", other === id ? "0" : "-1");
    if (openedViews.has(other)) openedViews.get(other).view.hidden = other !== id;
  }
}

/* Open a view from another; selection: {kind, layer, head} of the attention to show there. */
function goTo(id, selection = {}) {
  Object.assign(id === "steps" ? stepSelection : headSelection, selection);
  if (id === "steps") stepSelection.key = null;
  const wasOpened = openedViews.has(id);
  openView(id);
  if (wasOpened) openedViews.get(id).refresh?.();
  document.getElementById(`tab-${id}`).focus({ preventScroll: true });
  window.scrollTo({ top: document.getElementById("tabs").offsetTop });
}

function buildTabs() {
  const ids = availableViews().map(([id]) => id);
  const moveTo = (index) => {
    const id = ids.at(index % ids.length); // from the last on to the first, and back
    openView(id);
    document.getElementById(`tab-${id}`).focus();
  };
  document.getElementById("tabs").append(
    ...availableViews().map(([id, title]) =>
      make(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${id}`,
          "aria-controls": `view-${id}`,
          click: () => openView(id),
          keydown: (event) => {
            const index = ids.indexOf(id);
            const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: ids.length - 1 }[event.key];
            if (next === undefined) return;
            event.preventDefault();
            moveTo(next);
          },
        },
        title,
      ),
    ),
  );
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = dark ? "light" : "dark";
  button.setAttribute("aria-label", dark ? "switch to light" : "switch to dark");
  button.setAttribute("aria-pressed", String(dark));
  repaintHeatMaps();
}

function fillHeader() {
  const { model } = trace;
  document.getElementById("source").append(make("bdi", {}, visibleText(trace.source.text || trace.target.text)));
  if (trace.source.tokens.length && trace.target.tokens.length)
    document.getElementById("target").append(make("bdi", {}, visibleText(trace.target.text)));
  if (trace.labels.length) {
    const [best] = trace.top[0];
    const label = make("bdi", {}, visibleText(best.token));
    document.getElementById("target").append(label, ` ${formatPercent(best.probability)}`);
  }
  const layers = [
    trace.source.tokens.length ? `${model.encoder_layers} encoder` : "",
    trace.target.tokens.length ? `${model.decoder_layers} decoder` : "",
  ]
    .filter(Boolean)
    .join(" and ");
  document.getElementById("facts").textContent =
    `${layers} layers, ${model.heads} heads, width ${model.d_model}, ${model.positions} positions, ${model.norm}-norm · heed ${trace.heed}`;
}

async function start() {
  const preference = window.matchMedia("(prefers-color-scheme: dark)");
  const embedderTheme = document.documentElement.dataset.theme; // set by a page that embeds this one
  setTheme(embedderTheme ? embedderTheme === "dark" : preference.matches);
  await loadData();
  fillHeader();
  buildTabs();
  openView("overview");
  if (!embedderTheme) preference.addEventListener("change", (event) => setTheme(event.matches));
  document
    .getElementById("theme")
    .addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  document.documentElement.dataset.ready = "yes";
}

start();
