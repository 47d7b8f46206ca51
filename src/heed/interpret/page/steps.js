/* The tab "Step by step": one token from its embedding to the prediction, the formulas beside the numbers. */

/* The query is the token at `position`; key: the position of the selected key, null: of the largest weight. */
const stepSelection = { kind: null, layer: 1, head: 1, position: 0, key: null };

/* formulaText: null for none. contents: vector strips and other elements. */
function step(title, formulaText, explanation, ...contents) {
  const text = make(
    "div",
    { class: "panel" },
    make("h3", {}, title),
    formulaText ? formula(formulaText) : null,
    make("p", { class: "faint" }, explanation),
  );
  return make("li", { class: "step" }, text, make("div", { class: "panel" }, contents));
}

function stepsView() {
  const controls = make("div", { class: "panel" });
  const list = make("ol", { class: "steps" });
  stepSelection.kind ??= attentionKinds().at(-1);
  stepSelection.position = Math.min(1, tokensOf(ATTENTION_KINDS[stepSelection.kind].rows).length - 1);
  const refresh = () => {
    clampSelection();
    controls.replaceChildren(...stepControls(refresh));
    list.replaceChildren(...stepsOf(stepSelection, refresh));
  };
  refresh();
  const isPartial = trace.embedded_layers < Math.max(...attentionKinds().map(layerCount));
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Step by step"),
    make(
      "p",
      { class: "prose" },
      "One token through one layer. The activations are the model’s own; dot products, scaling, softmax, sums and norms are computed from them in this page. Point at a strip to read its values.",
    ),
    isPartial
      ? make(
          "p",
          { class: "faint" },
          `To keep this file small it has the activations of ${trace.embedded_layers === 1 ? "the first layer" : `the first ${trace.embedded_layers} layers`} only; heed look --full includes all layers.`,
        )
      : null,
    controls,
    list,
  );
  return { view, refresh };
}

function clampSelection() {
  const { rows, columns } = ATTENTION_KINDS[stepSelection.kind];
  stepSelection.layer = Math.min(stepSelection.layer, layerCount(stepSelection.kind), trace.embedded_layers);
  stepSelection.position = Math.min(stepSelection.position, tokensOf(rows).length - 1);
  const { kind, layer, head, position } = stepSelection;
  stepSelection.key ??= topK(attend(kind, layer, head, position).weights, 1)[0].index;
  stepSelection.key = Math.min(stepSelection.key, tokensOf(columns).length - 1);
}

function stepControls(refresh) {
  const setField = (field) => (value) => {
    stepSelection[field] = value;
    stepSelection.key = null;
    refresh();
    focusRadioGroup(field);
  };
  const { kind, layer, head, position } = stepSelection;
  const layers = numberOptions(layerCount(kind)).map((option) => ({
    ...option,
    disabled: option.value > trace.embedded_layers,
  }));
  const headGroups = {
    kind: attentionRadioGroup(kind, setField("kind")),
    layer: radioGroup("layer", layers, layer, setField("layer")),
    head: radioGroup("head", numberOptions(trace.model.heads), head, setField("head")),
  };
  const tokens = tokenRadioGroup("token", ATTENTION_KINDS[kind].rows, position, setField("position"));
  for (const [field, element] of Object.entries({ ...headGroups, position: tokens })) element.dataset.field = field;
  return [make("div", { class: "controls" }, Object.values(headGroups)), tokens];
}

/* selection: as stepSelection. subLayer, here and below: the result of `runSubLayer`. */
function stepsOf(selection, refresh) {
  const { kind, layer, position } = selection;
  const side = kind === "encoder" ? "encoder" : "decoder";
  const steps = layer === 1 ? embeddingSteps(side, position) : [layerInputStep(side, selection)];
  let stream = layerInput(side, position, layer);
  for (const name of subLayerNames(side)) {
    const path = `${side}.${layer}.${name}`;
    const subLayer = runSubLayer(stream, path, position);
    if (name === "feed_forward") steps.push(...feedForwardSteps(path, position, subLayer));
    else if (path === ATTENTION_KINDS[kind].path(layer)) steps.push(...attentionSteps(selection, subLayer, refresh));
    else steps.push(otherAttentionStep(name, subLayer));
    stream = subLayer.result;
  }
  return [...steps, ...finalSteps(side, selection, stream)];
}

