/* Example sentences like the training data, shown while the text field is empty. */

const panel = document.getElementById("tries");

/* models: as /models has them; chosen: {source, target}; onTry is called with the sentence that was clicked. */
export function showExamples(models, { source, target }, isEmpty, onTry) {
  const fitting = models.filter((model) => model.target === target && (source === "auto" || model.source === source));
  const sentences = [...new Set(fitting.flatMap(({ examples }) => examples ?? []))];
  panel.hidden = !isEmpty || sentences.length === 0;
  if (panel.hidden) return;
  const buttons = sentences.map((sentence) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "try";
    button.dir = "auto";
    button.textContent = sentence;
    button.addEventListener("click", () => onTry(sentence));
    return button;
  });
  const title = document.createElement("p");
  title.className = "faint";
  title.textContent = "Examples like the model’s training data";
  panel.replaceChildren(title, ...buttons);
}

/* The training data of a model as text; empty if its folder does not record it. */
export function trainedOn({ trained }) {
  if (!trained) return "";
  const texts = trained.texts.map(({ name, pairs }) => `${name} (${pairs.toLocaleString("en")} pairs)`).join(", ");
  const steps = trained.steps ? `, ${trained.steps.toLocaleString("en")} steps` : "";
  return `, trained on ${texts}${steps}`;
}
