// Answers and undos that the server has not confirmed yet. Each is kept in storage until then.
//
// An entry gets its Idempotency-Key once and is saved before it is sent. It is removed when the server has
// confirmed it. So a reload loses nothing, and sending an entry twice has no further effect.

import { call, serverTime, toMicroseconds, uniqueKey } from "./api.js";
import { load, namesWithPrefix, remove, save } from "./storage.js";

const MAX_WAIT = 30;  // seconds

/** Dispatches "changed", "saved", "undone", "refused", "expired", "empty", "storage-full" and "signed-out". */
export class Outbox extends EventTarget {
  #owner; #isBusy = false; #nFailures = 0; #timer = null; #sendingKey = null; #lastOrder = 0;

  constructor(owner) {
    super();
    this.#owner = owner;
    this.isActive = false;
    addEventListener("online", () => this.flush());
  }

  #storageName(entry) { return `outbox.${this.#owner}.${entry.order}`; }

  /** Return all entries, oldest first. Refused entries stay until they are dismissed. */
  entries() {
    return namesWithPrefix(`outbox.${this.#owner}.`).map((name) => load(name)).filter(Boolean);
  }

  pending() { return this.entries().filter((entry) => entry.state !== "refused"); }

  refused() { return this.entries().filter((entry) => entry.state === "refused"); }

  /** Add an answer. `replaces` is the id of an earlier answer that counts until this one is stored. */
  answer(question, verdict, { comment, shownAt, leadTime, replaces }) {
    const body = {
      prediction_id: question.prediction_id, verdict, annotator_kind: "HUMAN",
      answered_at: toMicroseconds(serverTime()),  // the answer may be sent later
    };
    if (question.lease) body.lease = question.lease.token;
    if (comment) body.comment = comment;
    if (shownAt) body.shown_at = shownAt;
    if (leadTime) body.lead_time_ms = leadTime;
    return this.#add({ kind: "answer", question, verdict, body, replaces });
  }

  /** Undo an answer. An answer that was never sent is only removed. */
  undo(answer) {
    const entry = load(this.#storageName(answer));
    if (entry && entry.nAttempts === 0 && this.#sendingKey !== answer.key) {
      this.#remove(entry);
      this.#dispatch("undone", { entry, applied: false, note: "It had not been sent." });
      return;
    }
    this.#add({
      kind: "undo", question: answer.question, verdict: answer.verdict,
      answerKey: answer.key, feedbackId: answer.feedbackId ?? null,
    });
  }

  /** Remove a refused entry. */
  dismiss(entry) {
    this.#remove(entry);
    this.#dispatch("changed", { entry });
  }

  /** Send all pending entries, in order, one at a time. */
  async flush() {
    if (this.#isBusy || !this.isActive) return;
    this.#isBusy = true;
    clearTimeout(this.#timer);
    try {
      for (let entry = this.pending()[0]; entry && this.isActive; entry = this.pending()[0]) {
        if (!(await this.#deliver(entry))) break;
      }
    } finally {
      this.#isBusy = false;
    }
    if (!this.pending().length) this.#dispatch("empty", {});
  }

  #add(fields) {
    // Two entries may be added within a millisecond.
    this.#lastOrder = Math.max(Date.now(), this.#lastOrder + 1);
    const entry = {
      ...fields, key: uniqueKey(), order: String(this.#lastOrder).padStart(15, "0"),
      nAttempts: 0, state: "saving", reason: "",
    };
    if (!save(this.#storageName(entry), entry)) this.#dispatch("storage-full", { entry });
    this.#dispatch("changed", { entry });
    this.flush();
    return entry;
  }

  /** Return true if the next entry may be sent. */
  async #deliver(entry) {
    if (entry.kind === "undo" && !entry.feedbackId) {
      // The answer was refused or came too late, so there is nothing to undo.
      this.#remove(entry);
      this.#dispatch("undone", { entry, applied: false, note: "" });
      return true;
    }
    this.#sendingKey = entry.key;
    this.#update(entry, { nAttempts: entry.nAttempts + 1, state: "saving", reason: "" });
    try {
      const response = await this.#send(entry);
      this.#nFailures = 0;
      this.#onAccepted(entry, response);
      return true;
    } catch (error) {
      return this.#onError(entry, error);
    } finally {
      this.#sendingKey = null;
    }
  }

  #send(entry) {
    if (entry.kind === "answer") {
      return call("POST", "v1/feedback", { body: entry.body, idempotencyKey: entry.key });
    }
    return call("POST", `v1/feedback/${encodeURIComponent(entry.feedbackId)}/undo`, { idempotencyKey: entry.key });
  }

  #onAccepted(entry, response) {
    if (entry.kind === "answer") {
      for (const other of this.entries()) {
        if (other.answerKey === entry.key) this.#update(other, { feedbackId: response.id });
      }
    }
    this.#remove(entry);
    if (entry.kind === "undo") {
      this.#dispatch("undone", { entry, applied: response.applied, note: response.note ?? "" });
      return;
    }
    entry.state = "saved";
    entry.feedbackId = response.id;
    this.#dispatch("changed", { entry });
    this.#dispatch("saved", { entry });
  }

  #onError(entry, error) {
    if (error.isTemporary || error.isSignedOut) {
      this.#nFailures += 1;
      // All later entries wait too.
      for (const other of this.pending()) {
        const nAttempts = other.key === entry.key ? entry.nAttempts : other.nAttempts;
        this.#update(other, { nAttempts, state: "waiting", reason: error.message, isNetworkError: error.isNetworkError });
      }
      this.#flushLater(error.retryAfter);
      if (error.isSignedOut) this.#dispatch("signed-out", {});
      return false;
    }
    if (error.status === 410) {
      this.#remove(entry);
      entry.state = "expired";
      entry.reason = error.message;
      this.#dispatch("changed", { entry });
      this.#dispatch("expired", { entry });
      return true;
    }
    this.#update(entry, { state: "refused", reason: error.message });
    this.#dispatch("refused", { entry });
    return true;
  }

  #flushLater(minSeconds) {
    const seconds = Math.max(minSeconds, Math.min(MAX_WAIT, 2 ** Math.min(this.#nFailures - 1, 6)));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), seconds * (800 + 400 * Math.random()));
  }

  #update(entry, changes) {
    Object.assign(entry, changes);
    save(this.#storageName(entry), entry);
    this.#dispatch("changed", { entry });
  }

  #remove(entry) { remove(this.#storageName(entry)); }

  #dispatch(kind, detail) { this.dispatchEvent(new CustomEvent(kind, { detail })); }
}
