/* Dark or light theme: the system’s preference, unless the user chooses otherwise. */

import { recall, remember } from "./storage.js";

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const STORAGE_KEY = "heed-theme";

function isDark() {
  const chosen = recall("localStorage", STORAGE_KEY);
  return chosen === null ? systemDark.matches : chosen === "dark";
}

function paint() {
  const dark = isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  if (button === null) return; // the page is not parsed yet
  button.textContent = dark ? "light" : "dark";
  button.setAttribute("aria-label", dark ? "switch to light" : "switch to dark");
  button.setAttribute("aria-pressed", String(dark));
}

export function startTheme() {
  paint();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = !isDark();
    const asSystem = dark === systemDark.matches;
    remember("localStorage", STORAGE_KEY, asSystem ? null : dark ? "dark" : "light");
    paint();
  });
}

systemDark.addEventListener("change", paint);
paint();
