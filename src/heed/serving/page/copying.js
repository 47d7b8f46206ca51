/* Text to the clipboard, at the press of a button that says so. */

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // the clipboard is for HTTPS and this machine only; this is for all
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
