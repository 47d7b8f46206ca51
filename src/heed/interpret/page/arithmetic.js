/* The model's arithmetic, recomputed from the embedded activations, one token at a time. */

function dot(a, b) {
  return a.reduce((sum, value, index) => sum + value * b[index], 0);
}

function plus(a, b) {
  return a.map((value, index) => value + b[index]);
}

function layerNorm(values, name) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
  const deviation = Math.sqrt(variance + trace.model.norm_eps);
  const [gain, bias] = [rowOf(`${name}.gain`, 0), rowOf(`${name}.bias`, 0)];
  return {
    mean,
    deviation,
    values: values.map((value, index) => ((value - mean) / deviation) * gain[index] + bias[index]),
  };
}

/* PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos(the same). */
function sinusoid(position, width) {
  return Float32Array.from({ length: width }, (_, index) => {
    const angle = position / 10000 ** ((index - (index % 2)) / width);
    return index % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/* The positional encoding added to the embedding of a token; none where positions are rotary. */
function positionCode(side, token) {
  if (trace.model.positions === "rotary") return null;
  return trace.model.positions === "learned" ? rowOf(`${side}.positions`, token) : sinusoid(token, trace.model.d_model);
}

function entering(side, token) {
  const embedding = rowOf(`${side}.embedding`, token);
  const code = positionCode(side, token);
  return { embedding, code, sum: code ? plus(embedding, code) : embedding };
}

function subLayers(side) {
  return side === "decoder" && trace.model.kind === "encoder-decoder"
    ? ["self", "cross", "feed_forward"]
    : ["self", "feed_forward"];
}

/* One sub-layer with residual connection and norm: x is its input, `leaving` the input of the next. */
function pass(stream, path, token) {
  const output = rowOf(`${path}.output`, token);
  if (trace.model.norm === "post") {
    const residual = plus(stream, output);
    const norm = layerNorm(residual, `${path}.norm`);
    return { stream, x: stream, output, residual, norm, leaving: norm.values };
  }
  const norm = layerNorm(stream, `${path}.norm`);
  const outer = trace.model.norm === "sandwich" ? layerNorm(output, `${path}.outer_norm`) : null;
  const residual = plus(stream, outer ? outer.values : output);
  return { stream, x: norm.values, output, outer, residual, norm, leaving: residual };
}

/* The hidden state of a token at the input of a layer. */
function arriving(side, token, layer) {
  let stream = entering(side, token).sum;
  for (let number = 1; number < layer; number++) {
    for (const name of subLayers(side)) stream = pass(stream, `${side}.${number}.${name}`, token).leaving;
  }
  return stream;
}

/* One query of one head against every key: scores, scaled scores, mask, weights and output. */
function attend(kind, layer, head, row) {
  const path = KINDS[kind].path(layer);
  const width = trace.model.d_model / trace.model.heads;
  const share = (name, token) => rowOf(`${path}.${name}`, token).subarray((head - 1) * width, head * width);
  const turned = arrays.has(`${path}.turned_query`) ? "turned_" : "";
  const query = share(`${turned}query`, row);
  const count = tokensOf(KINDS[kind].columns).length;
  const keys = Array.from({ length: count }, (_, token) => share(`${turned}key`, token));
  const values = Array.from({ length: count }, (_, token) => share("value", token));
  const scores = keys.map((key) => dot(query, key));
  const scaled = scores.map((score) => score / Math.sqrt(width));
  const seen = keys.map((_, token) => kind !== "decoder" || token <= row);
  const largest = Math.max(...scaled.filter((_, token) => seen[token]));
  const powers = scaled.map((score, token) => (seen[token] ? Math.exp(score - largest) : 0));
  const sum = powers.reduce((a, b) => a + b, 0);
  const weights = powers.map((power) => power / sum);
  const gathered = new Float32Array(width);
  values.forEach((value, token) => value.forEach((part, index) => (gathered[index] += weights[token] * part)));
  return {
    path,
    width,
    turned,
    query,
    plainQuery: share("query", row),
    keys,
    values,
    scores,
    scaled,
    seen,
    weights,
    gathered,
  };
}

function concatenated(kind, layer, row) {
  const heads = Array.from({ length: trace.model.heads }, (_, head) => attend(kind, layer, head + 1, row).gathered);
  return Float32Array.from(heads.flatMap((head) => [...head]));
}
