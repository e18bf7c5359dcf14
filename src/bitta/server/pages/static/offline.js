// The outbox: every answer and every undo is kept here until the server has it.
//
// An entry gets its Idempotency-Key once, is written to storage before it is sent, and leaves storage
// only when the server has confirmed it. So a reload loses nothing, and a repeat is a success.

import { call, uniqueKey } from "./api.js";
import { microseconds, now } from "./clock.js";
import { load, namesUnder, remove, save } from "./storage.js";

const LONGEST_WAIT = 30;

export class Outbox extends EventTarget {
  #owner; #busy = false; #failures = 0; #timer = null; #sending = null; #last = 0;

  constructor(owner) {
    super();
    this.#owner = owner;
    this.active = false;
    addEventListener("online", () => this.flush());
  }

  #place(entry) { return `outbox.${this.#owner}.${entry.order}`; }

  /** What the server does not have yet, oldest first; refused entries stay until dismissed. */
  entries() {
    return namesUnder(`outbox.${this.#owner}.`).map((name) => load(name)).filter(Boolean);
  }

  pending() { return this.entries().filter((entry) => entry.state !== "refused"); }

  refused() { return this.entries().filter((entry) => entry.state === "refused"); }

  /** `replaces` is the id of an own answer that stands until this one does. */
  answer(question, verdict, { comment, shownAt, leadTime, replaces }) {
    const body = {
      prediction_id: question.prediction_id, verdict, annotator_kind: "HUMAN",
      answered_at: microseconds(now()),  // Now, however late it is sent.
    };
    if (question.lease) body.lease = question.lease.token;
    if (comment) body.comment = comment;
    if (shownAt) body.shown_at = shownAt;
    if (leadTime) body.lead_time_ms = leadTime;
    return this.#add({ kind: "answer", question, verdict, body, replaces });
  }

  /** Take back an answer; one that never left this browser simply goes. */
  undo(answer) {
    const kept = load(this.#place(answer));
    if (kept && kept.tries === 0 && this.#sending !== answer.key) {
      this.#drop(kept);
      this.#tell("undone", { entry: kept, applied: false, note: "It had not been sent." });
      return;
    }
    this.#add({
      kind: "undo", question: answer.question, verdict: answer.verdict,
      of: answer.key, feedback: answer.feedback ?? null,
    });
  }

  dismiss(entry) {
    this.#drop(entry);
    this.#tell("changed", { entry });
  }

  /** Send what is pending, in order, one at a time. */
  async flush() {
    if (this.#busy || !this.active) return;
    this.#busy = true;
    clearTimeout(this.#timer);
    try {
      for (let entry = this.pending()[0]; entry && this.active; entry = this.pending()[0]) {
        if (!(await this.#deliver(entry))) break;
      }
    } finally {
      this.#busy = false;
    }
    if (!this.pending().length) this.#tell("drained", {});
  }

  #add(fields) {
    // Time alone could repeat within a millisecond.
    this.#last = Math.max(Date.now(), this.#last + 1);
    const entry = {
      ...fields, key: uniqueKey(), order: String(this.#last).padStart(15, "0"),
      tries: 0, state: "saving", why: "",
    };
    if (!save(this.#place(entry), entry)) this.#tell("unkept", { entry });
    this.#tell("changed", { entry });
    this.flush();
    return entry;
  }

  async #deliver(entry) {
    if (entry.kind === "undo" && !entry.feedback) {
      // Its answer was refused, so there is nothing to take back.
      this.#drop(entry);
      this.#tell("undone", { entry, applied: false, note: "" });
      return true;
    }
    this.#sending = entry.key;
    this.#set(entry, { tries: entry.tries + 1, state: "saving", why: "" });
    try {
      const said = await this.#send(entry);
      this.#failures = 0;
      this.#accepted(entry, said);
      return true;
    } catch (problem) {
      return this.#failed(entry, problem);
    } finally {
      this.#sending = null;
    }
  }

  #send(entry) {
    if (entry.kind === "answer") {
      return call("POST", "v1/feedback", { body: entry.body, key: entry.key });
    }
    return call("POST", `v1/feedback/${encodeURIComponent(entry.feedback)}/undo`, { key: entry.key });
  }

  #accepted(entry, said) {
    if (entry.kind === "answer") {
      for (const other of this.entries()) {
        if (other.of === entry.key) this.#set(other, { feedback: said.id });
      }
    }
    this.#drop(entry);
    if (entry.kind === "undo") {
      this.#tell("undone", { entry, applied: said.applied, note: said.note ?? "" });
      return;
    }
    entry.state = "saved";
    entry.feedback = said.id;
    this.#tell("changed", { entry });
    this.#tell("saved", { entry });
  }

  #failed(entry, problem) {
    if (problem.passing || problem.signedOut) {
      this.#failures += 1;
      // Those behind it wait as well.
      for (const other of this.pending()) {
        const tries = other.key === entry.key ? entry.tries : other.tries;
        this.#set(other, { tries, state: "waiting", why: problem.message, network: problem.network });
      }
      this.#later(problem.wait);
      if (problem.signedOut) this.#tell("signed-out", {});
      return false;
    }
    if (problem.status === 410) {
      this.#drop(entry);
      entry.state = "expired";
      entry.why = problem.message;
      this.#tell("changed", { entry });
      this.#tell("expired", { entry });
      return true;
    }
    this.#set(entry, { state: "refused", why: problem.message });
    this.#tell("refused", { entry });
    return true;
  }

  #later(wait) {
    const seconds = Math.max(wait, Math.min(LONGEST_WAIT, 2 ** Math.min(this.#failures - 1, 6)));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), seconds * (800 + 400 * Math.random()));
  }

  #set(entry, changes) {
    Object.assign(entry, changes);
    save(this.#place(entry), entry);
    this.#tell("changed", { entry });
  }

  #drop(entry) { remove(this.#place(entry)); }

  #tell(kind, detail) { this.dispatchEvent(new CustomEvent(kind, { detail })); }
}
