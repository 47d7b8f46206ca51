/* Shows the report of `heed look` in a sandboxed frame. */

import { ask } from "./server.js";

const dialog = document.getElementById("inside");
const view = document.getElementById("inside-view");
const status = document.getElementById("inside-says");
const save = document.getElementById("inside-save");
let running = null;

export async function lookInside(fields) {
  const request = (running = new AbortController());
  status.textContent = "Tracing the model…";
  status.classList.remove("wrong");
  dialog.showModal();
  try {
    const report = await ask("look", { ...fields, format: "html" }, { signal: request.signal, as: "text" });
    if (request !== running) return;
    status.textContent = "";
    const { theme } = document.documentElement.dataset;
    view.srcdoc = report.replace("<html", `<html data-theme="${theme}"`);
    view.hidden = save.hidden = false;
    save.href = URL.createObjectURL(new Blob([report], { type: "text/html" }));
  } catch (error) {
    if (request !== running) return;
    status.textContent = error.message;
    status.classList.add("wrong");
  }
}

function reset() {
  running?.abort();
  running = null;
  view.hidden = save.hidden = true;
  view.removeAttribute("srcdoc");
  if (save.href) URL.revokeObjectURL(save.href);
  save.removeAttribute("href");
}

export function startInside() {
  document.getElementById("inside-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", reset);
}
