/* Creates HTML and SVG elements, tables and bars. Text is inserted as text nodes, never parsed as HTML. */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/* attributes: a function becomes an event listener, --name a CSS property, null is left out. children: elements,
   strings, null or arrays of these. */
function configure(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null)); // strings become text nodes
  return element;
}

function make(tag, attributes = {}, ...children) {
  return configure(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return configure(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/* headers: strings, or {content, isNumeric}. rows: <tr> elements. */
function table(headers, rows, attributes = {}) {
  const cells = headers.map((header) =>
    make("th", { scope: "col", class: header.isNumeric ? "numeric" : null }, header.content ?? header),
  );
  return make("table", attributes, make("thead", {}, make("tr", {}, cells)), make("tbody", {}, rows));
}

/* A horizontal bar, filled to a fraction from 0 to 1. isNegative: in the colour of negative numbers. */
function meter(fraction, isNegative = false) {
  const clamped = Math.min(1, Math.max(0, fraction));
  return make("div", { class: isNegative ? "meter negative" : "meter", "--fraction": clamped });
}
