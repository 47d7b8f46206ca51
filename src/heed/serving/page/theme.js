/* Dark or light theme: the system’s preference, unless the user chooses otherwise. */

import { readStorage, writeStorage } from "./storage.js";

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const STORAGE_KEY = "heed-theme";

function isDark() {
  const chosen = readStorage("localStorage", STORAGE_KEY);
  return chosen === null ? systemDark.matches : chosen === "dark";
}

function applyTheme() {
  const dark = isDark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  if (button === null) return; // the page is not parsed yet
  button.textContent = dark ? "light" : "dark";
  button.setAttribute("aria-label", dark ? "switch to light" : "switch to dark");
  button.setAttribute("aria-pressed", String(dark));
}

export function initTheme() {
  applyTheme();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = !isDark();
    const isSystemDefault = dark === systemDark.matches;
    writeStorage("localStorage", STORAGE_KEY, isSystemDefault ? null : dark ? "dark" : "light");
    applyTheme();
  });
}

systemDark.addEventListener("change", applyTheme);
applyTheme();
