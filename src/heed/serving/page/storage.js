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

/* kind: "localStorage" or "sessionStorage". Returns null where there is no entry. */
export function readStorage(kind, name) {
  return storages[kind] === null ? (inMemory.get(name) ?? null) : storages[kind].getItem(name);
}

/* value: null deletes the entry. */
export function writeStorage(kind, name, value) {
  if (storages[kind] === null) inMemory.set(name, value);
  else if (value === null) storages[kind].removeItem(name);
  else storages[kind].setItem(name, value);
}
