/* Example sentences like the training data, as buttons under the empty text field. */

const panel = document.getElementById("example-sentences");

/* models: from /models. selected: {source, target} languages. onSelect: called with the sentence that was clicked. */
export function showExampleSentences(models, { source, target }, isEmpty, onSelect) {
  const matching = models.filter((model) => model.target === target && (source === "auto" || model.source === source));
  const sentences = [...new Set(matching.flatMap(({ examples }) => examples ?? []))];
  panel.hidden = !isEmpty || sentences.length === 0;
  if (panel.hidden) return;
  const buttons = sentences.map((sentence) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "example-sentence";
    button.dir = "auto";
    button.textContent = sentence;
    button.addEventListener("click", () => onSelect(sentence));
    return button;
  });
  const title = document.createElement("p");
  title.className = "faint";
  title.textContent = "Examples like the model’s training data";
  panel.replaceChildren(title, ...buttons);
}
