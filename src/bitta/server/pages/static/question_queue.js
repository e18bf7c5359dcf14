// Questions that this annotator holds: the one on the screen and the next one.
//
// They are kept in storage. After a reload the annotator continues with them, without new leases.

import { call, serverTime, toMilliseconds } from "./api.js";
import { load, remove, save } from "./storage.js";

const MAX_HELD = 2;
const MIN_REMAINING = 1500;  // milliseconds; a held question with less time left is not shown

/** Dispatches "question" (the current one changed), "empty", "left" (count), "lease-ended" and "error". */
export class QuestionQueue extends EventTarget {
  #outbox; #storageName; #held = []; #isFetching = false; #abort = null; #leaseTimer = null; #retryTimer = null; #nFailures = 0;

  constructor(owner, outbox) {
    super();
    this.#outbox = outbox;
    this.#storageName = `held.${owner}`;
    this.isActive = false;
    outbox.addEventListener("empty", () => this.fetch());
  }

  get current() { return this.#held[0] ?? null; }

  start() {
    this.isActive = true;
    const answered = new Set(this.#outbox.entries().map((entry) => entry.question.prediction_id));
    this.#held = load(this.#storageName, [])
      .filter((question) => remainingTime(question) > MIN_REMAINING && !answered.has(question.prediction_id))
      .map(withPicture);
    this.#update();
  }

  stop() {
    this.isActive = false;
    this.#abort?.abort();
    clearTimeout(this.#leaseTimer);
    clearTimeout(this.#retryTimer);
  }

  /** Move to the next question. */
  next() {
    this.#held.shift();
    this.#held = this.#held.filter((question) => remainingTime(question) > MIN_REMAINING);
    this.#update();
  }

  /** Put a question back to the front after its answer was undone. It has no lease any more. */
  putBack(question) {
    const { picture: _, ...fields } = question;
    this.#held = this.#held.filter((held) => held.prediction_id !== question.prediction_id);
    this.#held.unshift(withPicture({ ...fields, lease: null }));
    this.#update();
  }

  /** Forget the held questions. */
  clear() { remove(this.#storageName); }

  #update() {
    this.#save();
    this.#watchLease();
    this.#dispatch("question", { question: this.current });
    this.fetch();
  }

  #save() { save(this.#storageName, this.#held.map(({ picture: _, ...question }) => question)); }

  /** Fetch questions until enough are held. */
  async fetch() {
    // Answers are sent first. Otherwise the server could return a question that was just answered.
    if (!this.isActive || this.#isFetching || this.#held.length >= MAX_HELD || this.#outbox.pending().length) return;
    this.#isFetching = true;
    clearTimeout(this.#retryTimer);
    const wait = this.#held.length ? 0 : 20;
    this.#abort = new AbortController();
    let fetchAgain = false;
    try {
      const exclude = this.#held.map((held) => `&exclude=${encodeURIComponent(held.prediction_id)}`).join("");
      const response = await call("GET", `v1/queue/next?wait=${wait}${exclude}`, { seconds: wait + 15, signal: this.#abort.signal });
      this.#nFailures = 0;
      fetchAgain = response ? this.#add(response) : !this.#held.length;
      if (!response) this.#dispatch("empty", {});
    } catch (error) {
      // The queue may have been stopped and started again while this call was aborted.
      if (this.#abort.signal.aborted) fetchAgain = this.isActive;
      else if (this.isActive) this.#onError(error);
    } finally {
      this.#isFetching = false;
    }
    if (fetchAgain) this.fetch();
  }

  /** Return true if the question is new. */
  #add({ question, left }) {
    if (!this.isActive) return false;
    this.#dispatch("left", { left });
    const held = this.#held.find((other) => other.prediction_id === question.prediction_id);
    if (held) {
      held.lease = question.lease;
      this.#save();
      this.#watchLease();
      return false;
    }
    this.#held.push(withPicture(question));
    this.#save();
    if (this.#held.length === 1) {
      this.#watchLease();
      this.#dispatch("question", { question: this.current });
    }
    return true;
  }

  #onError(error) {
    this.#nFailures += 1;
    this.#dispatch("error", { error });
    if (error.isSignedOut || error.status === 403) return;
    const seconds = Math.max(error.retryAfter, Math.min(20, 2 ** Math.min(this.#nFailures - 1, 5)));
    this.#retryTimer = setTimeout(() => this.fetch(), seconds * 1000);
  }

  #watchLease() {
    clearTimeout(this.#leaseTimer);
    const question = this.current;
    if (!question) return;
    const milliseconds = remainingTime(question);
    if (milliseconds === Infinity) return;
    this.#leaseTimer = setTimeout(() => this.#onLeaseEnd(question), Math.min(Math.max(milliseconds, 0), 2 ** 30));
  }

  #onLeaseEnd(question) {
    if (this.current !== question) return;
    if (remainingTime(question) > 0) { this.#watchLease(); return; }
    this.#dispatch("lease-ended", { question });
    if (this.isActive) this.next();
  }

  #dispatch(kind, detail) { this.dispatchEvent(new CustomEvent(kind, { detail })); }
}

/** Return the milliseconds until the lease or the question ends. */
function remainingTime(question) {
  const ends = [question.lease?.until, question.expires_at].filter(Boolean).map(toMilliseconds);
  return Math.min(...ends) - serverTime();
}

/** Add the picture element. It loads at once, and the same element is shown later. */
function withPicture(question) {
  if (!question.image_url) return { ...question, picture: null };
  const picture = new Image();
  picture.alt = "The picture to judge";
  picture.decoding = "async";
  picture.src = question.image_url;
  return { ...question, picture };
}
