/* The full-screen dialog "look inside": requests the HTML report of `heed look` and shows it in a sandboxed iframe. */

import { request } from "./http-client.js";

const dialog = document.getElementById("look-dialog");
const frame = document.getElementById("look-frame");
const status = document.getElementById("look-status");
const saveLink = document.getElementById("look-save");
let running = null; // AbortController of the request that is running

/* fields: of POST /look. */
export async function openLookDialog(fields) {
  const controller = (running = new AbortController());
  status.textContent = "Tracing the model…";
  status.classList.remove("error");
  dialog.showModal();
  try {
    const report = await request("look", { ...fields, format: "html" }, { signal: controller.signal, as: "text" });
    if (controller !== running) return;
    status.textContent = "";
    const { theme } = document.documentElement.dataset;
    frame.srcdoc = report.replace("<html", `<html data-theme="${theme}"`);
    frame.hidden = saveLink.hidden = false;
    saveLink.href = URL.createObjectURL(new Blob([report], { type: "text/html" }));
  } catch (error) {
    if (controller !== running) return;
    status.textContent = error.message;
    status.classList.add("error");
  }
}

function reset() {
  running?.abort();
  running = null;
  frame.hidden = saveLink.hidden = true;
  frame.removeAttribute("srcdoc");
  if (saveLink.href) URL.revokeObjectURL(saveLink.href);
  saveLink.removeAttribute("href");
}

export function initLookDialog() {
  document.getElementById("look-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", reset);
}
