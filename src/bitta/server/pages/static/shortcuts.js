// Keyboard shortcuts, kept per browser, and the dialog that changes them.

import { announce, byId, element } from "./dom.js";
import { load, remove, save } from "./storage.js";

const STORAGE_NAME = "shortcuts";

const ACTIONS = { correct: "Yes, correct", incorrect: "No, incorrect", skip: "Skip", undo: "Undo" };

const DEFAULT_KEYS = {
  correct: ["c", "ArrowRight"], incorrect: ["x", "ArrowLeft"], skip: ["s"], undo: ["u"],
};

// Keys that control the page itself: move the focus, press the focused button, close a dialog.
const RESERVED_KEYS = new Set(["Tab", "Enter", " ", "Escape", "Shift", "Control", "Alt", "AltGraph", "Meta",
  "CapsLock", "Dead", "Process", "Unidentified", "F5"]);

const KEY_NAMES = { ArrowRight: "→", ArrowLeft: "←", ArrowUp: "↑", ArrowDown: "↓", Backspace: "⌫", Delete: "Del",
  PageUp: "PgUp", PageDown: "PgDn" };

export const keyName = (key) => KEY_NAMES[key] ?? key;

/** Keys of each action. Dispatches "changed". */
export class Shortcuts extends EventTarget {
  constructor() {
    super();
    const saved = load(STORAGE_NAME, {});
    this.keys = isValid(saved.keys) ? saved.keys : structuredClone(DEFAULT_KEYS);
    this.isOn = saved.isOn !== false;
  }

  actionOf(key) {
    return Object.keys(ACTIONS).find((action) => this.keys[action].includes(normalized(key))) ?? null;
  }

  /** Return the reason why the key cannot be used for the action, or an empty string. */
  conflict(action, key) {
    if (RESERVED_KEYS.has(key)) return "The page itself uses that key. Choose another.";
    const other = this.actionOf(key);
    if (other && other !== action) return `“${keyName(normalized(key))}” already means “${ACTIONS[other]}”. Choose another.`;
    return "";
  }

  /** Replace the first key of an action. */
  setKey(action, key) {
    const others = this.keys[action].slice(1).filter((other) => other !== normalized(key));
    this.keys[action] = [normalized(key), ...others];
    this.#save();
  }

  setOn(isOn) {
    this.isOn = isOn;
    this.#save();
  }

  reset() {
    this.keys = structuredClone(DEFAULT_KEYS);
    this.isOn = true;
    remove(STORAGE_NAME);
    this.dispatchEvent(new Event("changed"));
  }

  /** Call `onAction(action)` for each press of a shortcut. */
  listen(onAction) {
    document.addEventListener("keydown", (event) => {
      // A held Enter or space would press the focused button repeatedly.
      if (event.repeat && event.target instanceof Element && event.target.closest("button")) event.preventDefault();
      if (!this.isOn || event.repeat || event.isComposing || event.defaultPrevented) return;
      if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target)) return;
      const action = this.actionOf(keyOf(event));
      if (!action) return;
      event.preventDefault();
      onAction(action);
    });
  }

  #save() {
    save(STORAGE_NAME, { keys: this.keys, isOn: this.isOn });
    this.dispatchEvent(new Event("changed"));
  }
}

/** Return the key. On a keyboard with another alphabet, it is the Latin letter at the same position. */
function keyOf({ key, code }) {
  return key.length === 1 && key > "\x7f" && /^Key[A-Z]$/.test(code) ? code.slice(3).toLowerCase() : key;
}

const normalized = (key) => (key.length === 1 ? key.toLowerCase() : key);

function isTyping(target) {
  if (document.querySelector("dialog[open]")) return true;
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

function isValid(keys) {
  return Object.keys(ACTIONS).every((action) => Array.isArray(keys?.[action]) && keys[action].length > 0);
}

/** Set up the dialog: press the button of an action, then its new key. */
export function setUpShortcutsDialog(shortcuts) {
  const dialog = byId("keys-dialog");
  let chosenAction = null;

  const showMessage = (sentence) => { byId("keys-note").textContent = sentence; announce(sentence); };

  const draw = () => {
    byId("keys-on").checked = shortcuts.isOn;
    byId("keys-list").replaceChildren(...Object.entries(ACTIONS).map(([action, name]) => element(
      "li", {},
      element("span", {}, name),
      element("span", { class: "keycaps" },
        ...shortcuts.keys[action].slice(1).map((key) => element("kbd", {}, keyName(key))),
        element("button", {
          type: "button", class: chosenAction === action ? "keycap waiting" : "keycap", "data-action": action,
          "aria-label": `${name}: key ${keyName(shortcuts.keys[action][0])}. Change`,
          onclick: () => choose(action),
        }, chosenAction === action ? "press a key" : keyName(shortcuts.keys[action][0]))),
    )));
  };

  const focusAction = (action) => dialog.querySelector(`[data-action="${action}"]`)?.focus();

  const choose = (action) => {
    chosenAction = action;
    draw();
    focusAction(action);
    showMessage(`Press the new key for “${ACTIONS[action]}”, or Escape to keep the old one.`);
  };

  const finish = (sentence) => {
    const action = chosenAction;
    chosenAction = null;
    draw();
    focusAction(action);
    showMessage(sentence);
  };

  dialog.addEventListener("keydown", (event) => {
    if (!chosenAction || event.repeat || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") { finish("The key was not changed."); return; }
    const key = keyOf(event);
    const problem = shortcuts.conflict(chosenAction, key);
    if (problem) { showMessage(problem); return; }
    shortcuts.setKey(chosenAction, key);
    finish(`“${keyName(key)}” now means “${ACTIONS[chosenAction]}”.`);
  }, true);
  // Escape also sends a cancel event, which must not close the dialog while a key is awaited.
  dialog.addEventListener("cancel", (event) => { if (chosenAction) event.preventDefault(); });
  dialog.addEventListener("close", () => { chosenAction = null; });
  byId("keys-on").addEventListener("change", (event) => shortcuts.setOn(event.target.checked));
  byId("keys-reset").addEventListener("click", () => { shortcuts.reset(); draw(); showMessage("The default keys are back."); });
  byId("keys-open").addEventListener("click", () => { draw(); byId("keys-note").textContent = ""; dialog.showModal(); });
}
