/* Copy buttons: put a text on the clipboard and confirm it on the button. */

async function writeClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // fallback: the clipboard API needs HTTPS or localhost
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

/* id: of the button. getText: returns the text to copy, called at each click. */
export function initCopyButton(id, getText) {
  const button = document.getElementById(id);
  button.addEventListener("click", async () => {
    await writeClipboard(getText());
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
}
