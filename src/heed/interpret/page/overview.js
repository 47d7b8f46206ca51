/* The layer stacks of the model. Every block is a button that shows what it computes, its shapes, and the view for it. */

const BLOCKS = {
  embedding: ["Embedding", "Each token becomes its embedding: its row of a trained matrix."],
  positions: ["Position", "Encodes the position of each token, so that order is not lost."],
  self: [
    "Self-attention",
    "Each token attends to the tokens of its own side and sums up their values. Only self- and cross-attention mix tokens.",
  ],
  cross: ["Cross-attention", "Each target token attends to the source tokens: the encoder’s output."],
  feed_forward: ["Feed-forward", "Each token on its own: projected to d_ff, through the activation function, and back to d_model."],
  output: ["Output", "The output of the last layer."],
  mean: ["Mean", "The mean of all tokens’ hidden states: one embedding of the whole text."],
  logits: ["Softmax", "A logit for every vocabulary entry, turned into probabilities by a softmax."],
};

const LABELS = "A logit for every label, turned into probabilities by a softmax.";

/* What the whole model does, by kind. */
const WHOLE = {
  "encoder-decoder":
    "The encoder reads the whole source at once; the decoder reads the target so far and, at each position, predicts the next token.",
  decoder: "The decoder reads the text so far and, at each position, predicts the next token.",
  encoder: "The encoder reads the whole text at once and, at each position, predicts the token there.",
  classifier: "The encoder reads the whole text at once; a linear layer maps the mean of its hidden states to the labels.",
};

function overviewView(goTo) {
  const panel = make("div", { class: "panel", "aria-live": "polite" });
  const both = trace.model.kind === "encoder-decoder";
  const chips = (side, title) =>
    make(
      "div",
      {},
      make("p", { class: "faint" }, title),
      make("div", { class: "chips" }, trace[side].tokens.map(tokenText)),
    );
  const bottom = [
    trace.source.tokens.length ? chips("source", "the encoder reads") : null,
    trace.target.tokens.length ? chips("target", "the decoder reads") : null,
  ];
  const top = trace.predicted.tokens.length
    ? [both ? make("div", {}) : null, chips("predicted", "predicted at each position")]
    : [];
  const svg = stacks((name, block) => {
    svg.querySelectorAll(".block").forEach((other) => other.setAttribute("aria-pressed", String(other === block)));
    panel.replaceChildren(...aboutBlock(name, goTo));
  });
  panel.replaceChildren(
    make(
      "p",
      { class: "prose" },
      `Tokens enter at the bottom. ${WHOLE[trace.labels.length ? "classifier" : trace.model.kind]} Select a block.`,
    ),
  );
  const picture = make(
    "div",
    { class: "panel" },
    make("div", { class: "two" }, top),
    svg,
    make("div", { class: "two" }, bottom),
  );
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Overview"),
    make("div", { class: "beside" }, picture, panel),
  );
  return { view };
}

/* Blocks from the bottom up, as [path of the parts, key of BLOCKS]. */
function blocksOf(side, layers) {
  const blocks = [
    [`${side}.embedding`, "embedding"],
    [`${side}.positions`, "positions"],
  ];
  for (let layer = 1; layer <= layers; layer++) {
    for (const name of subLayers(side)) blocks.push([`${side}.${layer}.${name}`, name]);
  }
  blocks.push([`${side}.output`, "output"]);
  if (trace.labels.length) blocks.push(["mean", "mean"]);
  if (side === "decoder" || trace.model.kind === "encoder") blocks.push(["logits", "logits"]);
  return blocks;
}

function stacks(onChoose) {
  const sides = ["encoder", "decoder"].filter((side) => trace[side === "encoder" ? "source" : "target"].tokens.length);
  const columns = sides.map((side) => blocksOf(side, trace.model[`${side}_layers`]));
  const [pitch, high, wide] = [34, 26, 138];
  const height = Math.max(...columns.map((blocks) => blocks.length)) * pitch + 26;
  const left = (column) => (sides.length === 1 ? 111 : 26 + column * 170);
  const y = (place) => height - 18 - (place + 1) * pitch;
  const shapes = [];
  columns.forEach((blocks, column) => {
    const middle = left(column) + wide / 2;
    shapes.push(draw("path", { class: "flow", d: `M${middle} ${height}V${y(blocks.length - 1)}` }));
    shapes.push(...frames(blocks, left(column), y, { pitch, high, wide, mirrored: column === 1 }));
  });
  if (sides.length === 2) shapes.push(...crossings(columns, left, y, high, wide));
  columns.forEach((blocks, column) =>
    blocks.forEach(([name, kind], place) =>
      shapes.push(block(name, kind, left(column), y(place), { high, wide }, onChoose)),
    ),
  );
  return draw(
    "svg",
    { class: "stacks", viewBox: `0 0 360 ${height}`, role: "group", "aria-label": "the stacks of the model" },
    ...shapes,
  );
}

