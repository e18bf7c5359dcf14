// What a reload must not lose. Where a browser refuses storage, memory stands in and `lasting` says so.

const PREFIX = "bitta.";
const memory = new Map();

export const lasting = works();

function works() {
  try {
    localStorage.setItem(`${PREFIX}probe`, "1");
    localStorage.removeItem(`${PREFIX}probe`);
    return true;
  } catch {
    return false;
  }
}

export function load(name, otherwise = null) {
  const text = lasting ? localStorage.getItem(PREFIX + name) : memory.get(name);
  if (text === null || text === undefined) return otherwise;
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/** True when the value will still be there after a reload. */
export function save(name, value) {
  const text = JSON.stringify(value);
  memory.set(name, text);
  if (!lasting) return false;
  try {
    localStorage.setItem(PREFIX + name, text);
    return true;
  } catch {
    return false;
  }
}

export function remove(name) {
  memory.delete(name);
  if (lasting) localStorage.removeItem(PREFIX + name);
}

export function namesUnder(start) {
  const all = lasting
    ? Object.keys(localStorage).filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length))
    : [...memory.keys()];
  return all.filter((name) => name.startsWith(start)).sort();
}

/** Call `changed(value)` when another tab writes `name`. */
export function watch(name, changed) {
  addEventListener("storage", (event) => {
    if (event.key === PREFIX + name) changed(load(name));
  });
}
