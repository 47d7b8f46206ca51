/* Dark and light: as the system has it, until the reader says otherwise. */

const wish = window.matchMedia("(prefers-color-scheme: dark)");
const KEPT = "heed-theme";

function isDark() {
  const said = localStorage.getItem(KEPT);
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
    if (dark === wish.matches) localStorage.removeItem(KEPT); // back to the system's
    else localStorage.setItem(KEPT, dark ? "dark" : "light");
    paint();
  });
}

wish.addEventListener("change", paint);
paint();
