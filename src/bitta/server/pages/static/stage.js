// The question on the screen.

import { announce, byId, element, show, write } from "./dom.js";
import { nameOf } from "./keys.js";
import { fit, loaded } from "./picture.js";
import { article } from "./words.js";

// Faster than anybody sees: a second press meant for the question before.
const TOO_SOON = 200;

export class Stage {
  #question = null; #seen = 0; #ready = false;

  constructor(keys) {
    this.#nameKeys(keys);
    keys.addEventListener("changed", () => this.#nameKeys(keys));
    new ResizeObserver(() => this.#fit()).observe(byId("frame"));
  }

  /** Milliseconds the question has been looked at; null while it cannot be answered. */
  lookedAt({ picture }) {
    const time = performance.now() - this.#seen;
    return (this.#ready || !picture) && time > TOO_SOON ? Math.round(time) : null;
  }

  async show(question) {
    if (question === this.#question) return;
    this.#question = question;
    this.#seen = performance.now();
    this.#enable(false);
    show("stage", question !== null);
    if (!question) return;
    byId("stage").dataset.prediction = question.prediction_id;
    write("article", article(question.label));
    write("label", question.label);
    byId("frame").replaceChildren(question.picture ?? missing("The picture of this question was not kept."));
    if (!question.picture) return;
    const seen = await loaded(question.picture);
    if (this.#question !== question) return;
    if (!seen) { this.#failed(question); return; }
    this.#seen = performance.now();
    this.#fit();
    this.#enable(true);
    announce(`Is this ${article(question.label)} ${question.label}?`);
  }

  #failed(question) {
    const again = element("button", {
      type: "button", onclick: () => {
        const source = question.picture.getAttribute("src");
        question.picture.removeAttribute("src");
        question.picture.setAttribute("src", source);
        this.#question = null;
        this.show(question);
      },
    }, "Load it again");
    byId("frame").replaceChildren(missing("The picture could not be loaded."), again);
  }

  #enable(ready) {
    this.#ready = ready;
    // Not `disabled`: that would throw the focus out of the button between two questions.
    for (const id of ["correct", "incorrect"]) byId(id).setAttribute("aria-disabled", String(!ready));
  }

  #fit() { if (this.#question?.picture) fit(this.#question.picture, byId("frame")); }

  #nameKeys(keys) {
    for (const action of Object.keys(keys.map)) {
      const button = byId(action);
      const names = keys.on ? keys.map[action] : [];
      button.querySelector(".keycaps").replaceChildren(...names.map((key) => element("kbd", {}, nameOf(key))));
      if (names.length) button.setAttribute("aria-keyshortcuts", names.join(" "));
      else button.removeAttribute("aria-keyshortcuts");
    }
  }
}

const missing = (sentence) => element("p", { class: "quiet" }, sentence);
