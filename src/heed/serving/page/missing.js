/* Notices about browser features that are missing, and what that changes. */

import { isStorageBlocked } from "./storage.js";
import { hasSegmenter } from "./words.js";

export function startMissing() {
  const notices = [
    isStorageBlocked() && "This browser blocks storage: colour scheme and API key are lost on reload.",
    !hasSegmenter && "Words are split at spaces only, since this browser has no Intl.Segmenter.",
  ].filter(Boolean);
  const notice = document.getElementById("missing");
  notice.textContent = notices.join(" ");
  notice.hidden = notices.length === 0;
}
