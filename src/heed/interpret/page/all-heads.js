/* The tab "All heads": every head as a small heat map, which opens the tab "Heads" when selected. */

/* openHead: called with the kind of attention, layer and head of the map that was selected. */
function allHeadsView(openHead) {
  const panels = attentionKinds().map((kind) => {
    const heads = arrays.get(`attention.${kind}`).shape[1];
    const maps = [];
    for (let layer = 1; layer <= layerCount(kind); layer++) {
      for (let head = 1; head <= heads; head++) maps.push(smallHeatMap(kind, layer, head, openHead));
    }
    const { title, description } = ATTENTION_KINDS[kind];
    return make(
      "div",
      { class: "panel" },
      make("h3", {}, `${capitalize(title)}: ${description}`),
      make("div", { class: "small-maps", "--columns": Math.min(heads, 8) }, maps),
    );
  });
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "All heads"),
    make(
      "p",
      { class: "prose" },
      "A heat map per head, a row of maps per layer. Within a map each row is a query and each column a key. The number is the peak: the largest weight of a row, averaged over the rows; 1 is a head that always attends to a single token. Select a map to open it.",
    ),
    panels,
  );
  return { view };
}

function smallHeatMap(kind, layer, head, openHead) {
  const map = attentionWeights(kind, layer, head);
  const peak = meanPeak(kind, map);
  const canvas = heatMapCanvas(map.rows, map.columns, map.values, 1);
  return make(
    "button",
    {
      type: "button",
      class: "small-map",
      "aria-label": `${ATTENTION_KINDS[kind].title} layer ${layer}, head ${head}, peak ${peak.toFixed(2)}: open`,
      click: () => openHead(kind, layer, head),
    },
    canvas,
    make("span", {}, `layer ${layer}, head ${head} · ${peak.toFixed(2)}`),
  );
}

/* The largest weight of a row, averaged over rows; not the decoder’s first row, which can attend only to itself. */
function meanPeak(kind, { rows, columns, values }) {
  const first = kind === "decoder" && rows > 1 ? 1 : 0;
  let sum = 0;
  for (let row = first; row < rows; row++) sum += Math.max(...values.subarray(row * columns, (row + 1) * columns));
  return sum / (rows - first);
}
