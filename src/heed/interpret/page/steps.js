/* One token from its embedding to the prediction: the formulas beside the numbers. */

const followed = { kind: null, layer: 1, head: 1, row: 0, key: null };

function step(title, symbols, text, ...numbers) {
  const about = make(
    "div",
    { class: "panel" },
    make("h3", {}, title),
    symbols ? formula(symbols) : null,
    make("p", { class: "faint" }, text),
  );
  return make("li", { class: "step" }, about, make("div", { class: "panel" }, numbers));
}

function stepsView() {
  const controls = make("div", { class: "panel" });
  const list = make("ol", { class: "steps" });
  followed.kind ??= kinds().at(-1);
  followed.row = Math.min(1, tokensOf(KINDS[followed.kind].rows).length - 1);
  const refresh = () => {
    clampSelection();
    controls.replaceChildren(...stepControls(refresh));
    list.replaceChildren(...stepsOf(followed, refresh));
  };
  refresh();
  const few = trace.embedded_layers < Math.max(...kinds().map(layersOf));
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Step by step"),
    make(
      "p",
      { class: "prose" },
      "One token through one layer. The activations are the model’s own; dot products, scaling, softmax, sums and norms are computed from them in this page. Point at a strip to read its values.",
    ),
    few
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
  const { rows, columns } = KINDS[followed.kind];
  followed.layer = Math.min(followed.layer, layersOf(followed.kind), trace.embedded_layers);
  followed.row = Math.min(followed.row, tokensOf(rows).length - 1);
  followed.key ??= strongest(attend(followed.kind, followed.layer, followed.head, followed.row).weights, 1)[0].place;
  followed.key = Math.min(followed.key, tokensOf(columns).length - 1);
}

function stepControls(refresh) {
  const change = (field) => (value) => {
    followed[field] = value;
    followed.key = null; // the strongest of the new row
    refresh();
    focusChoice(field);
  };
  const { kind, layer, head, row } = followed;
  const layers = numbered(layersOf(kind)).map((option) => ({
    ...option,
    disabled: option.value > trace.embedded_layers,
  }));
  const first = {
    kind: choose(
      "attention",
      kinds().map((one) => ({ value: one, face: KINDS[one].title, title: KINDS[one].says })),
      kind,
      change("kind"),
    ),
    layer: choose("layer", layers, layer, change("layer")),
    head: choose("head", numbered(trace.model.heads), head, change("head")),
  };
  const tokens = chooseToken("token", KINDS[kind].rows, row, change("row"));
  for (const [field, element] of [...Object.entries(first), ["row", tokens]]) element.dataset.field = field;
  return [make("div", { class: "controls" }, Object.values(first)), tokens];
}

function stepsOf(state, refresh) {
  const side = state.kind === "encoder" ? "encoder" : "decoder";
  const steps = state.layer === 1 ? startSteps(side, state.row) : [arrivalStep(side, state)];
  let stream = arriving(side, state.row, state.layer);
  for (const name of subLayers(side)) {
    const path = `${side}.${state.layer}.${name}`;
    const passed = pass(stream, path, state.row);
    if (name === "feed_forward") steps.push(...feedForwardSteps(path, state.row, passed));
    else if (path === KINDS[state.kind].path(state.layer)) steps.push(...attentionSteps(state, passed, refresh));
    else steps.push(briefStep(name, passed));
    stream = passed.leaving;
  }
  return [...steps, ...endSteps(side, state, stream)];
}

function startSteps(side, row) {
  const { embedding, code, sum } = entering(side, row);
  const token = tokensOf(side === "encoder" ? "source" : "target")[row];
  const first = step(
    "Embedding",
    "e = E[token] · √d_{model}",
    "The token’s row of the embedding matrix, scaled by √d_model.",
    strip(`e of ${named(token)}`, embedding),
  );
  if (!code)
    return [
      first,
      step(
        "Position",
        "q, k rotated by pos / 10000^{2i/d}",
        "Rotary positions add nothing here: every attention rotates its queries and keys by an angle that depends on the position.",
      ),
    ];
  const learned = trace.model.positions === "learned";
  return [
    first,
    step(
      "Position",
      learned ? "p = P[pos],  x = e + p" : "p_{2i} = sin(pos / 10000^{2i/d}),  p_{2i+1} = cos(…),  x = e + p",
      `The ${learned ? "learned" : "sinusoidal"} encoding of position ${row}, added to the embedding: the input of the first layer.`,
      strip(`p of position ${row}`, code),
      strip("x = e + p", sum),
    ),
  ];
}

function arrivalStep(side, { row, layer }) {
  const token = tokensOf(side === "encoder" ? "source" : "target")[row];
  return step(
    "Input of the layer",
    `x_{layer ${layer}}`,
    `The hidden state of ${named(token)} after ${layer === 2 ? "the first layer" : `${layer - 1} layers`}. Choose layer 1 to start from the embedding.`,
    strip("hidden state", arriving(side, row, layer)),
  );
}

