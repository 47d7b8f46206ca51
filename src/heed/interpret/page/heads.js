/* The tab "Heads", one head at a time: queries on the left, keys on the right, a line for every attention weight. */

const ROW_HEIGHT = 36; // pixels, as --row in report.css
const headSelection = { kind: null, layer: 1, head: 1 }; // head 0: the mean of all. Other tabs set it to open a head

function headsView() {
  const columns = make("div", { class: "columns" });
  const controls = make("div", { class: "controls" });
  const summary = make("p", { class: "faint", "aria-live": "polite" });
  const refresh = () => {
    const { kind, head } = headSelection;
    headSelection.layer = Math.min(headSelection.layer, layerCount(kind));
    controls.replaceChildren(...headControls(refresh));
    const weights = attentionWeights(kind, headSelection.layer, head);
    const sides = ATTENTION_KINDS[kind];
    columns.replaceChildren(
      attentionLines(weights, kind, summary),
      make(
        "div",
        { class: "panel" },
        make("h3", {}, "The same weights as a heat map"),
        labelledHeatMap("weights", weights, sides.rows, sides.columns, formatPercent),
      ),
    );
  };
  if (headSelection.kind === null)
    Object.assign(headSelection, { kind: attentionKinds().at(-1), layer: trace.alignment_layer ?? 1 });
  refresh();
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "One head"),
    make(
      "p",
      { class: "prose" },
      "Tokens on the left (queries) attend to tokens on the right (keys). The stronger a line, the larger the attention weight; the weights of a query add up to one. Point at a token, or move to it with the Tab key, to see only its lines; select it to keep them.",
    ),
    controls,
    summary,
    columns,
  );
  return { view, refresh };
}

function headControls(refresh) {
  const { kind, layer, head } = headSelection;
  const setField = (field) => (value) => {
    headSelection[field] = value;
    refresh();
    focusRadioGroup(field);
  };
  const headOptions = [...numberOptions(arrays.get(`attention.${kind}`).shape[1]), { value: 0, content: "mean" }];
  const groups = {
    kind: attentionRadioGroup(kind, setField("kind")),
    layer: radioGroup("layer", numberOptions(layerCount(kind)), layer, setField("layer")),
    head: radioGroup("head", headOptions, head, setField("head")),
  };
  for (const [field, element] of Object.entries(groups)) element.dataset.field = field;
  return Object.values(groups);
}

/* Two columns of tokens and the lines between them. Hovering over or focusing a token shows only its lines; clicking
   pins them. summary: the element for the text about them. */
function attentionLines(weights, kind, summary) {
  const { rows, columns } = ATTENTION_KINDS[kind];
  const svg = makeSvg("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
  const container = make("div", { class: "attention-lines" });
  const buttons = { left: [], right: [] };
  let pinned = null; // {side: "left" or "right", position}
  const show = (focus) => showLines({ weights, kind, container, svg, summary, buttons }, focus ?? pinned);
  const togglePin = (side, position, button) => {
    pinned = pinned && pinned.side === side && pinned.position === position ? null : { side, position };
    for (const other of [...buttons.left, ...buttons.right]) other.setAttribute("aria-pressed", "false");
    if (pinned) button.setAttribute("aria-pressed", "true");
    show(null);
  };
  const tokenItem = (side, token, position) => {
    const predicted = side === "left" ? predictedToken(rows, position) : null;
    const button = make(
      "button",
      {
        type: "button",
        class: "token",
        "aria-pressed": "false",
        "aria-label": attentionText(weights, kind, side, position),
        pointerenter: () => show({ side, position }),
        pointerleave: () => show(null),
        focus: () => show({ side, position }),
        blur: () => show(null),
        click: () => togglePin(side, position, button),
      },
      tokenElement(token),
      predicted === null ? null : make("small", {}, "→ ", tokenElement(predicted)),
    );
    buttons[side].push(button);
    const weight = make("span", { class: "weight" });
    return make("li", {}, side === "left" ? [weight, button] : [button, weight]);
  };
  const queries = tokensOf(rows).map((token, position) => tokenItem("left", token, position));
  const keys = tokensOf(columns).map((token, position) => tokenItem("right", token, position));
  container.append(make("ul", { class: "tokens queries" }, queries), svg, make("ul", { class: "tokens" }, keys));
  show(null);
  return container;
}

/* focus: {side, position} of the token whose lines are shown; null: all lines. The ends of a line follow from
   ROW_HEIGHT, so no layout is measured. */
function showLines({ weights, kind, container, svg, summary, buttons }, focus) {
  const { rows, columns, values } = weights;
  const height = ROW_HEIGHT * Math.max(rows, columns);
  const middle = (count, position) => height / 2 + ROW_HEIGHT * (position - (count - 1) / 2);
  const largest = values.reduce((most, weight) => Math.max(most, weight), 0) || 1;
  const paths = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const weight = values[row * columns + column];
      const isOutOfFocus = focus && focus.position !== (focus.side === "left" ? row : column);
      if (weight < 0.01 || isOutOfFocus) continue;
      const [from, to] = [middle(rows, row), middle(columns, column)];
      paths.push(
        makeSvg("path", {
          d: `M0 ${from}C50 ${from} 50 ${to} 100 ${to}`,
          "stroke-opacity": Math.min(1, weight / largest).toFixed(3),
          "stroke-width": (0.6 + 2.2 * weight).toFixed(2),
        }),
      );
    }
  }
  svg.setAttribute("viewBox", `0 0 100 ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren(...paths);
  container.classList.toggle("isolated", focus !== null);
  const weightWithFocus = (side, position) =>
    side === "left" ? values[position * columns + focus.position] : values[focus.position * columns + position];
  for (const [side, sideButtons] of Object.entries(buttons)) {
    sideButtons.forEach((button, position) => {
      const isOpposite = focus !== null && focus.side !== side;
      const weight = isOpposite ? weightWithFocus(side, position) : 0;
      button.style.setProperty("--fraction", weight);
      button.classList.toggle("highlighted", isOpposite ? weight >= 0.01 : focus?.position === position);
      const weightElement = button.parentElement?.querySelector(".weight");
      if (weightElement) weightElement.textContent = weight >= 0.005 ? formatPercent(weight) : "";
    });
  }
  summary.textContent = focus
    ? attentionText(weights, kind, focus.side, focus.position)
    : `${capitalize(ATTENTION_KINDS[kind].description)}.`;
}

/* What a query (left) attends to, or what a key (right) is attended to by, with the three largest weights. */
function attentionText({ rows, columns, values }, kind, side, position) {
  const { rows: querySide, columns: keySide } = ATTENTION_KINDS[kind];
  const [queries, keys] = [tokensOf(querySide), tokensOf(keySide)];
  const list = (weights, tokens) =>
    topK(weights, 3)
      .map(({ value, index }) => `${isolatedLabel(tokens[index])} ${formatPercent(value)}`)
      .join(", ");
  if (side === "left") {
    const weights = values.subarray(position * columns, (position + 1) * columns);
    const predicted = predictedToken(querySide, position);
    const prediction = predicted === null ? "" : `, from which ${isolatedLabel(predicted)} is predicted,`;
    return `${isolatedLabel(queries[position])}${prediction} attends to ${list(weights, keys)}`;
  }
  const weights = Array.from({ length: rows }, (_, row) => values[row * columns + position]);
  return `${isolatedLabel(keys[position])} is attended to by ${list(weights, queries)}`;
}
