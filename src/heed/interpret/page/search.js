/* Beam search as a tree: the expansions of each step, and why each branch ended. */

const FATES = {
  "went on": "It stayed in the beam.",
  ended: "Finished, with a score.",
  "greatest length": "Finished by the length limit.",
  "fell out of the beam": "It fell out of the beam: others ranked higher.",
  "could not win any more": "The search stopped: no expansion of it could beat the finished hypotheses.",
  "enough had ended": "The search stopped: enough hypotheses had finished.",
};

function searchView() {
  const { nodes } = trace.beam;
  const written = (at) => (nodes[at].parent === null ? [] : [...written(nodes[at].parent), nodes[at].token]);
  const best = bestPath(nodes);
  const told = make("div", { class: "told", "aria-live": "polite" });
  const tell = (at) => {
    const node = nodes[at];
    const score =
      node.score === null ? "" : `, score ${number(node.score)}${node.place ? ` (result ${node.place})` : ""}`;
    told.replaceChildren(
      make("p", {}, make("b", {}, make("bdi", {}, at ? plainText(written(at)) : label(node.token)))),
      make(
        "p",
        { class: "faint number" },
        `step ${node.step}, rank ${node.rank} of its step; this token ${percent(Math.exp(node.log_prob))}; log-probability so far ${number(node.total)}${score}. ${FATES[node.fate]}`,
      ),
    );
  };
  tell(nodes.reduce((best, node, at) => (node.place === 1 ? at : best), 0));
  const result = trace.beam.nodes.find((node) => node.place === 1);
  const view = make(
    "section",
    { class: "view" },
    make("h2", {}, "Beam search"),
    make(
      "p",
      { class: "prose" },
      "From top to bottom, a row per step. From left to right, the top expansions of that step, by total log-probability. Solid: stayed in the beam; dashed: did not; dark edge: finished. The path to the result is in colour.",
    ),
    result ? null : make("p", { class: "faint" }, "The search found no result."),
    make(
      "p",
      { class: "faint" },
      "This is the model’s own search for a translation of the source. If a target was given, the other views show that target.",
    ),
    finished(nodes, written),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "tree of the search" },
      beamTree(nodes, best, tell),
    ),
    told,
  );
  return { view };
}

function bestPath(nodes) {
  const path = new Set();
  let at = nodes.findIndex((node) => node.place === 1);
  while (at > 0) {
    path.add(at);
    at = nodes[at].parent;
  }
  return path;
}

function finished(nodes, written) {
  const ended = nodes
    .map((node, at) => ({ node, at }))
    .filter(({ node }) => node.score !== null)
    .sort((one, other) => other.node.score - one.node.score)
    .slice(0, 6);
  const rows = ended.map(({ node, at }) =>
    make(
      "tr",
      {},
      make("td", { class: "n" }, number(node.score)),
      make("td", { class: "n" }, number(node.total)),
      make("td", { class: node.place ? "hit" : null }, make("bdi", {}, plainText(written(at).slice(0, -1)))),
    ),
  );
  return make(
    "div",
    { class: "scroll" },
    table([{ face: "score", number: true }, { face: "log-prob.", number: true }, "finished hypothesis"], rows),
  );
}

/* The text of tokens, with a visible symbol for every invisible character. */
function plainText(tokens) {
  return tokens
    .join("")
    .trim()
    .replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (sign) => label(sign));
}

function beamTree(nodes, best, tell) {
  const levels = [];
  nodes.forEach((node, at) => (levels[node.step] ??= []).push({ node, at }));
  const columns = Math.max(...levels.map((level) => level.length));
  const x = (node) => (node.step === 0 ? 0 : node.rank - 1) * 100 + 50;
  const y = (node) => node.step * 54 + 27;
  const edges = nodes.flatMap((node, at) => {
    if (node.parent === null) return [];
    const from = nodes[node.parent];
    const [top, bottom] = [y(from), y(node)];
    return [
      draw("path", {
        class: best.has(at) ? "best" : null,
        d: `M${x(from)} ${top}C${x(from)} ${top + 30} ${x(node)} ${bottom - 30} ${x(node)} ${bottom}`,
      }),
    ];
  });
  edges.sort((one, other) => one.classList.contains("best") - other.classList.contains("best"));
  const rows = levels.map((level) => {
    const cells = level.map(({ node, at }) => nodeButton(node, at, best, tell));
    return make("div", { class: "level" }, cells);
  });
  const lines = draw(
    "svg",
    { viewBox: `0 0 ${columns * 100} ${levels.length * 54}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...edges,
  );
  return make("div", { class: "tree", "--columns": columns }, lines, rows);
}

function nodeButton(node, at, best, tell) {
  const lost = node.fate !== "went on" && node.score === null;
  const classes = ["node", lost ? "lost" : "", node.score === null ? "" : "ended", best.has(at) ? "best" : ""]
    .filter(Boolean)
    .join(" ");
  const probability = node.step ? percent(Math.exp(node.log_prob)) : "start";
  return make(
    "button",
    {
      type: "button",
      class: classes,
      pointerenter: () => tell(at),
      focus: () => tell(at),
      click: () => tell(at),
      "aria-label": `${named(node.token)}, ${probability}, step ${node.step}, rank ${node.rank}: ${node.fate}`,
    },
    tokenText(node.token),
    make("small", {}, probability),
  );
}
