/* Looking inside: the report of `heed look`, as the server writes it, in a frame that reaches nothing of this page. */

import { ask } from "./server.js";

const dialog = document.getElementById("inside");
const view = document.getElementById("inside-view");
const says = document.getElementById("inside-says");
const save = document.getElementById("inside-save");
let asking = null;

export async function lookInside(fields) {
  const mine = (asking = new AbortController());
  says.textContent = "Looking…";
  says.classList.remove("wrong");
  dialog.showModal();
  try {
    const report = await ask("look", { ...fields, format: "html" }, { signal: mine.signal, as: "text" });
    if (mine !== asking) return;
    says.textContent = "";
    const { theme } = document.documentElement.dataset;
    view.srcdoc = report.replace("<html", `<html data-theme="${theme}"`);
    view.hidden = save.hidden = false;
    save.href = URL.createObjectURL(new Blob([report], { type: "text/html" }));
  } catch (error) {
    if (mine !== asking) return;
    says.textContent = error.message;
    says.classList.add("wrong");
  }
}

function forget() {
  asking?.abort();
  asking = null;
  view.hidden = save.hidden = true;
  view.removeAttribute("srcdoc");
  if (save.href) URL.revokeObjectURL(save.href);
  save.removeAttribute("href");
}

export function startInside() {
  document.getElementById("inside-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", forget);
}
