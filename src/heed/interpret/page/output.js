/* What the model said: the likeliest words at each step, layer by layer, and what it looked at beside what it needed. */

const asked = { row: 0 };

/* A classifier says one thing, of the whole text. */
function topWords(row) {
  return trace.labels.length
    ? candidateTable("label", trace.top[0], trace.top[0][0].id)
    : candidateTable("word", trace.top[row], trace.predicted.ids[row]);
}

function candidateTable(title, candidates, chosen) {
  const rows = candidates.map((candidate) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", class: candidate.id === chosen ? "hit" : null }, word(candidate.token)),
      make("td", { class: "n" }, percent(candidate.probability)),
      make("td", {}, meter(candidate.probability)),
    ),
  );
  return table([title, { face: "share", number: true }, ""], rows, { class: "wide" });
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
        chooseWord(side === "target" ? "the decoder reads" : "place", side, asked.row, (row) => {
          asked.row = row;
          refresh();
          focusChoice("row");
        }),
      ),
    );
    panels.replaceChildren(...answers(side, asked.row));
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
        ? "At each place the decoder has read the words up to here and predicts the next one. Choose a place: the word it reads there, and after the arrow the word that it is asked for."
        : "Which word the model believes to stand at each place: as it has read it, and had it been hidden.",
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
    make("p", { class: "prose" }, "How likely the model finds each label, for the text as a whole."),
    make("div", { class: "beside" }, make("div", { class: "panel" }, make("h3", {}, "Labels"), topWords(0)), neededWords()),
  );
  return { view };
}

/* What each word did for the likeliest label. */
function neededWords() {
  const [best] = trace.top[0];
  const [changes] = trace.removal;
  const most = Math.max(...changes.map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, place) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, word(token)),
      make("td", { class: "n" }, change(changes[place])),
      make("td", {}, meter(Math.abs(changes[place]) / most, changes[place] > 0)),
    ),
  );
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "What it needed, for ", word(best.token)),
    table(["word", { face: "if removed", number: true }, ""], rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      "The change of the label’s log-probability when that word is taken away; blue, it had helped; orange, it had been in the way.",
    ),
  );
}

/* What would stand at a place whose word the model cannot see. */
function holeAt(row) {
  const there = trace.source.ids[row];
  const share = Math.exp(trace.holes.log_probs[row]);
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "The likeliest words, were it hidden"),
    candidateTable("word", trace.holes.top[row], there),
    make("p", { class: "faint" }, word(trace.source.tokens[row]), ` itself has ${percent(share)}.`),
  );
}

function answers(side, row) {
  const panels = [make("div", { class: "panel" }, make("h3", {}, "The likeliest words here"), topWords(row))];
  if (trace.removal) panels.unshift(causes(row));
  if (trace.lens) panels.push(lensOf(row));
  if (trace.holes && row < trace.holes.top.length) panels.push(holeAt(row));
  return panels;
}

function causes(row) {
  const looked = weightsOf("cross", trace.alignment_layer, 0);
  const weights = looked.values.subarray(row * looked.columns, (row + 1) * looked.columns);
  const changes = trace.removal[row];
  const most = Math.max(...trace.removal.flat().map(Math.abs)) || 1;
  const rows = tokensOf("source").map((token, place) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, word(token)),
      make("td", { class: "n" }, percent(weights[place])),
      make("td", {}, meter(weights[place])),
      make("td", { class: "n" }, change(changes[place])),
      make("td", {}, meter(Math.abs(changes[place]) / most, changes[place] > 0)),
    ),
  );
  const heads = ["source word", { face: "looked at", number: true }, "", { face: "if removed", number: true }, ""];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "What it looked at, and what it needed, for ", word(trace.predicted.tokens[row])),
    table(heads, rows, { class: "wide" }),
    make(
      "p",
      { class: "faint" },
      `Looked at: cross attention of layer ${trace.alignment_layer}, mean of its heads. If removed: the change of the log-probability of `,
      word(trace.predicted.tokens[row]),
      " when that source word is taken away; blue, it had helped; orange, it had been in the way. Attention is not an explanation: a word can be looked at and not be needed, and the other way round.",
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
      make("td", { class: hit ? "hit" : null }, word(first.token)),
      make("td", { class: "n" }, percent(first.probability)),
      make(
        "td",
        { class: "faint" },
        [second, third]
          .filter(Boolean)
          .flatMap((other, place) => [place ? ", " : "", word(other.token), ` ${percent(other.probability)}`]),
      ),
      make("td", { class: "n" }, percent(Math.exp(trace.lens.log_probs[number][row]))),
    );
  });
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "What each layer would have said"),
    table(
      [
        "layer",
        "first",
        { face: "share", number: true },
        "then",
        { face: [word(trace.predicted.tokens[row])], number: true },
      ],
      rows,
    ),
    make(
      "p",
      { class: "faint" },
      "The logit lens: what leaves a layer goes through the last norm and the output matrix at once, as if no layer followed. The last layer says what the model says.",
    ),
  );
}

/* Both over the whole sentence, side by side: rows are the target's, columns the source's. */
function bothMaps() {
  const looked = weightsOf("cross", trace.alignment_layer, 0);
  const needed = { ...looked, values: Float32Array.from(trace.removal.flat().map((change) => -change)) }; // what helped, in the first colour
  return make(
    "div",
    { class: "beside" },
    make(
      "div",
      { class: "panel" },
      make("h3", {}, `Looked at: cross attention, layer ${trace.alignment_layer}`),
      labelledMap("cross attention", looked, "target", "source", percent),
    ),
    make(
      "div",
      { class: "panel" },
      make("h3", {}, "Needed: by removal"),
      labelledMap("removal", needed, "target", "source", (loss) => `log-probability ${change(-loss)} without it`),
    ),
  );
}

/* A change of a log-probability; what is too small to matter is zero. */
function change(value) {
  return Math.abs(value) < 0.005 ? "0" : `${value > 0 ? "+" : ""}${number(value, 2)}`;
}

function wholeLens() {
  const layers = trace.lens.top.length;
  const rows = tokensOf("target").map((token, row) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, word(token)),
      trace.lens.top.map((layer) => {
        const best = layer[row][0];
        return make(
          "td",
          { class: best.id === trace.predicted.ids[row] ? "shade hit" : "shade", "--share": best.probability },
          word(best.token),
          " ",
          make("span", { class: "faint" }, percent(best.probability)),
        );
      }),
      make("td", {}, word(trace.predicted.tokens[row])),
    ),
  );
  const heads = ["reads", ...Array.from({ length: layers }, (_, layer) => `layer ${layer + 1}`), "asked for"];
  return make(
    "div",
    { class: "panel" },
    make("h3", {}, "The same for every place: when does the answer appear?"),
    make("div", { class: "scroll" }, table(heads, rows)),
  );
}
