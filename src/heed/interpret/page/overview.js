/* The tab "Overview": the layer stacks of the model. Every block is a button that shows what it computes, its shapes,
   and a link to the tab for it. */

/* Title and description of each type of block. */

const BLOCKS = {
  embedding: ["Embedding", "Each token becomes its embedding: its row of a trained matrix."],
  positions: ["Position", "Encodes the position of each token, so that order is not lost."],
  self: [
    "Self-attention",
    "Each token attends to the tokens of its own side and sums up their values. Only self- and cross-attention mix tokens.",
  ],
  cross: ["Cross-attention", "Each target token attends to the source tokens: the encoder’s output."],
  feed_forward: [
    "Feed-forward",
    "Each token on its own: projected to d_ff, through the activation function, and back to d_model.",
  ],
  output: ["Output", "The output of the last layer."],
  mean: ["Mean", "The mean of all tokens’ hidden states: one embedding of the whole text."],
  logits: ["Softmax", "A logit for every vocabulary entry, turned into probabilities by a softmax."],
};

/* Description of the block "logits" of a classifier. */
const LABEL_LOGITS = "A logit for every label, turned into probabilities by a softmax.";

/* What the whole model does, by kind. */
const MODEL_DESCRIPTIONS = {
  "encoder-decoder":
    "The encoder reads the whole source at once; the decoder reads the target so far and, at each position, predicts the next token.",
  decoder: "The decoder reads the text so far and, at each position, predicts the next token.",
  encoder: "The encoder reads the whole text at once and, at each position, predicts the token there.",
  classifier:
    "The encoder reads the whole text at once; a linear layer maps the mean of its hidden states to the labels.",
};

function overviewView(goTo) {
  const panel = make("div", { class: "panel", "aria-live": "polite" });
  const modelKind = trace.labels.length ? "classifier" : trace.model.kind;
  const chips = (side, title) =>
    make(
      "div",
      {},
      make("p", { class: "faint" }, title),
      make("div", { class: "chips" }, trace[side].tokens.map(tokenElement)),
    );
  const bottom = [
    trace.source.tokens.length ? chips("source", "the encoder reads") : null,
    trace.target.tokens.length ? chips("target", "the decoder reads") : null,
  ];
  const top = trace.predicted.tokens.length
    ? [modelKind === "encoder-decoder" ? make("div", {}) : null, chips("predicted", "predicted at each position")]
    : [];
  const svg = stackDiagram((name, block) => {
    svg.querySelectorAll(".block").forEach((other) => other.setAttribute("aria-pressed", String(other === block)));
    panel.replaceChildren(...blockDetails(name, goTo));
  });
  panel.replaceChildren(
    make(
      "p",
      { class: "prose" },
      `Tokens enter at the bottom. ${MODEL_DESCRIPTIONS[modelKind]} Select a block.`,
    ),
  );
  const diagram = make(
    "div",
    { class: "panel" },
    make("div", { class: "two-columns" }, top),
    svg,
    make("div", { class: "two-columns" }, bottom),
  );
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Overview"),
    make("div", { class: "columns" }, diagram, panel),
  );
  return { view };
}

/* The blocks of a side from the bottom up, as [path of the part, key of BLOCKS]. */
function blocksOf(side, layers) {
  const blocks = [
    [`${side}.embedding`, "embedding"],
    [`${side}.positions`, "positions"],
  ];
  for (let layer = 1; layer <= layers; layer++) {
    for (const name of subLayerNames(side)) blocks.push([`${side}.${layer}.${name}`, name]);
  }
  blocks.push([`${side}.output`, "output"]);
  if (trace.labels.length) blocks.push(["mean", "mean"]);
  if (side === "decoder" || trace.model.kind === "encoder") blocks.push(["logits", "logits"]);
  return blocks;
}

