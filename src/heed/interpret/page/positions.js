/* The tab "Positions": the positional encodings as a heat map, and their dot product by distance. */

function positionsView() {
  const kind = trace.model.positions;
  const side = trace.source.tokens.length ? "encoder" : "decoder";
  const tokens = tokensOf(side === "encoder" ? "source" : "target");
  const encodings = positionalEncodings(kind, side, tokens.length);
  const [formulaText, explanation] = {
    sinusoidal: [
      "p[pos, 2i] = sin(pos / 10000^{2i/d}),   p[pos, 2i+1] = cos(pos / 10000^{2i/d})",
      "A row per position, a column per dimension: high frequencies on the left, low ones on the right. All rows differ, and the encoding of position pos + k is a fixed rotation of that of pos.",
    ],
    learned: ["p = P[pos]", "A row per position of this sentence, as trained."],
    rotary: [
      "angle = pos / 10000^{2i/d_k}",
      "A row per position: the cosine of the angle by which each pair of dimensions of a query or key is rotated. Nothing is added to the embedding.",
    ],
  }[kind];
  const [rows, columns] = [encodings.length, encodings[0].length];
  const values = Float32Array.from(encodings.flatMap((encoding) => [...encoding]));
  const canvas = heatMapCanvas(rows, columns, values);
  const readout = make("output", { class: "faint" }, "Point at the picture to read it.");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `encodings of ${rows} positions, ${columns} dimensions each`);
  canvas.addEventListener("pointermove", (event) => {
    const { row: position, column: dimension } = cellAtPointer(event, canvas);
    const token = position < tokens.length ? `, ${isolatedLabel(tokens[position])}` : "";
    const value = formatNumber(encodings[position][dimension]);
    readout.textContent = `position ${position}${token}, dimension ${dimension}: ${value}`;
  });
  canvas.style.height = `${Math.min(26, Math.max(4, 384 / rows)) * rows}px`;
  const dotProducts = dotProductsByDistance(encodings, kind);
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Positions"),
    formula(formulaText),
    make("p", { class: "prose" }, explanation),
    make(
      "div",
      { class: "panel" },
      canvas,
      make("p", { class: "faint" }, `${rows} positions down, ${columns} dimensions across. `, readout),
    ),
    make("h3", {}, "Similarity of two positions"),
    make(
      "p",
      { class: "prose" },
      kind === "learned"
        ? "The dot product of the encodings of two positions by their distance; for learned encodings it is a mean."
        : "The dot product of the encodings of two positions depends only on their distance.",
    ),
    distanceCurve(dotProducts),
  );
  return { view };
}

/* A row per position; for rotary positions, the cosine of each angle. Learned encodings: those of this sentence. */
function positionalEncodings(kind, side, count) {
  if (kind === "learned")
    return Array.from({ length: count }, (_, position) => arrayRow(`${side}.positions`, position));
  const positions = Array.from({ length: Math.max(64, count) }, (_, position) => position);
  if (kind === "sinusoidal") return positions.map((position) => sinusoidalEncoding(position, trace.model.d_model));
  const headWidth = trace.model.d_model / trace.model.heads;
  return positions.map((position) => sinusoidalEncoding(position, headWidth).filter((_, index) => index % 2));
}

/* For learned encodings the mean over all pairs of positions; for rotary positions the sum of the cosines. */
function dotProductsByDistance(encodings, kind) {
  return encodings.map((encoding, distance) => {
    if (kind === "rotary") return encoding.reduce((sum, value) => sum + value, 0);
    if (kind !== "learned") return dot(encodings[0], encoding);
    const pairs = encodings.slice(distance).map((other, position) => dot(encodings[position], other));
    return pairs.reduce((sum, value) => sum + value, 0) / pairs.length;
  });
}

function distanceCurve(dotProducts) {
  const [width, height, leftMargin, bottomMargin] = [560, 240, 44, 34];
  const [low, high] = [Math.min(0, ...dotProducts), Math.max(...dotProducts)];
  const x = (distance) => leftMargin + ((width - leftMargin - 10) * distance) / Math.max(1, dotProducts.length - 1);
  const y = (value) => 10 + ((height - bottomMargin - 10) * (high - value)) / (high - low || 1);
  const axes = [];
  for (const value of [low, (low + high) / 2, high]) {
    axes.push(
      makeSvg("line", { class: "axis", x1: leftMargin, x2: width - 10, y1: y(value), y2: y(value) }),
      makeSvg("text", { x: leftMargin - 6, y: y(value) + 4, "text-anchor": "end" }, formatNumber(value)),
    );
  }
  const tickInterval = Math.max(1, Math.ceil(dotProducts.length / 8));
  for (let distance = 0; distance < dotProducts.length; distance += tickInterval)
    axes.push(makeSvg("text", { x: x(distance), y: height - 18, "text-anchor": "middle" }, String(distance)));
  axes.push(makeSvg("text", { x: width - 10, y: height - 3, "text-anchor": "end" }, "distance between positions"));
  const line = dotProducts
    .map((value, distance) => `${distance ? "L" : "M"}${x(distance).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  const tooltips = dotProducts.map((value, distance) =>
    makeSvg(
      "circle",
      { cx: x(distance), cy: y(value), r: 6, fill: "transparent" },
      makeSvg("title", {}, `distance ${distance}: ${formatNumber(value)}`),
    ),
  );
  return makeSvg(
    "svg",
    {
      class: "curve",
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `dot product by distance, from ${formatNumber(dotProducts[0])} at distance 0 to ${formatNumber(dotProducts.at(-1))} at ${dotProducts.length - 1}`,
    },
    ...axes,
    makeSvg("path", { class: "curve-line", d: line }),
    ...tooltips,
  );
}
