/* Browser storage; where it is blocked, values are kept in memory until the page is reloaded. */

const inMemory = new Map();
let isBlocked = false;

function openStorage(kind) {
  try {
    const storage = window[kind]; // even reading the property may throw
    storage.setItem("heed-probe", "");
    storage.removeItem("heed-probe");
    return storage;
  } catch {
    isBlocked = true;
    return null;
  }
}

const storages = { localStorage: openStorage("localStorage"), sessionStorage: openStorage("sessionStorage") };

export function isStorageBlocked() {
  return isBlocked;
}

export function recall(kind, name) {
  return storages[kind] === null ? (inMemory.get(name) ?? null) : storages[kind].getItem(name);
}

/* text: null deletes the entry. */
export function remember(kind, name, text) {
  if (storages[kind] === null) inMemory.set(name, text);
  else if (text === null) storages[kind].removeItem(name);
  else storages[kind].setItem(name, text);
}
