// The annotator's page: one question at a time, each answer bound to its prediction.

import { microseconds, now } from "./clock.js";
import { announce, byId, notice, show, write } from "./dom.js";
import { History, mine, questionOf } from "./history.js";
import { Keys } from "./keys.js";
import { keysDialog } from "./keysdialog.js";
import { Live } from "./live.js";
import { Outbox } from "./offline.js";
import { Supply } from "./queue.js";
import { Recent } from "./recent.js";
import { signOut, whoAmI } from "./signin.js";
import { Stage } from "./stage.js";
import { lasting } from "./storage.js";
import { Turn } from "./tabs.js";
import { number, percent, plural } from "./words.js";

class Work {
  #me; #keys = new Keys(); #stage = new Stage(this.#keys); #outbox; #supply; #turn = new Turn();
  #live = new Live("v1/events", ["asked", "expired"]);
  #done = [];  // Own answers that can be taken back, oldest first.
  #lapses = 0; #today = 0; #total = 0; #seen = -Infinity; #warned = false;

  constructor(me) {
    this.#me = me;
    this.#outbox = new Outbox(me.id);
    this.#supply = new Supply(me.id, this.#outbox);
    new Recent(this.#outbox);
    new History((record, verdict) => this.#changeMind(record, verdict));
    keysDialog(this.#keys);
  }

  start() {
    write("me", this.#me.name ?? this.#me.id);
    show("tools", true);
    show("work", true);
    this.#keys.listen((action) => this.act(action));
    for (const action of ["correct", "incorrect", "skip", "undo"]) {
      byId(action).addEventListener("click", () => this.act(action));
    }
    byId("idle-undo").addEventListener("click", () => this.act("undo"));
    byId("comment-open").addEventListener("click", () => this.#comment(byId("comment-place").hidden));
    byId("comment").addEventListener("keydown", (event) => { if (event.key === "Escape") byId("work").focus(); });
    byId("sign-out").addEventListener("click", () => this.#leave());
    for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, () => { this.#lapses = 0; }, { passive: true });
    this.#follow();
    this.#remember();
    this.#turn.take();
    if (!lasting) notice("This browser keeps nothing: answers that wait for the network are lost when the page closes.", { kind: "problem", seconds: 20 });
  }

  act(action) {
    if (!this.#turn.mine) return;
    if (action === "undo") { this.#undo(); return; }
    const question = this.#supply.current;
    if (!question || byId("stage").hidden) return;
    const time = this.#stage.lookedAt({ picture: action !== "skip" });
    if (time === null) return;
    const { picture: _, ...plain } = question;
    const entry = this.#outbox.answer(plain, action, {
      comment: byId("comment").value.trim(), shownAt: microseconds(now() - time), leadTime: time,
    });
    this.#done.push(entry);
    this.#comment(false);
    this.#supply.next();
  }

  #undo() {
    const entry = this.#done.pop();
    if (!entry) { notice("There is nothing to undo."); return; }
    this.#outbox.undo(entry);
    this.#supply.again(entry.question);
  }

  #changeMind(record, verdict) {
    const entry = { key: record.id, feedback: record.id, question: questionOf(record), verdict: record.verdict };
    this.#done = this.#done.filter((other) => other.feedback !== record.id);
    // A new answer takes the place of the standing one in one step, so neither is lost between the two.
    if (verdict) this.#done.push(this.#outbox.answer(entry.question, verdict, { replaces: record.id }));
    else this.#outbox.undo(entry);
  }

  #follow() {
    const on = (source, kind, heard) => source.addEventListener(kind, (event) => heard(event.detail ?? {}));
    on(this.#turn, "taken", () => this.#resume());
    on(this.#turn, "given", () => this.#pause("You are answering in another tab", "This one waits, so that no question is held twice.", "Answer here"));
    on(this.#supply, "question", ({ question }) => this.#question(question));
    on(this.#supply, "empty", () => this.#idle());
    on(this.#supply, "left", ({ left }) => write("left", number(left)));
    on(this.#supply, "lapsed", ({ question }) => this.#lapsed(question));
    on(this.#supply, "trouble", ({ problem }) => this.#trouble(problem));
    on(this.#outbox, "changed", ({ entry }) => this.#learnId(entry));
    on(this.#outbox, "drained", () => { if (!this.#supply.current) this.#idle(); });
    on(this.#outbox, "saved", ({ entry }) => this.#count(entry, 1));
    on(this.#outbox, "undone", ({ entry, applied, note }) => this.#undone(entry, applied, note));
    on(this.#outbox, "refused", ({ entry }) => notice(`Your answer about “${entry.question.label}” was refused: ${entry.why}`, { kind: "problem", seconds: 12 }));
    on(this.#outbox, "expired", ({ entry }) => notice(`This question expired: “${entry.question.label}”. Your answer came too late and was not counted.`, { kind: "problem", seconds: 10 }));
    on(this.#outbox, "unkept", () => notice("This browser's storage is full. Do not close the page before everything is saved.", { kind: "problem", seconds: 20 }));
    on(this.#outbox, "signed-out", () => this.#signedOut());
    on(this.#live, "status", (status) => this.#status(status));
    on(this.#live, "asked", () => this.#supply.wake());
    on(this.#live, "state", () => { if (this.#live.state === "live") this.#outbox.flush(); });
  }

  #resume() {
    this.#outbox.active = true;
    this.#live.start();
    this.#supply.start();
    this.#outbox.flush();
  }

  #pause(title, text, button) {
    this.#outbox.active = false;
    this.#supply.stop();
    this.#live.stop();
    this.#message(title, text, button, () => this.#turn.take());
  }

  #question(question) {
    this.#stage.show(question);
    if (question) show("idle", false);
    else this.#idle();
  }

  #idle() {
    if (this.#supply.current || !this.#turn.mine || !this.#supply.active) return;
    if (this.#outbox.pending().some((entry) => entry.state === "waiting")) {
      this.#message("Waiting for the network", "Your answers are kept here and are sent when it comes back. The next question comes then.");
    } else {
      this.#message("No questions right now", "The next one comes by itself.");
    }
  }

  #trouble(problem) {
    if (problem.signedOut) { this.#signedOut(); return; }
    if (this.#supply.current) return;
    if (problem.network) this.#message("Waiting for the network", "Your answers are kept. The next question comes when the server can be reached.");
    else this.#message("No question could be fetched", problem.message);
  }

  #lapsed(question) {
    this.#lapses += 1;
    if (this.#lapses < 2 && !document.hidden) {
      notice(`This question expired: “${question.label}”. It was not answered in time and went back.`, { kind: "problem" });
      return;
    }
    // Nobody is there: holding one question after another would keep them from others.
    this.#pause("This question expired", "It was not answered in time and went back. Go on when you are ready.", "Next question");
  }

  #signedOut() {
    this.#outbox.active = false;
    this.#supply.stop();
    this.#live.stop();
    this.#message("You are signed out", `Sign in again to go on. ${this.#outbox.pending().length ? "Your unsent answers are kept." : ""}`, "Sign in", () => location.reload());
  }

  #message(title, text, button = null, act = null) {
    this.#stage.show(null);
    const changed = byId("idle-title").textContent !== title || byId("idle").hidden;
    write("idle-title", title);
    write("idle-text", text);
    const place = byId("idle-button");
    place.hidden = button === null;
    place.textContent = button ?? "";
    place.onclick = act;
    show("idle-undo", button === null && this.#done.length > 0);
    show("idle", true);
    if (changed) announce(`${title}. ${text}`);
    if (button && changed) place.focus();
  }

  #learnId(entry) {
    const kept = this.#done.find((other) => other.key === entry.key);
    if (!kept) return;
    kept.feedback = entry.feedback;
    if (entry.state === "refused" || entry.state === "expired") {
      this.#done = this.#done.filter((other) => other !== kept);
    }
    if (entry.state === "waiting") this.#idle();
  }

  #undone(entry, applied, note) {
    if (entry.kind === "undo") this.#count(entry, -1);
    notice(applied ? (note || "Taken back. The model had already learned from it.") : `Taken back: “${entry.question.label}”.`);
  }

  #count(entry, change) {
    if (entry.verdict === "skip" || entry.replaces) return;
    this.#today = Math.max(0, this.#today + change);
    this.#total = Math.max(0, this.#total + change);
    this.#seen = performance.now();
    this.#progress();
  }

  #status({ me, questions, annotators }) {
    write("left", number(questions.open));
    // A status made before the last answer would count backwards for a moment.
    if (performance.now() - this.#seen > 2000) {
      this.#today = me.answered_today;
      this.#total = me.answered;
      this.#progress();
    }
    const agreement = annotators?.find((other) => other.id === me.id)?.agreement ?? null;
    write("agreement", agreement === null ? "" : ` · ${percent(agreement, 0)} agreement`);
  }

  #progress() {
    write("today", number(this.#today));
    write("total", number(this.#total));
  }

  /** Undo reaches back over a reload. */
  async #remember() {
    try {
      const { feedback } = await mine(20);
      const earlier = feedback.filter((record) => record.standing).reverse()
        .map((record) => ({ key: record.idempotency_key, feedback: record.id, question: questionOf(record), verdict: record.verdict }));
      const known = new Set(this.#done.map((entry) => entry.key));
      const unsent = this.#outbox.pending().filter((entry) => entry.kind === "answer" && !known.has(entry.key));
      this.#done = [...earlier.filter((entry) => !known.has(entry.key)), ...unsent, ...this.#done];
    } catch {
      // Without it, undo reaches back to the beginning of this visit.
    }
  }

  #comment(open) {
    show("comment-place", open);
    byId("comment-open").setAttribute("aria-expanded", String(open));
    if (open) { byId("comment").focus(); return; }
    const typed = document.activeElement === byId("comment");
    byId("comment").value = "";
    if (typed) byId("work").focus();
  }

  #leave() {
    const unsent = this.#outbox.pending().length;
    if (unsent && !this.#warned) {
      this.#warned = true;
      notice(`${plural(unsent, "answer")} not saved yet. They are kept for your next visit with this browser; press Sign out again to leave.`, { kind: "problem", seconds: 12 });
      return;
    }
    this.#supply.stop();
    this.#supply.forget();
    signOut();
  }
}

new Work(await whoAmI(["annotator", "operator"])).start();
