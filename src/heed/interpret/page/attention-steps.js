/* Of the tab "Step by step", the steps of attention: one query against every key, and the selected key in detail.
   attention: the result of `attend`. */

/* selected: the position of the selected key. onSelect: called with the position of a key. */
function keyTable(kind, attention, selected, onSelect) {
  const largest = Math.max(...attention.weights);
  const rows = tokensOf(ATTENTION_KINDS[kind].columns).map((token, position) => {
    const isMasked = attention.isMasked[position];
    const isSelected = position === selected;
    const button = make(
      "button",
      {
        type: "button",
        "aria-pressed": String(isSelected),
        click: () => onSelect(position),
        "data-key": position,
      },
      tokenElement(token),
    );
    return make(
      "tr",
      { class: [isSelected ? "selected" : "", isMasked ? "masked" : ""].join(" ").trim() || null },
      make("th", { scope: "row" }, button),
      make("td", { class: "numeric" }, formatNumber(attention.scores[position])),
      make("td", { class: "numeric" }, formatNumber(attention.scaled[position])),
      make("td", {}, isMasked ? "yes: later" : "no"),
      make("td", { class: "numeric" }, attention.weights[position].toFixed(3)),
      make("td", {}, meter(attention.weights[position] / largest)),
    );
  });
  const headers = [
    "key",
    { content: formula("q · k"), isNumeric: true },
    { content: formula("/ √d_k"), isNumeric: true },
    "masked",
    { content: formula("softmax"), isNumeric: true },
    "",
  ];
  return make("div", { class: "scroll" }, table(headers, rows, { class: "wide" }));
}

/* Query, key and their dot product, for the selected key. */
function scoreSteps({ position, key, kind }, attention) {
  const queryLabel = isolatedLabel(tokensOf(ATTENTION_KINDS[kind].rows)[position]);
  const keyLabel = isolatedLabel(tokensOf(ATTENTION_KINDS[kind].columns)[key]);
  const products = attention.query.map((value, index) => value * attention.keys[key][index]);
  const largestTerms = topK(products.map(Math.abs), 3)
    .map(({ index }) => `${formatNumber(attention.query[index], 2)} × ${formatNumber(attention.keys[key][index], 2)}`)
    .join("  +  ");
  const unrotated = attention.isRotary ? [vectorStrip("q before rotation", attention.unrotatedQuery)] : [];
  return [
    step(
      "Query, key, value",
      "q = x W_Q + b_Q,  k = c W_K + b_K,  v = c W_V + b_V",
      "Each head has its own projections. c is what the query attends to: the hidden states of the same side, or in cross-attention the encoder’s output.",
      ...unrotated,
      vectorStrip(`q of ${queryLabel}`, attention.query),
      vectorStrip(`k of ${keyLabel}`, attention.keys[key]),
      vectorStrip(`v of ${keyLabel}`, attention.values[key]),
    ),
    step(
      "Dot product",
      "q · k = Σ_i q_i k_i",
      "The score of this query and key. The table below has the scores of all keys; select a key to see it here.",
      vectorStrip("q ⊙ k, elementwise", products),
      make("p", { class: "number" }, `${largestTerms}  + …  = `, make("b", {}, formatNumber(attention.scores[key]))),
    ),
  ];
}

/* Weights times values: the largest terms, and the sum over all keys. */
function weightedSumStep({ kind }, attention) {
  const tokens = tokensOf(ATTENTION_KINDS[kind].columns);
  const strips = topK(attention.weights, 3)
    .filter(({ value: weight }) => weight >= 0.005)
    .map(({ value: weight, index }) =>
      vectorStrip(
        `${weight.toFixed(3)} × v of ${isolatedLabel(tokens[index])}`,
        attention.values[index].map((element) => element * weight),
      ),
    );
  return step(
    "Weighted sum of values",
    "head = Σ_j weight_j v_j",
    "The output of the head: the values of all keys, weighted by attention.",
    ...strips,
    vectorStrip(`the sum over all ${tokens.length}`, attention.output),
  );
}
