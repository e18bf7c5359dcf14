// Own answers, newest first, each open to a change of mind.

import { call, image } from "./api.js";
import { ago, exactly } from "./clock.js";
import { byId, element } from "./dom.js";
import { FEEDBACK, VERDICTS } from "./words.js";

/** What the server has of mine: {feedback, next}. */
export const mine = (limit, before = null) =>
  call("GET", `v1/feedback?mine=true&limit=${limit}${before === null ? "" : `&before=${before}`}`);

/** A record as the question it answered. */
export function questionOf(record) {
  return {
    prediction_id: record.prediction_id, label: record.predicted_label,
    image_url: image(record.prediction_id), lease: null, model_version: record.model_version,
  };
}

export class History {
  #act; #records = []; #before = null; #changed = new Map();

  /** `act(record, verdict)` changes an answer; a verdict of null takes it back. */
  constructor(act) {
    this.#act = act;
    byId("history-open").addEventListener("click", () => this.open());
    byId("history-more").addEventListener("click", () => this.#load());
  }

  async open() {
    this.#records = [];
    this.#before = null;
    byId("history-list").replaceChildren(element("li", { class: "quiet" }, "Loading"));
    byId("history").showModal();
    await this.#load();
  }

  async #load() {
    try {
      const said = await mine(30, this.#before);
      this.#records.push(...said.feedback);
      this.#before = said.next;
      this.#draw();
    } catch (problem) {
      byId("history-list").append(element("li", { class: "problem" }, problem.message));
    }
  }

  #draw() {
    byId("history-more").hidden = this.#before === null;
    const lines = this.#records.map((record) => this.#line(record));
    byId("history-list").replaceChildren(...(lines.length ? lines : [element("li", { class: "quiet" }, "No answers yet.")]));
  }

  #line(record) {
    const change = this.#changed.get(record.id);
    const gone = !record.standing || change !== undefined;
    const state = change !== undefined ? (change ? `changed to ${VERDICTS[change].toLowerCase()}` : "taken back")
      : !record.standing ? (record.undone ? "taken back" : "changed later")
        : record.verdict === "skip" ? "nothing is learned from it" : FEEDBACK[record.status] ?? record.status;
    return element("li", { class: gone ? "gone" : null, "data-feedback": record.id, tabindex: -1 },
      element("img", { src: image(record.prediction_id), alt: "", width: 48, height: 48, loading: "lazy", class: "pixels" }),
      element("div", { class: "what" },
        element("strong", {}, record.predicted_label), " ",
        element("span", { class: `verdict-name ${record.verdict}` }, VERDICTS[record.verdict]),
        element("p", { class: "quiet", title: exactly(record.received_at) },
          `${ago(record.received_at)}, ${state}${record.comment ? ` · “${record.comment}”` : ""}`)),
      gone ? null : this.#buttons(record));
  }

  #change(record, verdict) {
    this.#changed.set(record.id, verdict);
    this.#act(record, verdict);
    this.#draw();
    byId("history-list").querySelector(`[data-feedback="${CSS.escape(record.id)}"]`)?.focus();
  }

  #buttons(record) {
    const others = ["correct", "incorrect"].filter((verdict) => verdict !== record.verdict);
    const button = (text, verdict) => element("button", {
      type: "button", "aria-label": `${text}: ${record.predicted_label}`,
      onclick: () => this.#change(record, verdict),
    }, text);
    return element("div", { class: "row" },
      ...others.map((verdict) => button(`Make it ${verdict}`, verdict)),
      button("Take back", null));
  }
}
