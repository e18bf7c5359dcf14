// The annotator's own answers: the last ones under the question, and all of them in a dialog.

import { call, imagePath } from "./api.js";
import { byId, element, replaceItems, setText, setVisible } from "./dom.js";
import { FEEDBACK_STATUS, SAVE_STATES, VERDICTS, dateAndTime, plural, timeAgo } from "./format.js";

const MAX_RECENT = 4;

/** List of the last answers, each with its state, and the state of all in the header. */
export class RecentAnswers {
  #outbox; #entries = new Map();

  constructor(outbox) {
    this.#outbox = outbox;
    for (const entry of outbox.entries()) this.#put(entry);
    outbox.addEventListener("changed", ({ detail }) => { this.#put(detail.entry); this.#draw(); });
    outbox.addEventListener("undone", ({ detail }) => this.#remove(detail.entry));
    this.#draw();
  }

  #put(entry) {
    if (entry.kind === "answer" || entry.state === "refused") this.#entries.set(entry.key, { ...entry });
  }

  #remove(entry) {
    this.#entries.delete(entry.answerKey ?? entry.key);
    this.#draw();
  }

  #draw() {
    const refused = new Set(this.#outbox.refused().map((entry) => entry.key));
    const entries = [...this.#entries.values()]
      .filter((entry) => entry.state !== "refused" || refused.has(entry.key)).reverse()
      .filter((entry, index) => index < MAX_RECENT || refused.has(entry.key));
    replaceItems(byId("recent"), entries.map((entry) => this.#item(entry)));
    this.#drawState();
  }

  #item(entry) {
    const dismiss = entry.state !== "refused" ? null : element("button", {
      type: "button", class: "plain", "aria-label": `Dismiss the refused answer about ${entry.question.label}`,
      onclick: () => this.#outbox.dismiss(entry),
    }, "Dismiss");
    const reason = entry.state === "refused" ? `: ${entry.reason}` : "";
    return element("li", { "data-state": entry.state, "data-prediction": entry.question.prediction_id },
      element("span", { class: "item-text" }, entry.question.label),
      element("span", { class: `verdict-name ${entry.verdict}` }, entry.kind === "undo" ? "Undo" : VERDICTS[entry.verdict]),
      element("span", { class: "chip" }, stateText(entry) + reason),
      dismiss);
  }

  /** Show in the header whether it is safe to close the page. */
  #drawState() {
    const pending = this.#outbox.pending();
    const nRefused = this.#outbox.refused().length;
    const waiting = pending.find((entry) => entry.state === "waiting");
    const [state, text] = waiting ? ["waiting", `${stateText(waiting)} · ${plural(pending.length, "answer")} kept`]
      : pending.length ? ["saving", "Saving"]
        : nRefused ? ["refused", `${plural(nRefused, "answer")} refused`] : ["saved", "All saved"];
    setVisible("state", true);
    byId("state").dataset.state = state;
    setText("state", text);
  }
}

function stateText(entry) {
  return entry.state === "waiting" && !entry.isNetworkError ? "Waiting for the server" : SAVE_STATES[entry.state];
}

/** Return one page of own answers from the server, newest first: {feedback, next}. */
export const fetchOwnAnswers = (limit, before = null) =>
  call("GET", `v1/feedback?mine=true&limit=${limit}${before === null ? "" : `&before=${before}`}`);

/** Return the question that a feedback record answered. */
export function questionOf(record) {
  return {
    prediction_id: record.prediction_id, label: record.predicted_label,
    image_url: imagePath(record.prediction_id), lease: null, model_version: record.model_version,
  };
}

/** Dialog with all own answers. Each can be changed or undone. */
export class AnswerHistory {
  #onChange; #records = []; #before = null; #changes = new Map();

  /** `onChange(record, verdict)` changes an answer. A verdict of null undoes it. */
  constructor(onChange) {
    this.#onChange = onChange;
    byId("history-open").addEventListener("click", () => this.open());
    byId("history-more").addEventListener("click", () => this.#loadPage());
  }

  async open() {
    this.#records = [];
    this.#before = null;
    byId("history-list").replaceChildren(element("li", { class: "muted" }, "Loading"));
    byId("history").showModal();
    await this.#loadPage();
  }

  async #loadPage() {
    try {
      const page = await fetchOwnAnswers(30, this.#before);
      this.#records.push(...page.feedback);
      this.#before = page.next;
      this.#draw();
    } catch (error) {
      byId("history-list").append(element("li", { class: "problem" }, error.message));
    }
  }

  #draw() {
    byId("history-more").hidden = this.#before === null;
    const items = this.#records.map((record) => this.#item(record));
    byId("history-list").replaceChildren(...(items.length ? items : [element("li", { class: "muted" }, "No answers yet.")]));
  }

  #item(record) {
    const isReplaced = !record.standing || this.#changes.has(record.id);
    return element("li", { class: isReplaced ? "replaced" : null, "data-feedback": record.id, tabindex: -1 },
      element("img", { src: imagePath(record.prediction_id), alt: "", width: 48, height: 48, loading: "lazy", class: "pixels" }),
      element("div", { class: "item-text" },
        element("strong", {}, record.predicted_label), " ",
        element("span", { class: `verdict-name ${record.verdict}` }, VERDICTS[record.verdict]),
        element("p", { class: "muted", title: dateAndTime(record.received_at) },
          `${timeAgo(record.received_at)}, ${this.#state(record)}${record.comment ? ` · “${record.comment}”` : ""}`)),
      isReplaced ? null : this.#buttons(record));
  }

  #state(record) {
    if (this.#changes.has(record.id)) {
      const verdict = this.#changes.get(record.id);
      return verdict ? `changed to ${VERDICTS[verdict].toLowerCase()}` : "undone";
    }
    if (!record.standing) return record.undone ? "undone" : "changed later";
    return record.verdict === "skip" ? "not used for learning" : FEEDBACK_STATUS[record.status] ?? record.status;
  }

  #change(record, verdict) {
    this.#changes.set(record.id, verdict);
    this.#onChange(record, verdict);
    this.#draw();
    byId("history-list").querySelector(`[data-feedback="${CSS.escape(record.id)}"]`)?.focus();
  }

  #buttons(record) {
    const otherVerdicts = ["correct", "incorrect"].filter((verdict) => verdict !== record.verdict);
    const button = (text, verdict) => element("button", {
      type: "button", "aria-label": `${text}: ${record.predicted_label}`,
      onclick: () => this.#change(record, verdict),
    }, text);
    return element("div", { class: "row" },
      ...otherVerdicts.map((verdict) => button(`Change to ${verdict}`, verdict)),
      button("Undo", null));
  }
}
