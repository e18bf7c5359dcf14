// The annotator's page: shows one question at a time and collects the answers.

import { AnswerHistory, RecentAnswers, fetchOwnAnswers, questionOf } from "./answers.js";
import { EventStream, serverTime, toMicroseconds } from "./api.js";
import { announce, byId, setText, setVisible, showNotice } from "./dom.js";
import { number, percent, plural } from "./format.js";
import { Outbox } from "./outbox.js";
import { QuestionQueue } from "./question_queue.js";
import { QuestionView } from "./question_view.js";
import { Shortcuts, setUpShortcutsDialog } from "./shortcuts.js";
import { signIn, signOut } from "./sign_in.js";
import { ActiveTab, isPersistent } from "./storage.js";

class AnnotatorPage {
  #me; #outbox; #queue; #shortcuts = new Shortcuts(); #view = new QuestionView(this.#shortcuts);
  #tab = new ActiveTab(); #eventStream = new EventStream("v1/events", ["asked", "expired"]);
  #undoable = [];  // own answers, oldest first
  #nEndedLeases = 0;  // since the person last did something
  #answeredToday = 0; #answered = 0; #countedAt = -Infinity; #hasWarnedOfUnsaved = false;

  constructor(me) {
    this.#me = me;
    this.#outbox = new Outbox(me.id);
    this.#queue = new QuestionQueue(me.id, this.#outbox);
    new RecentAnswers(this.#outbox);
    new AnswerHistory((record, verdict) => this.#changeAnswer(record, verdict));
    setUpShortcutsDialog(this.#shortcuts);
  }

  start() {
    setText("me", this.#me.name ?? this.#me.id);
    setVisible("tools", true);
    setVisible("answering", true);
    this.#shortcuts.listen((action) => this.#act(action));
    for (const action of ["correct", "incorrect", "skip", "undo"]) {
      byId(action).addEventListener("click", () => this.#act(action));
    }
    byId("idle-undo").addEventListener("click", () => this.#act("undo"));
    byId("comment-open").addEventListener("click", () => this.#showComment(byId("comment-box").hidden));
    byId("comment").addEventListener("keydown", (event) => { if (event.key === "Escape") byId("answering").focus(); });
    byId("sign-out").addEventListener("click", () => this.#signOut());
    for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, () => { this.#nEndedLeases = 0; }, { passive: true });
    this.#listenToTabAndQueue();
    this.#listenToOutbox();
    this.#listenToServer();
    this.#loadUndoable();
    this.#tab.activate();
    if (!isPersistent) showNotice("This browser does not let this page store data. Answers that wait for the network are lost when you close the page.", { kind: "problem", seconds: 20 });
  }

  #listenToTabAndQueue() {
    this.#tab.addEventListener("activated", () => this.#resume());
    this.#tab.addEventListener("deactivated", () => this.#pause("You are answering in another tab", "Only one tab can be used at a time.", "Answer here"));
    listen(this.#queue, {
      question: ({ question }) => this.#showQuestion(question),
      empty: () => this.#showIdle(),
      left: ({ left }) => setText("left", number(left)),
      "lease-ended": ({ question }) => this.#onLeaseEnd(question),
      error: ({ error }) => this.#onQueueError(error),
    });
  }

  #listenToOutbox() {
    listen(this.#outbox, {
      changed: ({ entry }) => this.#onEntryChange(entry),
      empty: () => { if (!this.#queue.current) this.#showIdle(); },
      saved: ({ entry }) => this.#count(entry, 1),
      undone: ({ entry, applied, note }) => this.#onUndone(entry, applied, note),
      refused: ({ entry }) => showNotice(`Your answer about “${entry.question.label}” was refused: ${entry.reason}`, { kind: "problem", seconds: 12 }),
      expired: ({ entry }) => showNotice(`This question expired: “${entry.question.label}”. Your answer came too late and was not counted.`, { kind: "problem", seconds: 10 }),
      "storage-full": () => showNotice("This browser's storage is full. Do not close the page before everything is saved.", { kind: "problem", seconds: 20 }),
      "signed-out": () => this.#onSignedOut(),
    });
  }

  #listenToServer() {
    listen(this.#eventStream, {
      status: (status) => this.#onStatus(status),
      asked: () => this.#queue.fetch(),
      state: () => { if (this.#eventStream.state === "live") this.#outbox.flush(); },
    });
  }

  #act(action) {
    if (!this.#tab.isActive) return;
    if (action === "undo") { this.#undo(); return; }
    const question = this.#queue.current;
    if (!question || byId("question-view").hidden) return;
    const time = this.#view.viewTime({ needsPicture: action !== "skip" });
    if (time === null) return;
    const { picture: _, ...fields } = question;
    const entry = this.#outbox.answer(fields, action, {
      comment: byId("comment").value.trim(), shownAt: toMicroseconds(serverTime() - time), leadTime: time,
    });
    this.#undoable.push(entry);
    this.#showComment(false);
    this.#queue.next();
  }

  #undo() {
    const entry = this.#undoable.pop();
    if (!entry) { showNotice("There is nothing to undo."); return; }
    this.#outbox.undo(entry);
    this.#queue.putBack(entry.question);
  }

  #changeAnswer(record, verdict) {
    const entry = { key: record.id, feedbackId: record.id, question: questionOf(record), verdict: record.verdict };
    this.#undoable = this.#undoable.filter((other) => other.feedbackId !== record.id);
    // A new answer replaces the old one in one step. An undo before it could lose both.
    if (verdict) this.#undoable.push(this.#outbox.answer(entry.question, verdict, { replaces: record.id }));
    else this.#outbox.undo(entry);
  }

  #resume() {
    this.#outbox.isActive = true;
    this.#eventStream.start();
    this.#queue.start();
    this.#outbox.flush();
  }

  #stop() {
    this.#outbox.isActive = false;
    this.#queue.stop();
    this.#eventStream.stop();
  }

  #pause(title, text, button) {
    this.#stop();
    this.#showMessage(title, text, button, () => this.#tab.activate());
  }

  #showQuestion(question) {
    this.#view.show(question);
    if (question) setVisible("idle", false);
    else this.#showIdle();
  }

