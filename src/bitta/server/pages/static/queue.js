// The supply of questions: the one on the screen and one ahead, never more leases than these two.
//
// Held questions are kept in storage, so a reload goes on with them in place of leasing others.

import { call } from "./api.js";
import { milliseconds, now } from "./clock.js";
import { load, remove, save } from "./storage.js";

const AHEAD = 2;
const MARGIN = 1500;  // A lease about to end is of no use to a person.

export class Supply extends EventTarget {
  #outbox; #place; #hand = []; #loading = false; #stop = null; #timer = null; #retry = null; #failures = 0;

  constructor(owner, outbox) {
    super();
    this.#outbox = outbox;
    this.#place = `held.${owner}`;
    this.active = false;
    outbox.addEventListener("drained", () => this.#fill());
  }

  get current() { return this.#hand[0] ?? null; }

  start() {
    this.active = true;
    const answered = new Set(this.#outbox.entries().map((entry) => entry.question.prediction_id));
    this.#hand = load(this.#place, [])
      .filter((question) => remaining(question) > MARGIN && !answered.has(question.prediction_id))
      .map(withPicture);
    this.#show();
  }

  stop() {
    this.active = false;
    this.#stop?.abort();
    clearTimeout(this.#timer);
    clearTimeout(this.#retry);
  }

  /** The current question has its answer; the next comes. */
  next() {
    this.#hand.shift();
    this.#hand = this.#hand.filter((question) => remaining(question) > MARGIN);
    this.#show();
  }

  /** A question comes back to the front, without its lease: its answer was taken back. */
  again(question) {
    const { picture: _, ...plain } = question;
    this.#hand = this.#hand.filter((held) => held.prediction_id !== question.prediction_id);
    this.#hand.unshift(withPicture({ ...plain, lease: null }));
    this.#show();
  }

  /** New questions were asked. */
  wake() { this.#fill(); }

  forget() { remove(this.#place); }

  #show() {
    this.#keep();
    this.#watch();
    this.#tell("question", { question: this.current });
    this.#fill();
  }

  #keep() { save(this.#place, this.#hand.map(({ picture: _, ...question }) => question)); }

  async #fill() {
    // What waits in the outbox goes first, or the server could hand out what was just answered.
    if (!this.active || this.#loading || this.#hand.length >= AHEAD || this.#outbox.pending().length) return;
    this.#loading = true;
    clearTimeout(this.#retry);
    const wait = this.#hand.length ? 0 : 20;
    this.#stop = new AbortController();
    let more = false;
    try {
      const besides = this.#hand.map((held) => `&besides=${encodeURIComponent(held.prediction_id)}`).join("");
      const said = await call("GET", `v1/queue/next?wait=${wait}${besides}`, { seconds: wait + 15, signal: this.#stop.signal });
      this.#failures = 0;
      more = said ? this.#add(said) : !this.#hand.length;
      if (!said) this.#tell("empty", {});
    } catch (problem) {
      // Started again while the call of before was being given up.
      if (this.#stop.signal.aborted) more = this.active;
      else if (this.active) this.#failed(problem);
    } finally {
      this.#loading = false;
    }
    if (more) this.#fill();
  }

  /** True when a question came that was not in hand. */
  #add({ question, left }) {
    if (!this.active) return false;
    this.#tell("left", { left });
    const held = this.#hand.find((other) => other.prediction_id === question.prediction_id);
    if (held) {
      held.lease = question.lease;
      this.#keep();
      this.#watch();
      return false;
    }
    this.#hand.push(withPicture(question));
    if (this.#hand.length === 1) {
      this.#keep();
      this.#watch();
      this.#tell("question", { question: this.current });
    }
    this.#keep();
    return true;
  }

  #failed(problem) {
    this.#failures += 1;
    this.#tell("trouble", { problem });
    if (problem.signedOut || problem.status === 403) return;
    const seconds = Math.max(problem.wait, Math.min(20, 2 ** Math.min(this.#failures - 1, 5)));
    this.#retry = setTimeout(() => this.#fill(), seconds * 1000);
  }

  #watch() {
    clearTimeout(this.#timer);
    const question = this.current;
    if (!question) return;
    const left = remaining(question);
    if (left === Infinity) return;
    this.#timer = setTimeout(() => this.#lapse(question), Math.min(Math.max(left, 0), 2 ** 30));
  }

  #lapse(question) {
    if (this.current !== question) return;
    if (remaining(question) > 0) { this.#watch(); return; }
    this.#tell("lapsed", { question });
    if (this.active) this.next();
  }

  #tell(kind, detail) { this.dispatchEvent(new CustomEvent(kind, { detail })); }
}

/** Milliseconds until the server gives this question to somebody else, or nobody needs it any more. */
function remaining(question) {
  const ends = [question.lease?.until, question.expires_at].filter(Boolean).map(milliseconds);
  return Math.min(...ends) - now();
}

/** The picture is fetched with the question; the very element is put on the page later. */
function withPicture(question) {
  if (!question.image_url) return { ...question, picture: null };
  const picture = new Image();
  picture.alt = "The picture in question";
  picture.decoding = "async";
  picture.src = question.image_url;
  return { ...question, picture };
}
