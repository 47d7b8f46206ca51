/* The page: header, tabs and theme. A view is built when it is first opened. */

const VIEWS = [
  ["overview", "Overview", () => overviewView(goTo)],
  ["heads", "Heads", headsView],
  ["maps", "All heads", () => mapsView((kind, layer, head) => goTo("heads", { kind, layer, head }))],
  ["steps", "Step by step", stepsView],
  ["positions", "Positions", positionsView],
  ["search", "Search", searchView],
  ["output", "Output", outputView],
];
const opened = new Map();

function availableViews() {
  return VIEWS.filter(([id]) => id !== "search" || trace.beam);
}

function openView(id) {
  if (!opened.has(id)) {
    const built = VIEWS.find(([other]) => other === id)[2]();
    fill(built.view, { id: `view-${id}`, role: "tabpanel", "aria-labelledby": `tab-${id}`, tabindex: -1 }, []);
    document.getElementById("views").append(built.view);
    opened.set(id, built);
  }
  for (const [other] of availableViews()) {
    const tab = document.getElementById(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === id));
    tab.setAttribute("tabindex", other === id ? "0" : "-1");
    if (opened.has(other)) opened.get(other).view.hidden = other !== id;
  }
}

function goTo(id, chosen = {}) {
  Object.assign(id === "steps" ? followed : shown, chosen);
  if (id === "steps") followed.key = null;
  const before = opened.has(id);
  openView(id);
  if (before) opened.get(id).refresh?.();
  document.getElementById(`tab-${id}`).focus({ preventScroll: true });
  window.scrollTo({ top: document.getElementById("tabs").offsetTop });
}

function buildTabs() {
  const ids = availableViews().map(([id]) => id);
  const move = (id, by) => {
    const next = by === "first" ? 0 : by === "last" ? ids.length - 1 : (ids.indexOf(id) + by + ids.length) % ids.length;
    openView(ids[next]);
    document.getElementById(`tab-${ids[next]}`).focus();
  };
  const moves = { ArrowRight: 1, ArrowLeft: -1, Home: "first", End: "last" };
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
            if (!(event.key in moves)) return;
            event.preventDefault();
            move(id, moves[event.key]);
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
  painters.splice(
    0,
    painters.length,
    ...painters.filter((painter) => painter.deref()?.isConnected || painter.deref()?.parentNode),
  );
  for (const painter of painters) painter.deref()?.paint();
}

function buildHead() {
  const plain = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (sign) => label(sign));
  const { model } = trace;
  document.getElementById("source").append(make("bdi", {}, plain(trace.source.text || trace.target.text)));
  if (trace.source.tokens.length && trace.target.tokens.length)
    document.getElementById("target").append(make("bdi", {}, plain(trace.target.text)));
  if (trace.labels.length) {
    const [best] = trace.top[0];
    document.getElementById("target").append(make("bdi", {}, plain(best.token)), ` ${percent(best.probability)}`);
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
  const given = document.documentElement.dataset.theme; // set by a page that embeds this one
  setTheme(given ? given === "dark" : preference.matches);
  await readData();
  buildHead();
  buildTabs();
  openView("overview");
  if (!given) preference.addEventListener("change", (event) => setTheme(event.matches));
  document
    .getElementById("theme")
    .addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  document.documentElement.dataset.ready = "yes";
}

start();