  #showIdle() {
    if (this.#queue.current || !this.#tab.isActive || !this.#queue.isActive) return;
    if (this.#outbox.pending().some((entry) => entry.state === "waiting")) {
      this.#showMessage("Waiting for the network", "This browser keeps your answers and sends them when the network is back. Then the next question appears.");
    } else {
      this.#showMessage("No questions right now", "The next question appears automatically.");
    }
  }

  #onQueueError(error) {
    if (error.isSignedOut) { this.#onSignedOut(); return; }
    if (this.#queue.current) return;
    if (error.isNetworkError) this.#showMessage("Waiting for the network", "Your answers are kept. The next question appears when the server can be reached.");
    else this.#showMessage("No question could be loaded", error.message);
  }

  #onLeaseEnd(question) {
    this.#nEndedLeases += 1;
    if (this.#nEndedLeases < 2 && !document.hidden) {
      showNotice(`Your time for this question is over: “${question.label}”. Another annotator may answer it.`, { kind: "problem" });
      return;
    }
    // The annotator is away. More leases would keep questions from other annotators.
    this.#pause("Your time for this question is over", "Continue when you are ready.", "Next question");
  }

  #onSignedOut() {
    this.#stop();
    this.#showMessage("You are signed out", `Sign in again to continue. ${this.#outbox.pending().length ? "Your unsent answers are kept." : ""}`, "Sign in", () => location.reload());
  }

  /** Show a message in place of the question. */
  #showMessage(title, text, buttonText = null, onClick = null) {
    this.#view.show(null);
    const isNew = byId("idle-title").textContent !== title || byId("idle").hidden;
    setText("idle-title", title);
    setText("idle-text", text);
    const button = byId("idle-button");
    button.hidden = buttonText === null;
    button.textContent = buttonText ?? "";
    button.onclick = onClick;
    setVisible("idle-undo", buttonText === null && this.#undoable.length > 0);
    setVisible("idle", true);
    if (isNew) announce(`${title}. ${text}`);
    if (buttonText && isNew) button.focus();
  }

  #onEntryChange(entry) {
    const undoable = this.#undoable.find((other) => other.key === entry.key);
    if (!undoable) return;
    undoable.feedbackId = entry.feedbackId;
    if (entry.state === "refused" || entry.state === "expired") {
      this.#undoable = this.#undoable.filter((other) => other !== undoable);
    }
    if (entry.state === "waiting") this.#showIdle();
  }

  #onUndone(entry, applied, note) {
    if (entry.kind === "undo") this.#count(entry, -1);
    showNotice(applied ? `Undone. ${note || "The model had already learned from it."}` : `Undone: “${entry.question.label}”.`);
  }

  #count(entry, change) {
    if (entry.verdict === "skip" || entry.replaces) return;
    this.#answeredToday = Math.max(0, this.#answeredToday + change);
    this.#answered = Math.max(0, this.#answered + change);
    this.#countedAt = performance.now();
    this.#showProgress();
  }

  #onStatus({ me, questions, annotators }) {
    setText("left", number(questions.open));
    // A status from before the last answer would lower the counts for a moment.
    if (performance.now() - this.#countedAt > 2000) {
      this.#answeredToday = me.answered_today;
      this.#answered = me.answered;
      this.#showProgress();
    }
    const agreement = annotators?.find((other) => other.id === me.id)?.agreement ?? null;
    setText("agreement", agreement === null ? "" : ` · ${percent(agreement, 0)} agreement with others`);
  }

  #showProgress() {
    setText("today", number(this.#answeredToday));
    setText("total", number(this.#answered));
  }

  /** Load earlier answers, so that undo also works after a reload. */
  async #loadUndoable() {
    try {
      const { feedback } = await fetchOwnAnswers(20);
      const earlier = feedback.filter((record) => record.standing).reverse()
        .map((record) => ({ key: record.idempotency_key, feedbackId: record.id, question: questionOf(record), verdict: record.verdict }));
      const known = new Set(this.#undoable.map((entry) => entry.key));
      const unsent = this.#outbox.pending().filter((entry) => entry.kind === "answer" && !known.has(entry.key));
      this.#undoable = [...earlier.filter((entry) => !known.has(entry.key)), ...unsent, ...this.#undoable];
    } catch {
      // Undo then works for the answers since the page was loaded.
    }
  }

  #showComment(isOpen) {
    setVisible("comment-box", isOpen);
    byId("comment-open").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) { byId("comment").focus(); return; }
    const hadFocus = document.activeElement === byId("comment");
    byId("comment").value = "";
    if (hadFocus) byId("answering").focus();
  }

  #signOut() {
    const nUnsaved = this.#outbox.pending().length;
    if (nUnsaved && !this.#hasWarnedOfUnsaved) {
      this.#hasWarnedOfUnsaved = true;
      showNotice(`${plural(nUnsaved, "answer")} not saved yet. This browser keeps them for your next visit. Press “Sign out” again to leave.`, { kind: "problem", seconds: 12 });
      return;
    }
    this.#queue.stop();
    this.#queue.clear();
    signOut();
  }
}

/** Call `handlers[kind]` with the detail of each event. */
function listen(source, handlers) {
  for (const [kind, handler] of Object.entries(handlers)) {
    source.addEventListener(kind, (event) => handler(event.detail ?? {}));
  }
}

new AnnotatorPage(await signIn(["annotator", "operator"])).start();
