/* The tab "Search": beam search as a tree, with the expansions of each step and why each branch ended. A node is one
   expansion, by its index in trace.beam.nodes; the nodes with a `place` are results, 1 is the best. */

const LEVEL_HEIGHT = 54; // pixels, as --level in report.css

const FATE_DESCRIPTIONS = {
  "went on": "It stayed in the beam.",
  ended: "Finished, with a score.",
  "greatest length": "Finished by the length limit.",
  "fell out of the beam": "It fell out of the beam: others ranked higher.",
  "could not win any more": "The search stopped: no expansion of it could beat the finished hypotheses.",
  "enough had ended": "The search stopped: enough hypotheses had finished.",
};

function searchView() {
  const { nodes } = trace.beam;
  const bestNodes = bestPath(nodes);
  const details = make("div", { class: "node-details", "aria-live": "polite" });
  const showDetails = (index) => {
    const node = nodes[index];
    const text = index ? joinTokens(hypothesisTokens(nodes, index)) : tokenLabel(node.token);
    const score =
      node.score === null ? "" : `, score ${formatNumber(node.score)}${node.place ? ` (result ${node.place})` : ""}`;
    details.replaceChildren(
      make("p", {}, make("b", {}, make("bdi", {}, text))),
      make(
        "p",
        { class: "faint number" },
        `step ${node.step}, rank ${node.rank} of its step; this token ${formatPercent(Math.exp(node.log_prob))}; log-probability so far ${formatNumber(node.total)}${score}. ${FATE_DESCRIPTIONS[node.fate]}`,
      ),
    );
  };
  const resultIndex = nodes.findIndex((node) => node.place === 1);
  showDetails(Math.max(0, resultIndex));
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Beam search"),
    make(
      "p",
      { class: "prose" },
      "From top to bottom, a row per step. From left to right, the top expansions of that step, by total log-probability. Solid: stayed in the beam; dashed: did not; dark edge: finished. The path to the result is in colour.",
    ),
    resultIndex >= 0 ? null : make("p", { class: "faint" }, "The search found no result."),
    make(
      "p",
      { class: "faint" },
      "This is the model’s own search for a translation of the source. If a target was given, the other views show that target.",
    ),
    finishedHypotheses(nodes),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "tree of the search" },
      beamTree(nodes, bestNodes, showDetails),
    ),
    details,
  );
  return { view };
}

/* The indices of the nodes from the root to the best result. */
function bestPath(nodes) {
  const path = new Set();
  let index = nodes.findIndex((node) => node.place === 1);
  while (index > 0) {
    path.add(index);
    index = nodes[index].parent;
  }
  return path;
}

/* The tokens from the root to a node. */
function hypothesisTokens(nodes, index) {
  const { parent, token } = nodes[index];
  return parent === null ? [] : [...hypothesisTokens(nodes, parent), token];
}

function joinTokens(tokens) {
  return visibleText(tokens.join("").trim());
}

/* A table of the six finished hypotheses with the best scores. */
function finishedHypotheses(nodes) {
  const best = nodes
    .map((node, index) => ({ node, index }))
    .filter(({ node }) => node.score !== null)
    .sort((first, second) => second.node.score - first.node.score)
    .slice(0, 6);
  const rows = best.map(({ node, index }) => {
    const tokens = hypothesisTokens(nodes, index).slice(0, -1); // without EOS
    return make(
      "tr",
      {},
      make("td", { class: "numeric" }, formatNumber(node.score)),
      make("td", { class: "numeric" }, formatNumber(node.total)),
      make("td", { class: node.place ? "match" : null }, make("bdi", {}, joinTokens(tokens))),
    );
  });
  const headers = [
    { content: "score", isNumeric: true },
    { content: "log-prob.", isNumeric: true },
    "finished hypothesis",
  ];
  return make("div", { class: "scroll" }, table(headers, rows));
}

/* A row of nodes per step, by rank, and an edge from each node to its parent. */
function beamTree(nodes, bestNodes, showDetails) {
  const steps = [];
  nodes.forEach((node, index) => (steps[node.step] ??= []).push({ node, index }));
  const columns = Math.max(...steps.map((step) => step.length));
  const x = (node) => (node.step === 0 ? 0 : node.rank - 1) * 100 + 50;
  const y = (node) => node.step * LEVEL_HEIGHT + LEVEL_HEIGHT / 2;
  const edges = nodes.flatMap((node, index) => {
    if (node.parent === null) return [];
    const parent = nodes[node.parent];
    const [top, bottom] = [y(parent), y(node)];
    return [
      makeSvg("path", {
        class: bestNodes.has(index) ? "best" : null,
        d: `M${x(parent)} ${top}C${x(parent)} ${top + 30} ${x(node)} ${bottom - 30} ${x(node)} ${bottom}`,
      }),
    ];
  });
  const isBest = (edge) => edge.classList.contains("best");
  edges.sort((first, second) => isBest(first) - isBest(second)); // the best path is drawn on top
  const levels = steps.map((step) => {
    const buttons = step.map(({ node, index }) => nodeButton(node, index, bestNodes, showDetails));
    return make("div", { class: "level" }, buttons);
  });
  const viewBox = `0 0 ${columns * 100} ${steps.length * LEVEL_HEIGHT}`;
  const svg = makeSvg("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" }, ...edges);
  return make("div", { class: "tree", "--columns": columns }, svg, levels);
}

function nodeButton(node, index, bestNodes, showDetails) {
  const isFinished = node.score !== null;
  const isPruned = node.fate !== "went on" && !isFinished;
  const classes = {
    node: true,
    pruned: isPruned,
    finished: isFinished,
    best: bestNodes.has(index),
  };
  const probability = node.step ? formatPercent(Math.exp(node.log_prob)) : "start";
  const show = () => showDetails(index);
  return make(
    "button",
    {
      type: "button",
      class: Object.keys(classes)
        .filter((name) => classes[name])
        .join(" "),
      pointerenter: show,
      focus: show,
      click: show,
      "aria-label": `${isolatedLabel(node.token)}, ${probability}, step ${node.step}, rank ${node.rank}: ${node.fate}`,
    },
    tokenElement(node.token),
    make("small", {}, probability),
  );
}