function attentionSteps(state, passed, refresh) {
  const found = attend(state.kind, state.layer, state.head, state.row);
  const choose = (key) => {
    followed.key = key;
    refresh();
    document.querySelector(`.view:not([hidden]) [data-key="${key}"]`)?.focus();
  };
  const steps = trace.model.norm === "post" ? [] : [normStep("Norm before attention", passed.stream, passed.norm)];
  steps.push(...scoreSteps(state, found));
  steps.push(
    step(
      "Scale, mask, softmax",
      `weight_j = e^{sⱼ} / Σ_{unmasked} e^s,  s = q · k / √${found.width}`,
      state.kind === "decoder"
        ? "Divided by √d_k, so that the scores do not grow with the width of a head. Later tokens are masked: they get no weight."
        : "Divided by √d_k, so that the scores do not grow with the width of a head. Nothing is masked here. The softmax makes the weights add up to one.",
      keyTable(state.kind, found, state.key, choose),
    ),
  );
  steps.push(gatherStep(state, found));
  const range = [(state.head - 1) * found.width, state.head * found.width];
  steps.push(
    step(
      "Concatenate, project",
      "concat(head_1 … head_h) W_O + b_O",
      `The ${trace.model.heads} heads concatenated (dimensions ${range[0] + 1} to ${range[1]} are this head’s), projected by W_O.`,
      strip("concat", concatenated(state.kind, state.layer, state.row), range),
      strip("output", passed.output),
    ),
  );
  return [...steps, residualStep(passed)];
}

function normStep(title, before, norm) {
  return step(
    title,
    "x̂ = (x − mean) / √(variance + ε) · g + b",
    `mean ${number(norm.mean)}, standard deviation ${number(norm.deviation)}; gain g and bias b are trained.`,
    strip("before", before),
    strip("after", norm.values),
  );
}

function residualStep(passed) {
  const outer = passed.outer ? [strip("output, normalised", passed.outer.values)] : [];
  const post = trace.model.norm === "post";
  const shownNorm = post ? [strip("norm of the sum: the output", passed.norm.values)] : [];
  return step(
    post ? "Residual and norm" : "Residual",
    post ? "norm(x + output)" : "x + output",
    "The output is added to the residual stream.",
    strip("residual stream", passed.stream),
    ...outer,
    strip(post ? "x + output" : "the sum: the new residual stream", passed.residual),
    ...shownNorm,
  );
}

function briefStep(name, passed) {
  return step(
    name === "self" ? "Self-attention" : "Cross-attention",
    null,
    `The layer’s other attention${name === "self" ? ", to the target so far," : ", to the source,"} adds this output. Choose it above to see its steps.`,
    strip("output", passed.output),
    strip("output of the sub-layer", passed.leaving),
  );
}

function feedForwardSteps(path, row, passed) {
  const names = {
    relu: "max(0, x W_1 + b_1) W_2 + b_2",
    gelu: "GELU(x W_1 + b_1) W_2 + b_2",
    swish: "swish(x W_1 + b_1) W_2 + b_2",
    swiglu: "(swish(x W_g) ⊙ x W_1) W_2 + b_2",
  };
  const hidden = trace.hidden[`${path}.hidden`];
  const values = rowOf(`${path}.hidden`, row);
  const most = [...values.slice(0, 5)]
    .map((value, index) => `${hidden.units[row][index] + 1}: ${number(value)}`)
    .join(",  ");
  const before = trace.model.norm === "post" ? [] : [normStep("Norm before feed-forward", passed.stream, passed.norm)];
  return [
    ...before,
    step(
      "Feed-forward",
      names[trace.model.activation],
      `Each token on its own: projected to ${trace.model.d_ff} dimensions, of which ${hidden.active[row]} are above zero, and back.`,
      strip(`the ${values.length} largest of the ${trace.model.d_ff} hidden activations`, values),
      make("p", { class: "faint number" }, most),
      strip("output", passed.output),
    ),
    residualStep(passed),
  ];
}

function endSteps(side, state, stream) {
  const layers = side === "encoder" ? trace.model.encoder_layers : trace.model.decoder_layers;
  const left = layers - state.layer;
  const more = left
    ? `${left === 1 ? "One more layer does" : `${left} more layers do`} the same with weights of their own.`
    : "This was the last layer.";
  const end = arrays.has(`${side}.output`) ? [strip(`output of the ${side}`, rowOf(`${side}.output`, state.row))] : [];
  const steps = [
    step(
      "The rest of the stack",
      null,
      `${more}${trace.model.norm === "post" ? "" : " A last norm follows."}`,
      strip(`output of layer ${state.layer}`, stream),
      ...end,
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
        topTokens(0),
      ),
    );
  } else {
    steps.push(
      step(
        "Output",
        "softmax(x Eᵀ)",
        "A logit for every vocabulary entry, then a softmax. The most probable tokens:",
        topTokens(state.row),
      ),
    );
  }
  return steps;
}
