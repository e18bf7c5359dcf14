// Which key does what: kept per browser, free of conflicts, silent while somebody types.

import { load, remove, save } from "./storage.js";

const PLACE = "keys";

export const ACTIONS = { correct: "Yes, correct", incorrect: "No, incorrect", skip: "Skip", undo: "Undo" };

export const DEFAULTS = {
  correct: ["c", "ArrowRight"], incorrect: ["x", "ArrowLeft"], skip: ["s"], undo: ["u"],
};

// They work the page itself: focus, pressing what has focus, closing a dialog.
const RESERVED = new Set(["Tab", "Enter", " ", "Escape", "Shift", "Control", "Alt", "AltGraph", "Meta",
  "CapsLock", "Dead", "Process", "Unidentified", "F5"]);

const NAMES = { ArrowRight: "→", ArrowLeft: "←", ArrowUp: "↑", ArrowDown: "↓", Backspace: "⌫", Delete: "Del",
  PageUp: "PgUp", PageDown: "PgDn" };

export const nameOf = (key) => NAMES[key] ?? key;

export class Keys extends EventTarget {
  constructor() {
    super();
    const kept = load(PLACE, {});
    this.map = sound(kept.map) ? kept.map : structuredClone(DEFAULTS);
    this.on = kept.on !== false;
  }

  actionOf(key) {
    return Object.keys(ACTIONS).find((action) => this.map[action].includes(normal(key))) ?? null;
  }

  /** Why this key cannot serve this action; an empty sentence when it can. */
  conflict(action, key) {
    if (RESERVED.has(key)) return "That key is needed to work the page. Choose another.";
    const other = this.actionOf(key);
    if (other && other !== action) return `“${nameOf(normal(key))}” already means “${ACTIONS[other]}”. Choose another.`;
    return "";
  }

  /** Put a key in place of the first one of an action. */
  set(action, key) {
    const rest = this.map[action].slice(1).filter((other) => other !== normal(key));
    this.map[action] = [normal(key), ...rest];
    this.#keep();
  }

  turn(on) {
    this.on = on;
    this.#keep();
  }

  reset() {
    this.map = structuredClone(DEFAULTS);
    this.on = true;
    remove(PLACE);
    this.dispatchEvent(new Event("changed"));
  }

  /** Call `act(action)` for each press that is meant for the page. */
  listen(act) {
    document.addEventListener("keydown", (event) => {
      // A held Enter or space would press the focused button again and again.
      if (event.repeat && event.target instanceof Element && event.target.closest("button")) event.preventDefault();
      if (!this.on || event.repeat || event.isComposing || event.defaultPrevented) return;
      if (event.ctrlKey || event.altKey || event.metaKey || typing(event.target)) return;
      const action = this.actionOf(keyOf(event));
      if (!action) return;
      event.preventDefault();
      act(action);
    });
  }

  #keep() {
    save(PLACE, { map: this.map, on: this.on });
    this.dispatchEvent(new Event("changed"));
  }
}

/** A letter by its place on the keyboard where the layout writes another script. */
export function keyOf({ key, code }) {
  return key.length === 1 && key > "\x7f" && /^Key[A-Z]$/.test(code) ? code.slice(3).toLowerCase() : key;
}

const normal = (key) => (key.length === 1 ? key.toLowerCase() : key);

function typing(target) {
  if (document.querySelector("dialog[open]")) return true;
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

function sound(map) {
  return Object.keys(ACTIONS).every((action) => Array.isArray(map?.[action]) && map[action].length > 0);
}
