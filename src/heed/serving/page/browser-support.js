/* The notice at the top of a page that names browser features it misses, and what does not work without them. */

import { hasSegmenter } from "./alignment.js";
import { isStorageBlocked } from "./storage.js";

export function showMissingFeatures() {
  const messages = [
    isStorageBlocked() && "This browser blocks storage: colour scheme and API key are lost on reload.",
    !hasSegmenter && "Words are split at spaces only, since this browser has no Intl.Segmenter.",
  ].filter(Boolean);
  const notice = document.getElementById("browser-notice");
  notice.textContent = messages.join(" ");
  notice.hidden = messages.length === 0;
}
