/* The attention steps of the step-by-step view: one query against every key, and the selected key in detail. */

function keyTable(kind, found, chosen, onChoose) {
  const tokens = tokensOf(KINDS[kind].columns);
  const best = Math.max(...found.weights);
  const rows = tokens.map((token, place) => {
    const seen = found.seen[place];
    const button = make(
      "button",
      { type: "button", "aria-pressed": String(place === chosen), click: () => onChoose(place), "data-key": place },
      tokenText(token),
    );
    return make(
      "tr",
      { class: [place === chosen ? "chosen" : "", seen ? "" : "unseen"].join(" ").trim() || null },
      make("th", { scope: "row" }, button),
      make("td", { class: "n" }, number(found.scores[place])),
      make("td", { class: "n" }, number(found.scaled[place])),
      make("td", {}, seen ? "no" : "yes: later"),
      make("td", { class: "n" }, found.weights[place].toFixed(3)),
      make("td", {}, meter(found.weights[place] / best)),
    );
  });
  const heads = [
    "key",
    { face: formula("q · k"), number: true },
    { face: formula("/ √d_k"), number: true },
    "masked",
    { face: formula("softmax"), number: true },
    "",
  ];
  return make("div", { class: "scroll" }, table(heads, rows, { class: "wide" }));
}

/* Query, key and their dot product, for the selected key. */
function scoreSteps(state, found) {
  const { row, key, kind } = state;
  const [query, other] = [tokensOf(KINDS[kind].rows)[row], tokensOf(KINDS[kind].columns)[key]];
  const products = found.query.map((value, place) => value * found.keys[key][place]);
  const best = strongest(products.map(Math.abs), 3).map(({ place }) => place);
  const sum = best
    .map((place) => `${number(found.query[place], 2)} × ${number(found.keys[key][place], 2)}`)
    .join("  +  ");
  const turned = found.turned ? [strip("q before rotation", found.plainQuery)] : [];
  return [
    step(
      "Query, key, value",
      "q = x W_Q + b_Q,  k = c W_K + b_K,  v = c W_V + b_V",
      "Each head has its own projections. c is what the query attends to: the hidden states of the same side, or in cross-attention the encoder’s output.",
      ...turned,
      strip(`q of ${named(query)}`, found.query),
      strip(`k of ${named(other)}`, found.keys[key]),
      strip(`v of ${named(other)}`, found.values[key]),
    ),
    step(
      "Dot product",
      "q · k = Σ_i q_i k_i",
      "The score of this query and key. The table below has the scores of all keys; select a key to see it here.",
      strip("q ⊙ k, elementwise", products),
      make("p", { class: "number" }, `${sum}  + …  = `, make("b", {}, number(found.scores[key]))),
    ),
  ];
}

/* Weights times values: the largest terms, and the sum over all keys. */
function gatherStep(state, found) {
  const tokens = tokensOf(KINDS[state.kind].columns);
  const most = strongest(found.weights, 3).filter(({ value }) => value >= 0.005);
  const strips = most.map(({ value, place }) =>
    strip(
      `${value.toFixed(3)} × v of ${named(tokens[place])}`,
      found.values[place].map((part) => part * value),
    ),
  );
  return step(
    "Weighted sum of values",
    "head = Σ_j weight_j v_j",
    "The output of the head: the values of all keys, weighted by attention.",
    ...strips,
    strip(`the sum over all ${tokens.length}`, found.gathered),
  );
}
