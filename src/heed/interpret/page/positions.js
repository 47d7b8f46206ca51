/* Positional encodings, and their dot product by distance. */

function positionsView() {
  const kind = trace.model.positions;
  const side = trace.source.tokens.length ? "encoder" : "decoder";
  const tokens = tokensOf(side === "encoder" ? "source" : "target");
  const codes = positionCodes(kind, side, tokens.length);
  const about = {
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
  const canvas = mapCanvas(codes.length, codes[0].length, Float32Array.from(codes.flatMap((code) => [...code])));
  const told = make("output", { class: "faint" }, "Point at the picture to read it.");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `encodings of ${codes.length} positions, ${codes[0].length} dimensions each`);
  canvas.classList.add("codes");
  canvas.addEventListener("pointermove", (event) => {
    const { row: position, column: at } = cellUnder(event, canvas);
    const here = position < tokens.length ? `, ${named(tokens[position])}` : "";
    told.textContent = `position ${position}${here}, dimension ${at}: ${number(codes[position][at])}`;
  });
  canvas.style.height = `${Math.min(26, Math.max(4, 384 / codes.length)) * codes.length}px`;
  const dots = dotsByDistance(codes, kind);
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Positions"),
    formula(about[0]),
    make("p", { class: "prose" }, about[1]),
    make(
      "div",
      { class: "panel" },
      canvas,
      make("p", { class: "faint" }, `${codes.length} positions down, ${codes[0].length} dimensions across. `, told),
    ),
    make("h3", {}, "Similarity of two positions"),
    make(
      "p",
      { class: "prose" },
      kind === "learned"
        ? "The dot product of the encodings of two positions by their distance; for learned encodings it is a mean."
        : "The dot product of the encodings of two positions depends only on their distance.",
    ),
    curveOf(dots),
  );
  return { view };
}

function positionCodes(kind, side, count) {
  if (kind === "learned") return Array.from({ length: count }, (_, position) => rowOf(`${side}.positions`, position));
  const positions = Array.from({ length: Math.max(64, count) }, (_, position) => position);
  if (kind === "sinusoidal") return positions.map((position) => sinusoid(position, trace.model.d_model));
  const width = trace.model.d_model / trace.model.heads;
  return positions.map((position) => sinusoid(position, width).filter((_, at) => at % 2));
}

/* For rotary positions, the sum of the cosines. */
function dotsByDistance(codes, kind) {
  return codes.map((code, distance) => {
    if (kind !== "learned")
      return kind === "rotary" ? code.reduce((sum, value) => sum + value, 0) : dot(codes[0], code);
    const pairs = codes.slice(distance).map((other, position) => dot(codes[position], other));
    return pairs.reduce((sum, value) => sum + value, 0) / pairs.length;
  });
}

function curveOf(dots) {
  const [width, height, left, below] = [560, 240, 44, 34];
  const [low, high] = [Math.min(0, ...dots), Math.max(...dots)];
  const x = (distance) => left + ((width - left - 10) * distance) / Math.max(1, dots.length - 1);
  const y = (value) => 10 + ((height - below - 10) * (high - value)) / (high - low || 1);
  const marks = [];
  for (const value of [low, (low + high) / 2, high]) {
    marks.push(
      draw("line", { class: "axis", x1: left, x2: width - 10, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)),
    );
  }
  const every = Math.max(1, Math.ceil(dots.length / 8));
  for (let distance = 0; distance < dots.length; distance += every)
    marks.push(draw("text", { x: x(distance), y: height - 18, "text-anchor": "middle" }, String(distance)));
  marks.push(draw("text", { x: width - 10, y: height - 3, "text-anchor": "end" }, "distance between positions"));
  const line = dots
    .map((value, distance) => `${distance ? "L" : "M"}${x(distance).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  const points = dots.map((value, distance) =>
    draw(
      "circle",
      { cx: x(distance), cy: y(value), r: 6, fill: "transparent" },
      draw("title", {}, `distance ${distance}: ${number(value)}`),
    ),
  );
  return draw(
    "svg",
    {
      class: "curve",
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `dot product by distance, from ${number(dots[0])} at distance 0 to ${number(dots.at(-1))} at ${dots.length - 1}`,
    },
    ...marks,
    draw("path", { class: "curve-line", d: line }),
    ...points,
  );
}
