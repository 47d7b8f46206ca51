/* Every head as a small heat map, to find the ones worth opening. */

function mapsView(open) {
  const parts = kinds().map((kind) => {
    const heads = arrays.get(`attention.${kind}`).shape[1];
    const maps = [];
    for (let layer = 1; layer <= layersOf(kind); layer++) {
      for (let head = 1; head <= heads; head++) maps.push(smallMap(kind, layer, head, open));
    }
    const { title, says } = KINDS[kind];
    return make(
      "div",
      { class: "panel" },
      make("h3", {}, `${title[0].toUpperCase()}${title.slice(1)}: ${says}`),
      make("div", { class: "grid", "--columns": Math.min(heads, 8) }, maps),
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
    parts,
  );
  return { view };
}

function smallMap(kind, layer, head, open) {
  const map = weightsOf(kind, layer, head);
  const peak = peakOf(kind, map);
  const canvas = mapCanvas(map.rows, map.columns, map.values, 1);
  return make(
    "button",
    {
      type: "button",
      class: "map",
      "aria-label": `${KINDS[kind].title} layer ${layer}, head ${head}, peak ${peak.toFixed(2)}: open`,
      click: () => open(kind, layer, head),
    },
    canvas,
    make("span", {}, `layer ${layer}, head ${head} · ${peak.toFixed(2)}`),
  );
}

/* The first row of the decoder, which can attend only to itself, is left out. */
function peakOf(kind, { rows, columns, values }) {
  const first = kind === "decoder" && rows > 1 ? 1 : 0;
  let sum = 0;
  for (let row = first; row < rows; row++) sum += Math.max(...values.subarray(row * columns, (row + 1) * columns));
  return sum / (rows - first);
}