function embeddingSteps(side, position) {
  const { embedding, encoding, sum } = embed(side, position);
  const token = tokensOf(side === "encoder" ? "source" : "target")[position];
  const embeddingStep = step(
    "Embedding",
    "e = E[token] · √d_{model}",
    "The token’s row of the embedding matrix, scaled by √d_model.",
    vectorStrip(`e of ${isolatedLabel(token)}`, embedding),
  );
  if (!encoding)
    return [
      embeddingStep,
      step(
        "Position",
        "q, k rotated by pos / 10000^{2i/d}",
        "Rotary positions add nothing here: every attention rotates its queries and keys by an angle that depends on the position.",
      ),
    ];
  const isLearned = trace.model.positions === "learned";
  return [
    embeddingStep,
    step(
      "Position",
      isLearned ? "p = P[pos],  x = e + p" : "p_{2i} = sin(pos / 10000^{2i/d}),  p_{2i+1} = cos(…),  x = e + p",
      `The ${isLearned ? "learned" : "sinusoidal"} encoding of position ${position}, added to the embedding: the input of the first layer.`,
      vectorStrip(`p of position ${position}`, encoding),
      vectorStrip("x = e + p", sum),
    ),
  ];
}

function layerInputStep(side, { position, layer }) {
  const token = tokensOf(side === "encoder" ? "source" : "target")[position];
  return step(
    "Input of the layer",
    `x_{layer ${layer}}`,
    `The hidden state of ${isolatedLabel(token)} after ${layer === 2 ? "the first layer" : `${layer - 1} layers`}. Choose layer 1 to start from the embedding.`,
    vectorStrip("hidden state", layerInput(side, position, layer)),
  );
}

function attentionSteps(selection, subLayer, refresh) {
  const { kind, layer, head, position } = selection;
  const attention = attend(kind, layer, head, position);
  const selectKey = (key) => {
    stepSelection.key = key;
    refresh();
    document.querySelector(`.view:not([hidden]) [data-key="${key}"]`)?.focus();
  };
  const steps = trace.model.norm === "post" ? [] : [normStep("Norm before attention", subLayer.input, subLayer.norm)];
  steps.push(...scoreSteps(selection, attention));
  steps.push(
    step(
      "Scale, mask, softmax",
      `weight_j = e^{sⱼ} / Σ_{unmasked} e^s,  s = q · k / √${attention.headWidth}`,
      kind === "decoder"
        ? "Divided by √d_k, so that the scores do not grow with the width of a head. Later tokens are masked: they get no weight."
        : "Divided by √d_k, so that the scores do not grow with the width of a head. Nothing is masked here. The softmax makes the weights add up to one.",
      keyTable(kind, attention, selection.key, selectKey),
    ),
  );
  steps.push(weightedSumStep(selection, attention));
  const range = [(head - 1) * attention.headWidth, head * attention.headWidth];
  steps.push(
    step(
      "Concatenate, project",
      "concat(head_1 … head_h) W_O + b_O",
      `The ${trace.model.heads} heads concatenated (dimensions ${range[0] + 1} to ${range[1]} are this head’s), projected by W_O.`,
      vectorStrip("concat", concatenatedHeads(kind, layer, position), range),
      vectorStrip("output", subLayer.output),
    ),
  );
  return [...steps, residualStep(subLayer)];
}

function normStep(title, before, norm) {
  return step(
    title,
    "x̂ = (x − mean) / √(variance + ε) · g + b",
    `mean ${formatNumber(norm.mean)}, standard deviation ${formatNumber(norm.deviation)}; gain g and bias b are trained.`,
    vectorStrip("before", before),
    vectorStrip("after", norm.values),
  );
}

