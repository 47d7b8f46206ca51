/* The data embedded in the page: the trace, as look.json has it, and arrays of attention weights and activations, which
   are stored quantised (see `quantized` in report.py). */

let trace = null;
const arrays = new Map(); // name: {shape, values}

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function loadData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  trace = JSON.parse(new TextDecoder().decode(await inflate(data.document)));
  if (trace.model.kind === "encoder") ATTENTION_KINDS.encoder.description = "tokens attend to all tokens";
  if (trace.model.kind === "decoder") ATTENTION_KINDS.decoder.description = "tokens attend to the tokens before them";
  // attention.KIND: [layers, heads, rows · columns]
  dequantize("attention.", data.attention.shapes, await inflate(data.attention.data));
  dequantize("", data.activations.shapes, await inflate(data.activations.data));
}

/* Store arrays by prefix + name. bytes: a float32 scale per row of all arrays, then all low bytes of the int16 values,
   then all high bytes. */
function dequantize(prefix, shapes, bytes) {
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
    for (let index = 0; index < size.count; index++) {
      const quantized = ((bytes[high + offset + index] << 24) >> 16) | bytes[low + offset + index];
      values[index] = quantized * scales.getFloat32(4 * (row + Math.floor(index / size.width)), true);
    }
    arrays.set(prefix + size.name, { shape: size.shape, values });
    offset += size.count;
    row += size.rows;
  }
}

/* A row of a matrix; activations have a row per token. */
function arrayRow(name, row) {
  const { shape, values } = arrays.get(name);
  const width = shape.at(-1);
  return values.subarray(row * width, (row + 1) * width);
}

/* The three kinds of attention. Rows are queries and columns are keys, each with the tokens of its own side. */
const ATTENTION_KINDS = {
  encoder: {
    title: "encoder",
    description: "source tokens attend to source tokens",
    rows: "source",
    columns: "source",
    path: (layer) => `encoder.${layer}.self`,
  },
  decoder: {
    title: "decoder",
    description: "target tokens attend to the target so far",
    rows: "target",
    columns: "target",
    path: (layer) => `decoder.${layer}.self`,
  },
  cross: {
    title: "cross",
    description: "target tokens attend to source tokens",
    rows: "target",
    columns: "source",
    path: (layer) => `decoder.${layer}.cross`,
  },
};

/* The kinds of attention that this model has. */
function attentionKinds() {
  return Object.keys(ATTENTION_KINDS).filter((kind) => arrays.has(`attention.${kind}`));
}

function layerCount(kind) {
  return arrays.get(`attention.${kind}`).shape[0];
}

/* The weights of one head, or with head 0 the mean of all heads. Layers and heads count from 1. */
function attentionWeights(kind, layer, head) {
  const { shape, values } = arrays.get(`attention.${kind}`);
  const [, heads] = shape;
  const rows = tokensOf(ATTENTION_KINDS[kind].rows).length;
  const columns = tokensOf(ATTENTION_KINDS[kind].columns).length;
  const size = rows * columns;
  const weightsOf = (headIndex) => values.subarray(((layer - 1) * heads + headIndex) * size).subarray(0, size);
  if (head > 0) return { rows, columns, values: weightsOf(head - 1) };
  const mean = new Float32Array(size);
  for (let headIndex = 0; headIndex < heads; headIndex++)
    weightsOf(headIndex).forEach((weight, index) => (mean[index] += weight / heads));
  return { rows, columns, values: mean };
}

/* side: "source" or "target". */
function tokensOf(side) {
  return trace[side].tokens;
}

/* The token predicted at a position; null on the source side, which predicts none. */
function predictedToken(side, position) {
  return side === "target" ? trace.predicted.tokens[position] : null;
}

/* The largest values in descending order: [{value, index}]. */
function topK(values, k) {
  return [...values]
    .map((value, index) => ({ value, index }))
    .sort((first, second) => second.value - first.value)
    .slice(0, k);
}
