/* The data of the page: look.json, and dequantised arrays by name (see `quantized` in report.py). */

let trace = null;
const arrays = new Map(); // name: {shape, values}

async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function readData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  trace = JSON.parse(new TextDecoder().decode(await inflated(data.document)));
  if (trace.model.kind === "encoder") KINDS.encoder.says = "tokens attend to all tokens";
  if (trace.model.kind === "decoder") KINDS.decoder.says = "tokens attend to the tokens before them";
  unpack("attention.", data.attention.shapes, await inflated(data.attention.data)); // kind: [layers, heads, rows · columns]
  unpack("", data.activations.shapes, await inflated(data.activations.data));
}

function unpack(prefix, shapes, bytes) {
  const sizes = Object.entries(shapes).map(([name, shape]) => {
    const width = shape.at(-1);
    const count = shape.reduce((product, length) => product * length, 1);
    return { name, shape, width, count, rows: width ? count / width : 0 };
  });
  const rows = sizes.reduce((sum, size) => sum + size.rows, 0);
  const count = sizes.reduce((sum, size) => sum + size.count, 0);
  const scales = new DataView(bytes.buffer, bytes.byteOffset, 4 * rows);
  const low = 4 * rows;
  const high = low + count;
  let offset = 0;
  let row = 0;
  for (const size of sizes) {
    const values = new Float32Array(size.count);
    for (let at = 0; at < size.count; at++) {
      const step = ((bytes[high + offset + at] << 24) >> 16) | bytes[low + offset + at];
      values[at] = step * scales.getFloat32(4 * (row + Math.floor(at / size.width)), true);
    }
    arrays.set(prefix + size.name, { shape: size.shape, values });
    offset += size.count;
    row += size.rows;
  }
}

/* One row of a matrix with a row per token. */
function rowOf(name, token) {
  const { shape, values } = arrays.get(name);
  const width = shape.at(-1);
  return values.subarray(token * width, (token + 1) * width);
}

/* The three kinds of attention. Rows are queries and columns are keys, each with the tokens of its own side. */
const KINDS = {
  encoder: {
    title: "encoder",
    says: "source tokens attend to source tokens",
    rows: "source",
    columns: "source",
    path: (layer) => `encoder.${layer}.self`,
  },
  decoder: {
    title: "decoder",
    says: "target tokens attend to the target so far",
    rows: "target",
    columns: "target",
    path: (layer) => `decoder.${layer}.self`,
  },
  cross: {
    title: "cross",
    says: "target tokens attend to source tokens",
    rows: "target",
    columns: "source",
    path: (layer) => `decoder.${layer}.cross`,
  },
};

function kinds() {
  return Object.keys(KINDS).filter((kind) => arrays.has(`attention.${kind}`));
}

function layersOf(kind) {
  return arrays.get(`attention.${kind}`).shape[0];
}

/* The weights of one head, or of head 0: the mean of all. Layers and heads count from 1. */
function weightsOf(kind, layer, head) {
  const { shape, values } = arrays.get(`attention.${kind}`);
  const [, heads] = shape;
  const [rows, columns] = [tokensOf(KINDS[kind].rows).length, tokensOf(KINDS[kind].columns).length];
  const map = (number) => values.subarray(((layer - 1) * heads + number) * rows * columns).subarray(0, rows * columns);
  if (head > 0) return { rows, columns, values: map(head - 1) };
  const mean = new Float32Array(rows * columns);
  for (let number = 0; number < heads; number++) map(number).forEach((weight, at) => (mean[at] += weight / heads));
  return { rows, columns, values: mean };
}

function tokensOf(side) {
  return trace[side].tokens;
}

/* What a row predicts: only the target's rows predict anything. */
function predictedBy(side, row) {
  return side === "target" ? trace.predicted.tokens[row] : null;
}

function strongest(values, count) {
  return [...values]
    .map((value, place) => ({ value, place }))
    .sort((one, other) => other.value - one.value)
    .slice(0, count);
}