function residualStep(subLayer) {
  const outerNorm = subLayer.outerNorm ? [vectorStrip("output, normalised", subLayer.outerNorm.values)] : [];
  const isPostNorm = trace.model.norm === "post";
  const postNorm = isPostNorm ? [vectorStrip("norm of the sum: the output", subLayer.norm.values)] : [];
  return step(
    isPostNorm ? "Residual and norm" : "Residual",
    isPostNorm ? "norm(x + output)" : "x + output",
    "The output is added to the residual stream.",
    vectorStrip("residual stream", subLayer.input),
    ...outerNorm,
    vectorStrip(isPostNorm ? "x + output" : "the sum: the new residual stream", subLayer.sum),
    ...postNorm,
  );
}

/* The attention of a decoder layer that is not selected. */
function otherAttentionStep(name, subLayer) {
  return step(
    name === "self" ? "Self-attention" : "Cross-attention",
    null,
    `The layer’s other attention${name === "self" ? ", to the target so far," : ", to the source,"} adds this output. Choose it above to see its steps.`,
    vectorStrip("output", subLayer.output),
    vectorStrip("output of the sub-layer", subLayer.result),
  );
}

function feedForwardSteps(path, position, subLayer) {
  const formulas = {
    relu: "max(0, x W_1 + b_1) W_2 + b_2",
    gelu: "GELU(x W_1 + b_1) W_2 + b_2",
    swish: "swish(x W_1 + b_1) W_2 + b_2",
    swiglu: "(swish(x W_g) ⊙ x W_1) W_2 + b_2",
  };
  const hidden = trace.hidden[`${path}.hidden`];
  const values = arrayRow(`${path}.hidden`, position);
  const largest = [...values.slice(0, 5)]
    .map((value, index) => `${hidden.units[position][index] + 1}: ${formatNumber(value)}`)
    .join(",  ");
  const before =
    trace.model.norm === "post" ? [] : [normStep("Norm before feed-forward", subLayer.input, subLayer.norm)];
  return [
    ...before,
    step(
      "Feed-forward",
      formulas[trace.model.activation],
      `Each token on its own: projected to ${trace.model.d_ff} dimensions, of which ${hidden.active[position]} are above zero, and back.`,
      vectorStrip(`the ${values.length} largest of the ${trace.model.d_ff} hidden activations`, values),
      make("p", { class: "faint number" }, largest),
      vectorStrip("output", subLayer.output),
    ),
    residualStep(subLayer),
  ];
}

function finalSteps(side, { layer, position }, stream) {
  const layers = side === "encoder" ? trace.model.encoder_layers : trace.model.decoder_layers;
  const remaining = layers - layer;
  const more = remaining
    ? `${remaining === 1 ? "One more layer does" : `${remaining} more layers do`} the same with weights of their own.`
    : "This was the last layer.";
  const output = arrays.has(`${side}.output`)
    ? [vectorStrip(`output of the ${side}`, arrayRow(`${side}.output`, position))]
    : [];
  const steps = [
    step(
      "The rest of the stack",
      null,
      `${more}${trace.model.norm === "post" ? "" : " A last norm follows."}`,
      vectorStrip(`output of layer ${layer}`, stream),
      ...output,
    ),
  ];
  if (side === "encoder" && trace.model.kind === "encoder-decoder") {
    steps.push(
      step(
        "Memory",
        null,
        "The decoder’s cross-attention computes its keys and values from the encoder’s output. Choose cross-attention to continue there.",
      ),
    );
  } else if (trace.labels.length) {
    steps.push(
      step(
        "Mean, output",
        "softmax(mean(x) W + b)",
        "The mean of all hidden states, then a logit and a probability for every label:",
        predictionTable(0),
      ),
    );
  } else {
    steps.push(
      step(
        "Output",
        "softmax(x Eᵀ)",
        "A logit for every vocabulary entry, then a softmax. The most probable tokens:",
        predictionTable(position),
      ),
    );
  }
  return steps;
}
