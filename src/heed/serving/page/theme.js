/* Dark and light: as the system has it, until the reader says otherwise. */

import { recall, remember } from "./storage.js";

const wish = window.matchMedia("(prefers-color-scheme: dark)");
const KEPT = "heed-theme";

function isDark() {
  const said = recall("localStorage", KEPT);
  return said === null ? wish.matches : said === "dark";
}

function paint() {
  const dark = isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  if (button === null) return; // the page has not been read so far
  button.textContent = dark ? "light" : "dark";
  button.setAttribute("aria-label", dark ? "switch to light" : "switch to dark");
  button.setAttribute("aria-pressed", String(dark));
}

export function startTheme() {
  paint();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = !isDark();
    const asSystem = dark === wish.matches;
    remember("localStorage", KEPT, asSystem ? null : dark ? "dark" : "light");
    paint();
  });
}

wish.addEventListener("change", paint);
paint();
