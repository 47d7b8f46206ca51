/* Building blocks: elements, token labels, radio buttons, heat maps, strips of values. Text is never parsed as HTML. */

const SVG = "http://www.w3.org/2000/svg";
const painters = []; // canvases to repaint when the theme changes

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null)); // strings become text
  return element;
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/* The label of a token: without its leading space, and with a visible symbol for every invisible character. */
function label(token) {
  const text = /^ \S/u.test(token) ? token.slice(1) : token;
  const signs = { "\n": "⏎", "\t": "⇥" };
  const seen = text.replace(/[\p{C}\p{Zl}\p{Zp}\p{Zs}]/gu, (sign) => {
    if (/\p{Zs}/u.test(sign)) return "␣";
    return signs[sign] ?? `‹${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
  });
  return (/^\p{M}/u.test(seen) ? "◌" : "") + seen || "∅";
}

function tokenText(token) {
  return make("bdi", {}, label(token));
}

/* The label in plain text, as for an aria-label, with Unicode bidi isolates around it. */
function named(token) {
  return `\u2068${label(token)}\u2069`;
}

function number(value, digits = 3) {
  if (value === 0 || Object.is(value, -0)) return "0";
  const size = Math.abs(value);
  const text = size >= 1000 ? size.toFixed(0) : size >= 0.001 ? size.toPrecision(digits) : size.toExponential(1);
  return (value < 0 ? "−" : "") + text;
}

function percent(share) {
  if (share < 0.0005) return share > 0 ? "<0.1%" : "0%";
  return share > 0.9995 ? "100%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
}

/* Text with x_i and x^i as subscripts and superscripts. */
function symbols(text) {
  return text.split(/([_^]\{[^}]*\}|[_^].)/u).map((piece) => {
    const found = /^([_^])\{?([^}]*)\}?$/u.exec(piece);
    return found ? make(found[1] === "_" ? "sub" : "sup", {}, found[2]) : piece;
  });
}

function formula(text) {
  return make("p", { class: "formula" }, symbols(text));
}

let choices = 0;

/* Radio buttons in a row. Options: {value, face, note, disabled, label}. */
function choose(legend, options, chosen, onChange) {
  const name = `choice-${choices++}`;
  const buttons = options.map((option) => {
    const input = make("input", {
      type: "radio",
      name,
      value: option.value,
      disabled: option.disabled,
      "aria-label": option.label,
      change: () => onChange(option.value),
    });
    input.checked = option.value === chosen;
    const note = option.note ? make("small", {}, option.note) : null;
    return make(
      "label",
      { class: "choice", title: option.title },
      input,
      make("span", { class: "face" }, option.face, note),
    );
  });
  return make("fieldset", {}, make("legend", {}, legend), buttons);
}

/* Choice of one token of a side; target tokens also show what is predicted there. */
function chooseToken(legend, side, chosen, onChange) {
  const options = tokensOf(side).map((token, row) => {
    const predicted = predictedBy(side, row);
    return {
      value: row,
      face: tokenText(token),
      note: predicted === null ? null : ["→ ", tokenText(predicted)],
      label: predicted === null ? named(token) : `reads ${named(token)}, predicts ${named(predicted)}`,
    };
  });
  return choose(legend, options, chosen, onChange);
}

function numbered(count, from = 1) {
  return Array.from({ length: count }, (_, place) => ({ value: place + from, face: String(place + from) }));
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(/\s+/u).map(Number);
  return { more: read("--more"), less: read("--less") };
}

/* A heat map, a pixel per value: the larger, the stronger the colour; another colour below zero. */
function mapCanvas(rows, columns, values, top) {
  const canvas = make("canvas", { width: columns, height: rows });
  const largest = top ?? (values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1);
  const paint = () => {
    const { more, less } = colours();
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    values.forEach((value, at) => {
      image.data.set(value < 0 ? less : more, 4 * at);
      image.data[4 * at + 3] = 255 * Math.min(1, Math.abs(value) / largest);
    });
    context.putImageData(image, 0, 0);
  };
  paint();
  painters.push(new WeakRef(Object.assign(canvas, { paint })));
  return canvas;
}

/* Which cell of a canvas the pointer is on. */
function cellUnder(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const clamp = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return {
    row: clamp((event.clientY - box.top) / box.height, canvas.height),
    column: clamp((event.clientX - box.left) / box.width, canvas.width),
  };
}

/* A heat map with the tokens of its rows and columns; pointing at a cell shows its value. */
function labelledMap(title, { rows, columns, values }, rowSide, columnSide, say) {
  const canvas = mapCanvas(rows, columns, values);
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label",
    `${title}: ${rows} rows (queries), ${columns} columns (keys)`,
  );
  const told = make("output", { class: "faint" }, "Point at the map to read it.");
  const rowName = (row) =>
    rowSide === "target"
      ? `${named(tokensOf(rowSide)[row])} → ${named(trace.predicted.tokens[row])}`
      : named(tokensOf(rowSide)[row]);
  canvas.addEventListener("pointermove", (event) => {
    const { row, column } = cellUnder(event, canvas);
    told.textContent = `${rowName(row)}, ${named(tokensOf(columnSide)[column])}: ${say(values[row * columns + column])}`;
  });
  const left = tokensOf(rowSide).map((token, row) => {
    const predicted = predictedBy(rowSide, row);
    return make("li", {}, tokenText(token), predicted === null ? null : make("small", {}, " → ", tokenText(predicted)));
  });
  const grid = make(
    "div",
    { class: "labelled", "--rows": rows, "--columns": columns },
    make(
      "ol",
      { class: "over" },
      tokensOf(columnSide).map((token) => make("li", {}, tokenText(token))),
    ),
    make("ol", { class: "left" }, left),
    canvas,
  );
  return make("div", { class: "panel" }, make("div", { class: "scroll" }, grid), told);
}

/* One vector as a strip; pointing shows a value. mark: the range of dimensions of the selected head. */
function strip(name, values, mark = null) {
  const canvas = mapCanvas(1, values.length, values);
  const extremes = [Math.min(...values), Math.max(...values)];
  const rest = `${values.length} values, ${number(extremes[0])} to ${number(extremes[1])}`;
  const told = make("output", {}, rest);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: ${rest}`);
  canvas.addEventListener("pointermove", (event) => {
    const at = cellUnder(event, canvas).column;
    const own = mark && at >= mark[0] && at < mark[1] ? ", this head’s" : "";
    told.textContent = `dimension ${at + 1}: ${number(values[at])}${own}`;
  });
  canvas.addEventListener("pointerleave", () => (told.textContent = rest));
  return make(
    "div",
    { class: "strip" },
    make("div", { class: "line" }, make("span", { class: "name" }, make("b", {}, name)), told),
    canvas,
  );
}

function meter(share, less = false) {
  return make("div", { class: less ? "meter less" : "meter", "--share": Math.min(1, Math.max(0, share)) });
}

function table(heads, rows, attributes = {}) {
  const top = heads.map((head) => make("th", { scope: "col", class: head.number ? "n" : null }, head.face ?? head));
  return make("table", attributes, make("thead", {}, make("tr", {}, top)), make("tbody", {}, rows));
}
