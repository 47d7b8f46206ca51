/* Heat maps of matrices and vectors, drawn on canvases and repainted when the theme changes. */

const heatMaps = []; // a WeakRef to each canvas, which has a method `paint`

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(/\s+/u).map(Number);
  return { positive: read("--positive"), negative: read("--negative") };
}

/* A pixel per value: the larger its absolute value, the stronger the colour. maximum: the value of the full colour. */
function heatMapCanvas(rows, columns, values, maximum) {
  const canvas = make("canvas", { width: columns, height: rows });
  const largest = maximum ?? (values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1);
  const paint = () => {
    const { positive, negative } = themeColours();
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    values.forEach((value, index) => {
      image.data.set(value < 0 ? negative : positive, 4 * index);
      image.data[4 * index + 3] = 255 * Math.min(1, Math.abs(value) / largest);
    });
    context.putImageData(image, 0, 0);
  };
  paint();
  heatMaps.push(new WeakRef(Object.assign(canvas, { paint })));
  return canvas;
}

/* Repaint all heat maps that are still part of the page. */
function repaintHeatMaps() {
  const remaining = heatMaps.filter((reference) => reference.deref()?.isConnected || reference.deref()?.parentNode);
  heatMaps.splice(0, heatMaps.length, ...remaining);
  for (const reference of heatMaps) reference.deref()?.paint();
}

/* The row and column of a canvas that the pointer is on. */
function cellAtPointer(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const cell = (fraction, count) => Math.min(count - 1, Math.max(0, Math.floor(fraction * count)));
  return {
    row: cell((event.clientY - box.top) / box.height, canvas.height),
    column: cell((event.clientX - box.left) / box.width, canvas.width),
  };
}

/* A heat map with the tokens of its rows and columns. formatValue: the text of a value while the pointer is on it. */
function labelledHeatMap(title, { rows, columns, values }, rowSide, columnSide, formatValue) {
  const canvas = heatMapCanvas(rows, columns, values);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}: ${rows} rows (queries), ${columns} columns (keys)`);
  const readout = make("output", { class: "faint" }, "Point at the map to read it.");
  const rowName = (row) => {
    const token = isolatedLabel(tokensOf(rowSide)[row]);
    return rowSide === "target" ? `${token} → ${isolatedLabel(trace.predicted.tokens[row])}` : token;
  };
  canvas.addEventListener("pointermove", (event) => {
    const { row, column } = cellAtPointer(event, canvas);
    const key = isolatedLabel(tokensOf(columnSide)[column]);
    readout.textContent = `${rowName(row)}, ${key}: ${formatValue(values[row * columns + column])}`;
  });
  const rowLabels = tokensOf(rowSide).map((token, row) => {
    const predicted = predictedToken(rowSide, row);
    const arrow = predicted === null ? null : make("small", {}, " → ", tokenElement(predicted));
    return make("li", {}, tokenElement(token), arrow);
  });
  const columnLabels = tokensOf(columnSide).map((token) => make("li", {}, tokenElement(token)));
  const grid = make(
    "div",
    { class: "labelled-map", "--rows": rows, "--columns": columns },
    make("ol", { class: "column-labels" }, columnLabels),
    make("ol", { class: "row-labels" }, rowLabels),
    canvas,
  );
  return make("div", { class: "panel" }, make("div", { class: "scroll" }, grid), readout);
}

/* A vector as a heat map of one row. headRange: the dimensions of the selected head, [first, end). */
function vectorStrip(name, values, headRange = null) {
  const canvas = heatMapCanvas(1, values.length, values);
  const [smallest, largest] = [Math.min(...values), Math.max(...values)];
  const summary = `${values.length} values, ${formatNumber(smallest)} to ${formatNumber(largest)}`;
  const readout = make("output", {}, summary);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: ${summary}`);
  canvas.addEventListener("pointermove", (event) => {
    const dimension = cellAtPointer(event, canvas).column;
    const isOfHead = headRange && dimension >= headRange[0] && dimension < headRange[1];
    const head = isOfHead ? ", this head’s" : "";
    readout.textContent = `dimension ${dimension + 1}: ${formatNumber(values[dimension])}${head}`;
  });
  canvas.addEventListener("pointerleave", () => (readout.textContent = summary));
  return make(
    "div",
    { class: "strip" },
    make("div", { class: "line" }, make("span", { class: "name" }, make("b", {}, name)), readout),
    canvas,
  );
}
