/* Copy buttons: put a text on the clipboard. */

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // fallback: the clipboard API needs HTTPS or localhost
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

export function startCopying(id, text) {
  const button = document.getElementById(id);
  button.addEventListener("click", async () => {
    await toClipboard(text());
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
}