/* onSelect: called with the path of a block and its element. */
function stackDiagram(onSelect) {
  const sides = ["encoder", "decoder"].filter((side) => trace[side === "encoder" ? "source" : "target"].tokens.length);
  const columns = sides.map((side) => blocksOf(side, trace.model[`${side}_layers`]));
  const [pitch, blockHeight, blockWidth] = [34, 26, 138]; // pitch: from block to block
  const height = Math.max(...columns.map((blocks) => blocks.length)) * pitch + 26;
  const left = (column) => (sides.length === 1 ? 111 : 26 + column * 170);
  const y = (level) => height - 18 - (level + 1) * pitch;
  const shapes = [];
  columns.forEach((blocks, column) => {
    const middle = left(column) + blockWidth / 2;
    shapes.push(makeSvg("path", { class: "flow", d: `M${middle} ${height}V${y(blocks.length - 1)}` }));
    shapes.push(...layerFrames(blocks, left(column), y, { pitch, blockHeight, blockWidth, mirrored: column === 1 }));
  });
  if (sides.length === 2) shapes.push(...crossAttentionLines(columns, left, y, blockHeight, blockWidth));
  columns.forEach((blocks, column) =>
    blocks.forEach(([name, kind], level) =>
      shapes.push(blockButton(name, kind, left(column), y(level), { blockHeight, blockWidth }, onSelect)),
    ),
  );
  return makeSvg(
    "svg",
    { class: "stacks", viewBox: `0 0 360 ${height}`, role: "group", "aria-label": "the stacks of the model" },
    ...shapes,
  );
}

function layerFrames(blocks, x, y, { pitch, blockHeight, blockWidth, mirrored }) {
  const layers = new Map();
  blocks.forEach(([name], level) => {
    const layer = /\.(\d+)\./u.exec(name)?.[1];
    if (layer) layers.set(layer, [...(layers.get(layer) ?? []), level]);
  });
  return [...layers].flatMap(([layer, levels]) => {
    const top = y(levels.at(-1)) - 4;
    return [
      makeSvg("rect", {
        class: "layer-frame",
        x: mirrored ? x - 6 : x - 22,
        y: top,
        width: blockWidth + 28,
        height: levels.length * pitch - (pitch - blockHeight) + 8,
        rx: 7,
      }),
      makeSvg(
        "text",
        {
          class: "note",
          x: mirrored ? x + blockWidth + 11 : x - 11,
          y: top + (levels.length * pitch) / 2 + 4,
          "text-anchor": "middle",
        },
        layer,
      ),
    ];
  });
}

/* Lines from the output of the encoder to every cross-attention of the decoder. */
function crossAttentionLines([encoder, decoder], left, y, blockHeight, blockWidth) {
  const from = y(encoder.length - 1) + blockHeight / 2;
  const x = left(0) + blockWidth;
  const lines = decoder.flatMap(([, kind], level) =>
    kind === "cross" ? [`M${x} ${from}H${x + 14}V${y(level) + blockHeight / 2}H${left(1)}`] : [],
  );
  return lines.map((d) => makeSvg("path", { class: "flow", d }));
}

function blockButton(name, kind, x, y, { blockHeight, blockWidth }, onSelect) {
  const select = () => onSelect(name, element);
  const layer = /\.(\d+)\./u.exec(name)?.[1];
  const title = BLOCKS[kind][0];
  const side = name.split(".")[0];
  const element = makeSvg(
    "g",
    {
      class: kind === "self" || kind === "cross" ? "block attention" : "block",
      role: "button",
      tabindex: 0,
      "aria-pressed": "false",
      "data-name": name,
      "aria-label": layer ? `${side} layer ${layer}: ${title}` : `${side}: ${title}`,
      click: select,
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        select();
      },
    },
    makeSvg("rect", { x, y, width: blockWidth, height: blockHeight, rx: 6 }),
    makeSvg("text", { x: x + blockWidth / 2, y: y + blockHeight / 2 + 4, "text-anchor": "middle" }, title),
  );
  return element;
}

function blockDetails(name, goTo) {
  const [side, layer, subLayer] = name.split(".");
  const kind = subLayer ?? (BLOCKS[name] ? name : layer);
  const parts = trace.parts.filter(
    (part) =>
      part.name === name ||
      part.name.startsWith(`${name}.`) ||
      (kind === "positions" && [`${side}.sum`, `${side}.angles`].includes(part.name)) ||
      (kind === "logits" && part.name === "probabilities"),
  );
  const rows = parts.map((part) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, part.name === name ? kind : part.name.slice(part.name.lastIndexOf(".") + 1)),
      make("td", {}, withSubscripts(part.meaning)),
      make("td", { class: "numeric nowrap" }, part.shape.join(" × ")),
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
    make("p", { class: "prose" }, trace.labels.length && kind === "logits" ? LABEL_LOGITS : BLOCKS[kind][1]),
    make(
      "p",
      {},
      links.flatMap(([text, click], index) => [
        index ? "  ·  " : "",
        make("button", { type: "button", class: "link", click }, text),
      ]),
    ),
    make("div", { class: "scroll" }, table(["part", "meaning", { content: "shape", isNumeric: true }], rows)),
  ];
}
