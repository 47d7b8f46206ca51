/* The tab "Output", the predictions: most probable tokens, logit lens, and cross-attention beside leave-one-out
   attribution (trace.removal: the change of the log-probability without each source token). */

const outputSelection = { position: 0 };

/* The most probable tokens at a position; of a classifier, the labels: it has one prediction, for the whole text. */
function predictionTable(position) {
  return trace.labels.length
    ? candidateTable("label", trace.top[0], trace.top[0][0].id)
    : candidateTable("token", trace.top[position], trace.predicted.ids[position]);
}

/* predictedId: the id of the candidate to highlight. */
function candidateTable(title, candidates, predictedId) {
  const rows = candidates.map((candidate) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", class: candidate.id === predictedId ? "match" : null }, tokenElement(candidate.token)),
      make("td", { class: "numeric" }, formatPercent(candidate.probability)),
      make("td", {}, meter(candidate.probability)),
    ),
  );
  return table([title, { content: "probability", isNumeric: true }, ""], rows, { class: "wide" });
}

function outputView() {
  if (trace.labels.length) return labelsView();
  const side = trace.target.tokens.length ? "target" : "source";
  const controls = make("div", {});
  const panels = make("div", { class: "columns" });
  const refresh = () => {
    const selectPosition = (position) => {
      outputSelection.position = position;
      refresh();
      focusRadioGroup("position");
    };
    const legend = side === "target" ? "the decoder reads" : "position";
    const tokens = tokenRadioGroup(legend, side, outputSelection.position, selectPosition);
    controls.replaceChildren(make("div", { "data-field": "position" }, tokens));
    panels.replaceChildren(...predictionPanels(outputSelection.position));
  };
  refresh();
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Output"),
    make(
      "p",
      { class: "prose" },
      side === "target"
        ? "At each position the decoder has read the tokens up to here and predicts the next one. Choose a position: the token it reads there and, after the arrow, the token it is to predict."
        : "The token predicted at each position: given the whole text, and with the token there masked.",
    ),
    controls,
    panels,
    trace.removal ? attentionAndAttributionMaps() : null,
    trace.lens ? logitLensTable() : null,
  );
  return { view, refresh };
}

function labelsView() {
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Output"),
    make("p", { class: "prose" }, "The probability of each label, for the text as a whole."),
    make(
      "div",
      { class: "columns" },
      make("div", { class: "panel" }, make("h3", {}, "Labels"), predictionTable(0)),
      labelAttributionPanel(),
    ),
  );
  return { view };
}

/* Attribution of the most probable label to each token. */
function labelAttributionPanel() {
  const [best] = trace.top[0];
  const [changes] = trace.removal;
  const largest = Math.max(...changes.map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, index) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenElement(token)),
      make("td", { class: "numeric" }, formatChange(changes[index])),
      make("td", {}, meter(Math.abs(changes[index]) / largest, changes[index] > 0)),
    ),
  );
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Attribution of ", tokenElement(best.token)),
    table(["token", { content: "leave-one-out", isNumeric: true }, ""], rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      "Leave-one-out: the change of the label’s log-probability without that token. Blue: the token raises it; orange: it lowers it.",
    ),
  );
}

/* The prediction at a position with the token there masked (trace.holes). */
function maskedPredictionPanel(position) {
  const { ids, tokens } = trace.source;
  const probability = Math.exp(trace.holes.log_probs[position]);
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Most probable tokens with this one masked"),
    candidateTable("token", trace.holes.top[position], ids[position]),
    make("p", { class: "faint" }, tokenElement(tokens[position]), ` itself: ${formatPercent(probability)}.`),
  );
}

function predictionPanels(position) {
  const panels = [make("div", { class: "panel" }, make("h3", {}, "Most probable tokens"), predictionTable(position))];
  if (trace.removal) panels.unshift(attributionPanel(position));
  if (trace.lens) panels.push(logitLensPanel(position));
  if (trace.holes && position < trace.holes.top.length) panels.push(maskedPredictionPanel(position));
  return panels;
}

