// The last answers, each with its state in words.

import { byId, element, refill, show, write } from "./dom.js";
import { STATES, VERDICTS, plural } from "./words.js";

const KEPT = 4;

export class Recent {
  #outbox; #entries = new Map();

  constructor(outbox) {
    this.#outbox = outbox;
    for (const entry of outbox.entries()) this.#note(entry);
    outbox.addEventListener("changed", ({ detail }) => this.#changed(detail.entry));
    outbox.addEventListener("undone", ({ detail }) => this.#gone(detail.entry));
    this.#draw();
  }

  #changed(entry) {
    this.#note(entry);
    this.#draw();
  }

  #note(entry) {
    if (entry.kind === "answer" || entry.state === "refused") this.#entries.set(entry.key, { ...entry });
  }

  #gone(entry) {
    this.#entries.delete(entry.of ?? entry.key);
    this.#draw();
  }

  #draw() {
    const refused = new Set(this.#outbox.refused().map((entry) => entry.key));
    const shown = [...this.#entries.values()]
      .filter((entry) => entry.state !== "refused" || refused.has(entry.key)).reverse();
    const kept = shown.filter((entry, place) => place < KEPT || refused.has(entry.key));
    refill(byId("recent"), kept.map((entry) => this.#line(entry)));
    this.#state();
  }

  #line(entry) {
    const dismiss = entry.state !== "refused" ? null : element("button", {
      type: "button", class: "plain", "aria-label": `Dismiss the refused answer about ${entry.question.label}`,
      onclick: () => this.#outbox.dismiss(entry),
    }, "Dismiss");
    const why = entry.state === "refused" ? `: ${entry.why}` : "";
    return element("li", { "data-state": entry.state, "data-prediction": entry.question.prediction_id },
      element("span", { class: "what" }, entry.question.label),
      element("span", { class: `verdict-name ${entry.verdict}` }, entry.kind === "undo" ? "Undo" : VERDICTS[entry.verdict]),
      element("span", { class: "chip" }, named(entry) + why),
      dismiss);
  }

  /** The one line in the header: what a person must know before closing the page. */
  #state() {
    const pending = this.#outbox.pending();
    const refused = this.#outbox.refused().length;
    const waiting = pending.find((entry) => entry.state === "waiting");
    const [state, text] = waiting ? ["waiting", `${named(waiting)} · ${plural(pending.length, "answer")} kept`]
      : pending.length ? ["saving", "Saving"]
        : refused ? ["refused", `${plural(refused, "answer")} refused`] : ["saved", "All saved"];
    show("state", true);
    byId("state").dataset.state = state;
    write("state", text);
  }
}

function named(entry) {
  return entry.state === "waiting" && !entry.network ? "Waiting for the server" : STATES[entry.state];
}
