// Choosing keys: press a button, then the key.

import { ACTIONS, keyOf, nameOf } from "./keys.js";
import { announce, byId, element } from "./dom.js";

export function keysDialog(keys) {
  const dialog = byId("keys-dialog");
  let waiting = null;

  const say = (sentence) => { byId("keys-note").textContent = sentence; announce(sentence); };

  const draw = () => {
    byId("keys-on").checked = keys.on;
    byId("keys-list").replaceChildren(...Object.entries(ACTIONS).map(([action, name]) => element(
      "li", {},
      element("span", {}, name),
      element("span", { class: "keycaps" },
        ...keys.map[action].slice(1).map((key) => element("kbd", {}, nameOf(key))),
        element("button", {
          type: "button", class: waiting === action ? "keycap waiting" : "keycap", "data-action": action,
          "aria-label": `${name}: key ${nameOf(keys.map[action][0])}. Change`,
          onclick: () => choose(action),
        }, waiting === action ? "press a key" : nameOf(keys.map[action][0]))),
    )));
  };

  const focus = (action) => dialog.querySelector(`[data-action="${action}"]`)?.focus();

  const choose = (action) => {
    waiting = action;
    draw();
    focus(action);
    say(`Press the key for “${ACTIONS[action]}”, or Escape to leave it.`);
  };

  const settle = (sentence) => {
    const action = waiting;
    waiting = null;
    draw();
    focus(action);
    say(sentence);
  };

  dialog.addEventListener("keydown", (event) => {
    if (!waiting || event.repeat || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") { settle("Left as it was."); return; }
    const key = keyOf(event);
    const problem = keys.conflict(waiting, key);
    if (problem) { say(problem); return; }
    keys.set(waiting, key);
    settle(`“${nameOf(key)}” now means “${ACTIONS[waiting]}”.`);
  }, true);
  // Escape on a dialog is a cancel event too; while a key is awaited it must not close it.
  dialog.addEventListener("cancel", (event) => { if (waiting) event.preventDefault(); });
  dialog.addEventListener("close", () => { waiting = null; });
  byId("keys-on").addEventListener("change", (event) => keys.turn(event.target.checked));
  byId("keys-reset").addEventListener("click", () => { keys.reset(); draw(); say("The first keys are back."); });
  byId("keys-open").addEventListener("click", () => { draw(); byId("keys-note").textContent = ""; dialog.showModal(); });
}
