/* The footer's sentence on a model of /models: its size and, where its folder records them, its training data. */

/* languages: "English to German, " for a translation model, else empty. */
export function modelSummary({ name, parameters, trained }, languages = "") {
  return `${name}: ${languages}${parameters.toLocaleString("en")} parameters${trainingSummary(trained)}.`;
}

function trainingSummary(trained) {
  if (!trained) return "";
  const texts = trained.texts.map(({ name, pairs }) => `${name} (${pairs.toLocaleString("en")} pairs)`).join(", ");
  const steps = trained.steps ? `, ${trained.steps.toLocaleString("en")} steps` : "";
  return `, trained on ${texts}${steps}`;
}