function attributionPanel(position) {
  const predicted = trace.predicted.tokens[position];
  const attention = attentionWeights("cross", trace.alignment_layer, 0);
  const weights = attention.values.subarray(position * attention.columns, (position + 1) * attention.columns);
  const changes = trace.removal[position];
  const largest = Math.max(...trace.removal.flat().map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, index) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenElement(token)),
      make("td", { class: "numeric" }, formatPercent(weights[index])),
      make("td", {}, meter(weights[index])),
      make("td", { class: "numeric" }, formatChange(changes[index])),
      make("td", {}, meter(Math.abs(changes[index]) / largest, changes[index] > 0)),
    ),
  );
  const headers = [
    "source token",
    { content: "attention", isNumeric: true },
    "",
    { content: "leave-one-out", isNumeric: true },
    "",
  ];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Cross-attention and attribution of ", tokenElement(predicted)),
    table(headers, rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      `Attention: cross-attention of layer ${trace.alignment_layer}, mean of its heads. Leave-one-out: the change of the log-probability of `,
      tokenElement(predicted),
      " without that source token; blue: the token raises it, orange: it lowers it. Attention is not an explanation: a token can be attended to without affecting the prediction, and the other way round.",
    ),
  );
}

function logitLensPanel(position) {
  const rows = trace.lens.top.map((predictions, index) => {
    const [first, second, third] = predictions[position];
    const isMatch = first.id === trace.predicted.ids[position];
    return make(
      "tr",
      {},
      make("th", { scope: "row", class: "numeric" }, String(index + 1)),
      make("td", { class: isMatch ? "match" : null }, tokenElement(first.token)),
      make("td", { class: "numeric" }, formatPercent(first.probability)),
      make(
        "td",
        { class: "faint" },
        [second, third]
          .filter(Boolean)
          .flatMap(({ token, probability }, rank) => [
            rank ? ", " : "",
            tokenElement(token),
            ` ${formatPercent(probability)}`,
          ]),
      ),
      make("td", { class: "numeric" }, formatPercent(Math.exp(trace.lens.log_probs[index][position]))),
    );
  });
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Logit lens: the prediction after each layer"),
    table(
      [
        "layer",
        "top token",
        { content: "probability", isNumeric: true },
        "next",
        { content: [tokenElement(trace.predicted.tokens[position])], isNumeric: true },
      ],
      rows,
    ),
    make(
      "p",
      { class: "faint" },
      "The output of each layer goes straight through the final norm and the output projection, as if no layer followed. The last row is the model’s own prediction.",
    ),
  );
}

/* Cross-attention and attribution over the whole sentence, side by side: rows are target, columns source tokens. */
function attentionAndAttributionMaps() {
  const formatLoss = (loss) => `log-probability ${formatChange(-loss)} without it`;
  const attention = attentionWeights("cross", trace.alignment_layer, 0);
  const losses = Float32Array.from(trace.removal.flat().map((change) => -change)); // positive: the token helps
  const attribution = { ...attention, values: losses };
  return make(
    "div",
    { class: "columns" },
    make(
      "div",
      { class: "panel" },
      make("h3", {}, `Cross-attention, layer ${trace.alignment_layer}`),
      labelledHeatMap("cross-attention", attention, "target", "source", formatPercent),
    ),
    make(
      "div",
      { class: "panel" },
      make("h3", {}, "Attribution: leave-one-out"),
      labelledHeatMap("leave-one-out", attribution, "target", "source", formatLoss),
    ),
  );
}

/* A change of a log-probability; below 0.005 it is shown as 0. */
function formatChange(value) {
  return Math.abs(value) < 0.005 ? "0" : `${value > 0 ? "+" : ""}${formatNumber(value, 2)}`;
}

/* The most probable token after each layer, at every position. */
function logitLensTable() {
  const layers = trace.lens.top.length;
  const rows = tokensOf("target").map((token, position) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenElement(token)),
      trace.lens.top.map((predictions) => {
        const best = predictions[position][0];
        const isMatch = best.id === trace.predicted.ids[position];
        return make(
          "td",
          { class: isMatch ? "shaded match" : "shaded", "--fraction": best.probability },
          tokenElement(best.token),
          " ",
          make("span", { class: "faint" }, formatPercent(best.probability)),
        );
      }),
      make("td", {}, tokenElement(trace.predicted.tokens[position])),
    ),
  );
  const headers = ["reads", ...Array.from({ length: layers }, (_, layer) => `layer ${layer + 1}`), "to predict"];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Logit lens at every position"),
    make("div", { class: "scroll" }, table(headers, rows)),
  );
}
