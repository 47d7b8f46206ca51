/* One head at a time: queries on the left, keys on the right, and a line for every attention weight. */

const shown = { kind: null, layer: 1, head: 1 }; // shared with the view of all heads, which opens heads here

function headsView() {
  const stage = make("div", { class: "beside" });
  const controls = make("div", { class: "controls" });
  const told = make("p", { class: "faint", "aria-live": "polite" });
  const refresh = () => {
    shown.layer = Math.min(shown.layer, layersOf(shown.kind));
    controls.replaceChildren(...headControls(refresh));
    const map = weightsOf(shown.kind, shown.layer, shown.head);
    const { rows, columns } = KINDS[shown.kind];
    stage.replaceChildren(
      headLines(shown, told),
      make(
        "div",
        { class: "panel" },
        make("h3", {}, "The same weights as a heat map"),
        labelledMap("weights", map, rows, columns, (weight) => percent(weight)),
      ),
    );
  };
  if (shown.kind === null) Object.assign(shown, { kind: kinds().at(-1), layer: trace.alignment_layer ?? 1 });
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
    told,
    stage,
  );
  return { view, refresh };
}

/* Built again at every choice, so the one that was chosen gets the focus back. */
function headControls(refresh) {
  const change = (field) => (value) => {
    shown[field] = value;
    refresh();
    focusChoice(field);
  };
  const heads = arrays.get(`attention.${shown.kind}`).shape[1];
  const fields = {
    kind: choose(
      "attention",
      kinds().map((kind) => ({ value: kind, face: KINDS[kind].title, title: KINDS[kind].says })),
      shown.kind,
      change("kind"),
    ),
    layer: choose("layer", numbered(layersOf(shown.kind)), shown.layer, change("layer")),
    head: choose("head", [...numbered(heads), { value: 0, face: "mean" }], shown.head, change("head")),
  };
  for (const [field, element] of Object.entries(fields)) element.dataset.field = field;
  return Object.values(fields);
}

function focusChoice(field) {
  document.querySelector(`.view:not([hidden]) [data-field="${field}"] input:checked`)?.focus();
}

function headLines({ kind, layer, head }, told) {
  const map = weightsOf(kind, layer, head);
  const { rows, columns } = KINDS[kind];
  const [left, right] = [tokensOf(rows), tokensOf(columns)];
  const svg = draw("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
  const stage = make("div", { class: "lines" });
  let kept = null;
  const show = (focus) => showLines({ map, kind, stage, svg, told, buttons }, focus ?? kept);
  const buttons = { left: [], right: [] };
  const column = (side, tokens, owner) =>
    make(
      "ul",
      { class: side === "left" ? "words rows" : "words" },
      tokens.map((token, place) => {
        const predicted = side === "left" ? predictedBy(owner, place) : null;
        const button = make(
          "button",
          {
            type: "button",
            class: "word",
            "aria-pressed": "false",
            "aria-label": attentionText(map, kind, side, place),
            pointerenter: () => show({ side, place }),
            pointerleave: () => show(null),
            focus: () => show({ side, place }),
            blur: () => show(null),
            click: () => {
              kept = kept && kept.side === side && kept.place === place ? null : { side, place };
              for (const other of [...buttons.left, ...buttons.right]) other.setAttribute("aria-pressed", "false");
              if (kept) button.setAttribute("aria-pressed", "true");
              show(null);
            },
          },
          tokenText(token),
          predicted === null ? null : make("small", {}, "→ ", tokenText(predicted)),
        );
        buttons[side].push(button);
        const share = make("span", { class: "share" });
        return make("li", {}, side === "left" ? [share, button] : [button, share]);
      }),
    );
  stage.append(column("left", left, rows), svg, column("right", right, columns));
  show(null);
  return stage;
}

/* Where each line begins and ends follows from the height of a row alone, so nothing need be measured. */
function showLines({ map, kind, stage, svg, told, buttons }, focus) {
  const height = 36 * Math.max(map.rows, map.columns);
  const middle = (count, place) => height / 2 + 36 * (place - (count - 1) / 2);
  const top = map.values.reduce((most, weight) => Math.max(most, weight), 0) || 1;
  const paths = [];
  for (let row = 0; row < map.rows; row++) {
    for (let column = 0; column < map.columns; column++) {
      const weight = map.values[row * map.columns + column];
      const away = focus && focus.place !== (focus.side === "left" ? row : column);
      if (weight < 0.01 || away) continue;
      const [from, to] = [middle(map.rows, row), middle(map.columns, column)];
      paths.push(
        draw("path", {
          d: `M0 ${from}C50 ${from} 50 ${to} 100 ${to}`,
          "stroke-opacity": Math.min(1, weight / top).toFixed(3),
          "stroke-width": (0.6 + 2.2 * weight).toFixed(2),
        }),
      );
    }
  }
  svg.setAttribute("viewBox", `0 0 100 ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren(...paths);
  stage.classList.toggle("isolated", focus !== null);
  const weight = (side, place) =>
    side === "left" ? map.values[place * map.columns + focus.place] : map.values[focus.place * map.columns + place];
  for (const [side, list] of Object.entries(buttons)) {
    list.forEach((button, place) => {
      const isOther = focus !== null && focus.side !== side;
      const share = isOther ? weight(side, place) : 0;
      button.style.setProperty("--share", share);
      button.classList.toggle("lit", isOther ? share >= 0.01 : focus?.place === place);
      const beside = button.parentElement?.querySelector(".share");
      if (beside) beside.textContent = share >= 0.005 ? percent(share) : "";
    });
  }
  told.textContent = focus
    ? attentionText(map, kind, focus.side, focus.place)
    : `${KINDS[kind].says[0].toUpperCase()}${KINDS[kind].says.slice(1)}.`;
}

function attentionText(map, kind, side, place) {
  const { rows, columns } = KINDS[kind];
  if (side === "left") {
    const best = strongest(map.values.subarray(place * map.columns, (place + 1) * map.columns), 3);
    const keys = best.map(({ value, place: at }) => `${named(tokensOf(columns)[at])} ${percent(value)}`).join(", ");
    const predicted = predictedBy(rows, place);
    return `${named(tokensOf(rows)[place])}${predicted === null ? "" : `, from which ${named(predicted)} is predicted,`} attends to ${keys}`;
  }
  const from = Array.from({ length: map.rows }, (_, row) => map.values[row * map.columns + place]);
  const queries = strongest(from, 3)
    .map(({ value, place: at }) => `${named(tokensOf(rows)[at])} ${percent(value)}`)
    .join(", ");
  return `${named(tokensOf(columns)[place])} is attended to by ${queries}`;
}