function frames(blocks, x, y, { pitch, high, wide, mirrored }) {
  const layers = new Map();
  blocks.forEach(([name], place) => {
    const layer = /\.(\d+)\./u.exec(name)?.[1];
    if (layer) layers.set(layer, [...(layers.get(layer) ?? []), place]);
  });
  return [...layers].flatMap(([layer, places]) => {
    const top = y(places.at(-1)) - 4;
    return [
      draw("rect", {
        class: "frame",
        x: mirrored ? x - 6 : x - 22,
        y: top,
        width: wide + 28,
        height: places.length * pitch - (pitch - high) + 8,
        rx: 7,
      }),
      draw(
        "text",
        {
          class: "note",
          x: mirrored ? x + wide + 11 : x - 11,
          y: top + (places.length * pitch) / 2 + 4,
          "text-anchor": "middle",
        },
        layer,
      ),
    ];
  });
}

function crossings([encoder, decoder], left, y, high, wide) {
  const from = y(encoder.length - 1) + high / 2;
  const x = left(0) + wide;
  const lines = decoder.flatMap(([, kind], place) =>
    kind === "cross" ? [`M${x} ${from}H${x + 14}V${y(place) + high / 2}H${left(1)}`] : [],
  );
  return lines.map((d) => draw("path", { class: "flow", d }));
}

function block(name, kind, x, y, { high, wide }, onChoose) {
  const choose = () => onChoose(name, element);
  const layer = /\.(\d+)\./u.exec(name)?.[1];
  const title = BLOCKS[kind][0];
  const side = name.split(".")[0];
  const element = draw(
    "g",
    {
      class: kind === "self" || kind === "cross" ? "block attention" : "block",
      role: "button",
      tabindex: 0,
      "aria-pressed": "false",
      "data-name": name,
      "aria-label": layer ? `${side} layer ${layer}: ${title}` : `${side}: ${title}`,
      click: choose,
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    },
    draw("rect", { x, y, width: wide, height: high, rx: 6 }),
    draw("text", { x: x + wide / 2, y: y + high / 2 + 4, "text-anchor": "middle" }, title),
  );
  return element;
}

function aboutBlock(name, goTo) {
  const [side, layer, part] = name.split(".");
  const kind = part ?? (BLOCKS[name] ? name : layer);
  const parts = trace.parts.filter(
    (one) =>
      one.name === name ||
      one.name.startsWith(`${name}.`) ||
      (kind === "positions" && [`${side}.sum`, `${side}.angles`].includes(one.name)) ||
      (kind === "logits" && one.name === "probabilities"),
  );
  const rows = parts.map((one) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, one.name === name ? kind : one.name.slice(one.name.lastIndexOf(".") + 1)),
      make("td", {}, symbols(one.meaning)),
      make("td", { class: "n nowrap" }, one.shape.join(" × ")),
    ),
  );
  const links = [];
  if (kind === "self" || kind === "cross") {
    const attention = kind === "cross" ? "cross" : side;
    links.push(["open its heads", () => goTo("heads", { kind: attention, layer: Number(layer) })]);
    if (Number(layer) <= trace.embedded_layers)
      links.push(["follow a token through it", () => goTo("steps", { kind: attention, layer: Number(layer) })]);
  } else if (kind === "positions") links.push(["see the encodings", () => goTo("positions")]);
  else if (kind === "logits" || kind === "mean" || (kind === "output" && side === "decoder"))
    links.push(["see the predictions", () => goTo("output")]);
  else if (layer === undefined || Number(layer) <= trace.embedded_layers || kind === "embedding" || kind === "output")
    links.push(["follow a token through it", () => goTo("steps", { kind: side, layer: Number(layer) || 1 })]);
  return [
    make(
      "h3",
      {},
      Number(layer) ? `${side[0].toUpperCase()}${side.slice(1)}, layer ${layer}: ${BLOCKS[kind][0]}` : BLOCKS[kind][0],
    ),
    make("p", { class: "prose" }, trace.labels.length && kind === "logits" ? LABELS : BLOCKS[kind][1]),
    make(
      "p",
      {},
      links.flatMap(([text, click], place) => [
        place ? "  ·  " : "",
        make("button", { type: "button", class: "link", click }, text),
      ]),
    ),
    make("div", { class: "scroll" }, table(["part", "meaning", { face: "shape", number: true }], rows)),
  ];
}
