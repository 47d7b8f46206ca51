/* The predictions: top tokens, logit lens, and cross-attention beside attribution by occlusion. */

const selected = { row: 0 };

/* A classifier has one prediction, for the whole text. */
function topTokens(row) {
  return trace.labels.length
    ? candidateTable("label", trace.top[0], trace.top[0][0].id)
    : candidateTable("token", trace.top[row], trace.predicted.ids[row]);
}

function candidateTable(title, candidates, chosen) {
  const rows = candidates.map((candidate) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", class: candidate.id === chosen ? "hit" : null }, tokenText(candidate.token)),
      make("td", { class: "n" }, percent(candidate.probability)),
      make("td", {}, meter(candidate.probability)),
    ),
  );
  return table([title, { face: "probability", number: true }, ""], rows, { class: "wide" });
}

function outputView() {
  if (trace.labels.length) return labelsView();
  const side = trace.target.tokens.length ? "target" : "source";
  const controls = make("div", {});
  const panels = make("div", { class: "beside" });
  const refresh = () => {
    controls.replaceChildren(
      make(
        "div",
        { "data-field": "row" },
        chooseToken(side === "target" ? "the decoder reads" : "position", side, selected.row, (row) => {
          selected.row = row;
          refresh();
          focusChoice("row");
        }),
      ),
    );
    panels.replaceChildren(...predictionPanels(side, selected.row));
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
    trace.removal ? bothMaps() : null,
    trace.lens ? wholeLens() : null,
  );
  return { view, refresh };
}

function labelsView() {
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Output"),
    make("p", { class: "prose" }, "The probability of each label, for the text as a whole."),
    make("div", { class: "beside" }, make("div", { class: "panel" }, make("h3", {}, "Labels"), topTokens(0)), labelAttribution()),
  );
  return { view };
}

/* Attribution of the most probable label to each token. */
function labelAttribution() {
  const [best] = trace.top[0];
  const [changes] = trace.removal;
  const most = Math.max(...changes.map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, place) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenText(token)),
      make("td", { class: "n" }, change(changes[place])),
      make("td", {}, meter(Math.abs(changes[place]) / most, changes[place] > 0)),
    ),
  );
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Attribution of ", tokenText(best.token)),
    table(["token", { face: "leave-one-out", number: true }, ""], rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      "Leave-one-out: the change of the label’s log-probability without that token. Blue: the token raises it; orange: it lowers it.",
    ),
  );
}

/* The prediction at a position whose token is masked. */
function maskedPrediction(row) {
  const there = trace.source.ids[row];
  const share = Math.exp(trace.holes.log_probs[row]);
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Most probable tokens with this one masked"),
    candidateTable("token", trace.holes.top[row], there),
    make("p", { class: "faint" }, tokenText(trace.source.tokens[row]), ` itself: ${percent(share)}.`),
  );
}

function predictionPanels(side, row) {
  const panels = [make("div", { class: "panel" }, make("h3", {}, "Most probable tokens"), topTokens(row))];
  if (trace.removal) panels.unshift(attributionPanel(row));
  if (trace.lens) panels.push(lensOf(row));
  if (trace.holes && row < trace.holes.top.length) panels.push(maskedPrediction(row));
  return panels;
}

function attributionPanel(row) {
  const attention = weightsOf("cross", trace.alignment_layer, 0);
  const weights = attention.values.subarray(row * attention.columns, (row + 1) * attention.columns);
  const changes = trace.removal[row];
  const most = Math.max(...trace.removal.flat().map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, place) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenText(token)),
      make("td", { class: "n" }, percent(weights[place])),
      make("td", {}, meter(weights[place])),
      make("td", { class: "n" }, change(changes[place])),
      make("td", {}, meter(Math.abs(changes[place]) / most, changes[place] > 0)),
    ),
  );
  const heads = ["source token", { face: "attention", number: true }, "", { face: "leave-one-out", number: true }, ""];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Cross-attention and attribution of ", tokenText(trace.predicted.tokens[row])),
    table(heads, rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      `Attention: cross-attention of layer ${trace.alignment_layer}, mean of its heads. Leave-one-out: the change of the log-probability of `,
      tokenText(trace.predicted.tokens[row]),
      " without that source token; blue: the token raises it, orange: it lowers it. Attention is not an explanation: a token can be attended to without affecting the prediction, and the other way round.",
    ),
  );
}

function lensOf(row) {
  const rows = trace.lens.top.map((layer, number) => {
    const [first, second, third] = layer[row];
    const hit = first.id === trace.predicted.ids[row];
    return make(
      "tr",
      {},
      make("th", { scope: "row", class: "n" }, String(number + 1)),
      make("td", { class: hit ? "hit" : null }, tokenText(first.token)),
      make("td", { class: "n" }, percent(first.probability)),
      make(
        "td",
        { class: "faint" },
        [second, third]
          .filter(Boolean)
          .flatMap((other, place) => [place ? ", " : "", tokenText(other.token), ` ${percent(other.probability)}`]),
      ),
      make("td", { class: "n" }, percent(Math.exp(trace.lens.log_probs[number][row]))),
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
        { face: "probability", number: true },
        "next",
        { face: [tokenText(trace.predicted.tokens[row])], number: true },
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

/* Both over the whole sentence, side by side: rows are the target's, columns the source's. */
function bothMaps() {
  const attention = weightsOf("cross", trace.alignment_layer, 0);
  const attribution = { ...attention, values: Float32Array.from(trace.removal.flat().map((change) => -change)) }; // helpful tokens in the first colour
  return make(
    "div",
    { class: "beside" },
    make(
      "div",
      { class: "panel" },
      make("h3", {}, `Cross-attention, layer ${trace.alignment_layer}`),
      labelledMap("cross-attention", attention, "target", "source", percent),
    ),
    make(
      "div",
      { class: "panel" },
      make("h3", {}, "Attribution: leave-one-out"),
      labelledMap("leave-one-out", attribution, "target", "source", (loss) => `log-probability ${change(-loss)} without it`),
    ),
  );
}

/* A change of a log-probability; below 0.005 it is shown as 0. */
function change(value) {
  return Math.abs(value) < 0.005 ? "0" : `${value > 0 ? "+" : ""}${number(value, 2)}`;
}

function wholeLens() {
  const layers = trace.lens.top.length;
  const rows = tokensOf("target").map((token, row) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, tokenText(token)),
      trace.lens.top.map((layer) => {
        const best = layer[row][0];
        return make(
          "td",
          { class: best.id === trace.predicted.ids[row] ? "shade hit" : "shade", "--share": best.probability },
          tokenText(best.token),
          " ",
          make("span", { class: "faint" }, percent(best.probability)),
        );
      }),
      make("td", {}, tokenText(trace.predicted.tokens[row])),
    ),
  );
  const heads = ["reads", ...Array.from({ length: layers }, (_, layer) => `layer ${layer + 1}`), "to predict"];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "Logit lens at every position"),
    make("div", { class: "scroll" }, table(heads, rows)),
  );
}
