/* The forward pass of one token, recomputed from the embedded activations: layer norms, residual sums and attention.
   The hidden state between sub-layers is called the residual stream. */

function dot(a, b) {
  return a.reduce((sum, value, index) => sum + value * b[index], 0);
}

function add(a, b) {
  return a.map((value, index) => value + b[index]);
}

function layerNorm(values, name) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
  const deviation = Math.sqrt(variance + trace.model.norm_eps);
  const [gain, bias] = [arrayRow(`${name}.gain`, 0), arrayRow(`${name}.bias`, 0)];
  return {
    mean,
    deviation,
    values: values.map((value, index) => ((value - mean) / deviation) * gain[index] + bias[index]),
  };
}

/* PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos(pos / 10000^(2i/d)). */
function sinusoidalEncoding(position, width) {
  return Float32Array.from({ length: width }, (_, index) => {
    const angle = position / 10000 ** ((index - (index % 2)) / width);
    return index % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/* The positional encoding that is added to the embedding; null where positions are rotary. */
function positionalEncoding(side, position) {
  const { positions, d_model: width } = trace.model;
  if (positions === "rotary") return null;
  return positions === "learned" ? arrayRow(`${side}.positions`, position) : sinusoidalEncoding(position, width);
}

/* Embedding, positional encoding and their sum, which is the input of the first layer. side: encoder or decoder. */
function embed(side, position) {
  const embedding = arrayRow(`${side}.embedding`, position);
  const encoding = positionalEncoding(side, position);
  return { embedding, encoding, sum: encoding ? add(embedding, encoding) : embedding };
}

function subLayerNames(side) {
  return side === "decoder" && trace.model.kind === "encoder-decoder"
    ? ["self", "cross", "feed_forward"]
    : ["self", "feed_forward"];
}

/* One sub-layer with residual connection and norm. input: the residual stream before it; result: after it.
   outerNorm: the norm of the output in sandwich-norm, else null. */
function runSubLayer(input, path, position) {
  const output = arrayRow(`${path}.output`, position);
  if (trace.model.norm === "post") {
    const sum = add(input, output);
    const norm = layerNorm(sum, `${path}.norm`);
    return { input, output, outerNorm: null, sum, norm, result: norm.values };
  }
  const norm = layerNorm(input, `${path}.norm`);
  const outerNorm = trace.model.norm === "sandwich" ? layerNorm(output, `${path}.outer_norm`) : null;
  const sum = add(input, outerNorm ? outerNorm.values : output);
  return { input, output, outerNorm, sum, norm, result: sum };
}

/* The hidden state of a token at the input of a layer, which counts from 1. */
function layerInput(side, position, layer) {
  let stream = embed(side, position).sum;
  for (let before = 1; before < layer; before++) {
    for (const name of subLayerNames(side)) stream = runSubLayer(stream, `${side}.${before}.${name}`, position).result;
  }
  return stream;
}

/* One query of one head against every key: scores, scaled scores, mask, weights and output of the head. */
function attend(kind, layer, head, queryPosition) {
  const path = ATTENTION_KINDS[kind].path(layer);
  const headWidth = trace.model.d_model / trace.model.heads;
  const headSlice = (name, position) =>
    arrayRow(`${path}.${name}`, position).subarray((head - 1) * headWidth, head * headWidth);
  const isRotary = arrays.has(`${path}.turned_query`); // rotary positions rotate queries and keys
  const prefix = isRotary ? "turned_" : "";
  const query = headSlice(`${prefix}query`, queryPosition);
  const count = tokensOf(ATTENTION_KINDS[kind].columns).length;
  const keys = Array.from({ length: count }, (_, position) => headSlice(`${prefix}key`, position));
  const values = Array.from({ length: count }, (_, position) => headSlice("value", position));
  const scores = keys.map((key) => dot(query, key));
  const scaled = scores.map((score) => score / Math.sqrt(headWidth));
  const isMasked = keys.map((_, position) => kind === "decoder" && position > queryPosition);
  const largest = Math.max(...scaled.filter((_, position) => !isMasked[position]));
  const exponentials = scaled.map((score, position) => (isMasked[position] ? 0 : Math.exp(score - largest)));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  const weights = exponentials.map((exponential) => exponential / sum);
  const output = new Float32Array(headWidth);
  values.forEach((value, position) =>
    value.forEach((element, index) => (output[index] += weights[position] * element)),
  );
  return {
    path,
    headWidth,
    isRotary,
    query,
    unrotatedQuery: headSlice("query", queryPosition),
    keys,
    values,
    scores,
    scaled,
    isMasked,
    weights,
    output,
  };
}

/* The outputs of all heads, concatenated. */
function concatenatedHeads(kind, layer, position) {
  const heads = Array.from({ length: trace.model.heads }, (_, head) => attend(kind, layer, head + 1, position).output);
  return Float32Array.from(heads.flatMap((head) => [...head]));
}
