/* Sentences to begin with, of the kind that the models here were trained on; gone as soon as something is typed. */

const place = document.getElementById("tries");

/* models: as /models has them; chosen: {source, target}; onTry is called with the sentence that was pressed. */
export function showTries(models, { source, target }, isEmpty, onTry) {
  const fitting = models.filter((one) => one.target === target && (source === "auto" || one.source === source));
  const sentences = [...new Set(fitting.flatMap(({ examples }) => examples ?? []))];
  place.hidden = !isEmpty || sentences.length === 0;
  if (place.hidden) return;
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
  title.textContent = "Try one of these: the model was trained on such sentences";
  place.replaceChildren(title, ...buttons);
}

/* What a model was trained on, in words; nothing where its folder does not say. */
export function trainedOn({ trained }) {
  if (!trained) return "";
  const texts = trained.texts.map(({ name, pairs }) => `${name} (${pairs.toLocaleString("en")} pairs)`).join(", ");
  const steps = trained.steps ? `, ${trained.steps.toLocaleString("en")} steps` : "";
  return `, trained on ${texts}${steps}`;
}
