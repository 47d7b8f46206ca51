/* What this browser does not have, said in words: what works without it, and what does not. */

import { isStorageBlocked } from "./storage.js";
import { hasSegmenter } from "./words.js";

export function startMissing() {
  const says = [
    isStorageBlocked() && "This browser keeps nothing for this page: colours and keys are forgotten when it is reloaded.",
    !hasSegmenter && "This browser finds words by the spaces between them only (it has no Intl.Segmenter).",
  ].filter(Boolean);
  const place = document.getElementById("missing");
  place.textContent = says.join(" ");
  place.hidden = says.length === 0;
}
