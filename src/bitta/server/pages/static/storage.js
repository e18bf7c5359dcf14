// Data in localStorage, which survives a reload, and the rule that one tab of a browser is active.

import { uniqueKey } from "./api.js";

const PREFIX = "bitta.";
const memory = new Map();  // used if the browser refuses localStorage

export const isPersistent = canStore();

function canStore() {
  try {
    localStorage.setItem(`${PREFIX}probe`, "1");
    localStorage.removeItem(`${PREFIX}probe`);
    return true;
  } catch {
    return false;
  }
}

export function load(name, fallback = null) {
  const text = isPersistent ? localStorage.getItem(PREFIX + name) : memory.get(name);
  if (text === null || text === undefined) return fallback;
  try {
    return JSON.parse(text);
  } catch {
    return fallback;
  }
}

/** Return true if the value will survive a reload. */
export function save(name, value) {
  const text = JSON.stringify(value);
  memory.set(name, text);
  if (!isPersistent) return false;
  try {
    localStorage.setItem(PREFIX + name, text);
    return true;
  } catch {
    return false;
  }
}

export function remove(name) {
  memory.delete(name);
  if (isPersistent) localStorage.removeItem(PREFIX + name);
}

/** Return all names that start with `prefix`, sorted. */
export function namesWithPrefix(prefix) {
  const names = isPersistent
    ? Object.keys(localStorage).filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length))
    : [...memory.keys()];
  return names.filter((name) => name.startsWith(prefix)).sort();
}

/** Call `onChange(value)` when another tab saves `name`. */
function watch(name, onChange) {
  addEventListener("storage", (event) => {
    if (event.key === PREFIX + name) onChange(load(name));
  });
}

const ACTIVE_TAB = "answering";

/**
 * Keeps one tab active: the one that was opened or chosen last. Dispatches "activated" and "deactivated".
 * Two active tabs would each hold a lease on the same questions.
 */
export class ActiveTab extends EventTarget {
  #id = uniqueKey();
  #shouldActivateWhenFree = false;

  constructor() {
    super();
    this.isActive = false;
    watch(ACTIVE_TAB, (id) => { if (id !== null && id !== this.#id) this.#deactivate(); });
    addEventListener("pagehide", () => this.#release());
    // If no tab is active, a page from the back-forward cache or a tab that gets the focus becomes active.
    addEventListener("pageshow", () => this.#check());
    addEventListener("focus", () => this.#check());
  }

  activate() {
    save(ACTIVE_TAB, this.#id);
    this.isActive = true;
    this.#shouldActivateWhenFree = false;
    this.dispatchEvent(new Event("activated"));
  }

  #check() {
    const id = load(ACTIVE_TAB);
    if (id === null && this.#shouldActivateWhenFree) this.activate();
    // A frozen page gets no storage events of other tabs.
    else if (id !== null && id !== this.#id) this.#deactivate();
  }

  #release() {
    if (load(ACTIVE_TAB) !== this.#id) return;
    remove(ACTIVE_TAB);
    this.#shouldActivateWhenFree = true;
  }

  #deactivate() {
    if (!this.isActive) return;
    this.isActive = false;
    this.#shouldActivateWhenFree = true;
    this.dispatchEvent(new Event("deactivated"));
  }
}
