/* What the browser keeps for this page. Where it keeps nothing, since storage is blocked, this page remembers it itself. */

const remembered = new Map();
let isBlocked = false;

function kept(kind) {
  try {
    const storage = window[kind]; // the very name may be refused
    storage.setItem("heed-probe", "");
    storage.removeItem("heed-probe");
    return storage;
  } catch {
    isBlocked = true;
    return null;
  }
}

const storages = { localStorage: kept("localStorage"), sessionStorage: kept("sessionStorage") };

export function isStorageBlocked() {
  return isBlocked;
}

export function recall(kind, name) {
  return storages[kind] === null ? (remembered.get(name) ?? null) : storages[kind].getItem(name);
}

/* text: null to forget it. */
export function remember(kind, name, text) {
  if (storages[kind] === null) remembered.set(name, text);
  else if (text === null) storages[kind].removeItem(name);
  else storages[kind].setItem(name, text);
}
