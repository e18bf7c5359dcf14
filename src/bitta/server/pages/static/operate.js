// The operator's page: shows the state of the model, pauses learning, rolls back.

import { EventStream, call } from "./api.js";
import { EventLog, QuestionList, StatusView, drawVersions, markServed } from "./dashboard.js";
import { byId, setText, setVisible, showNotice } from "./dom.js";
import { signIn, signOut } from "./sign_in.js";

const EVENT_KINDS = ["started", "recovered", "asked", "answered", "undone", "learned", "snapshot", "rollback",
  "paused", "resumed", "image_deleted", "expired"];
const QUESTION_EVENTS = new Set(["asked", "answered", "undone", "expired", "rollback", "image_deleted"]);
const VERSION_EVENTS = new Set(["snapshot", "rollback", "started", "recovered"]);

class OperatorPage {
  #statusView = new StatusView(); #questionList = new QuestionList(); #eventLog = new EventLog();
  #eventStream = new EventStream("v1/events", EVENT_KINDS);
  #status = null; #scheduled = new Map();

  start(me) {
    setText("me", me.name ?? me.id);
    setVisible("tools", true);
    setVisible("dashboard", true);
    byId("sign-out").addEventListener("click", () => signOut());
    byId("pause").addEventListener("click", () => this.#pause());
    byId("resume").addEventListener("click", () => this.#post("v1/adaptation/resume", {}, "Learning is on again."));
    byId("snapshot").addEventListener("click", () => this.#post("v1/snapshots", {}, "This version is kept."));
    this.#eventStream.addEventListener("status", ({ detail }) => this.#drawStatus(detail));
    this.#eventStream.addEventListener("any", ({ detail }) => this.#onEvent(detail));
    this.#eventStream.addEventListener("state", ({ detail }) => this.#onConnectionChange(detail));
    this.#eventStream.start();
    this.#refresh();
  }

  #drawStatus(status) {
    this.#status = status;
    this.#statusView.draw(status);
    markServed(status.model.version);
  }

  #onConnectionChange(state) {
    setVisible("connection", true);
    byId("connection").dataset.state = state === "live" ? "saved" : "waiting";
    setText("connection", state === "live" ? "Live" : "Reconnecting");
    // The session may have ended. An event stream does not give the reason for an error, but a call does.
    if (state === "live") this.#refresh();
    else this.#get("v1/status", (status) => this.#drawStatus(status));
  }

  #onEvent({ kind, body }) {
    this.#eventLog.add(kind, body);
    if (QUESTION_EVENTS.has(kind)) this.#schedule("questions", () => this.#loadQuestions());
    if (VERSION_EVENTS.has(kind)) this.#schedule("versions", () => this.#loadVersions());
    if (kind === "rollback" && body.by === "guard") {
      showNotice(`The server rolled back automatically: ${body.reason}`, { kind: "problem", seconds: 20 });
    }
  }

  /** Call `load` once for all events within 0.7 seconds. */
  #schedule(name, load) {
    if (this.#scheduled.has(name)) return;
    this.#scheduled.set(name, setTimeout(() => { this.#scheduled.delete(name); load(); }, 700));
  }

  async #refresh() {
    await this.#get("v1/status", (status) => this.#drawStatus(status));
    await Promise.all([this.#loadQuestions(), this.#loadVersions()]);
  }

  #loadQuestions() {
    return this.#get("v1/questions?status=open&limit=50", ({ questions }) => this.#questionList.draw(
      questions, this.#status?.questions.open ?? questions.length));
  }

  #loadVersions() {
    return this.#get("v1/snapshots", ({ snapshots }) => drawVersions(
      snapshots, this.#status?.model.version, (snapshot) => this.#rollBack(snapshot)));
  }

  async #get(path, draw) {
    try {
      draw(await call("GET", path));
    } catch (error) {
      if (error.isSignedOut) location.reload();
      else if (!error.isNetworkError) showNotice(error.message, { kind: "problem" });
    }
  }

  async #pause() {
    const reason = await confirmWithReason({
      title: "Pause learning?", button: "Pause learning",
      text: "The current version continues to serve. Answers are kept, and the model learns from them later.",
    });
    if (reason !== null) await this.#post("v1/adaptation/pause", reason ? { reason } : {}, "Learning is paused.");
  }

  async #rollBack(snapshot) {
    const reason = await confirmWithReason({
      title: `Roll back to version ${snapshot.model_version}?`, button: "Roll back", isDangerous: true,
      text: `The version served now, ${this.#status?.model.version ?? "unknown"}, is replaced at once. Answers are kept, and the log records the rollback.`,
    });
    if (reason === null) return;
    const body = reason ? { snapshot_id: snapshot.id, reason } : { snapshot_id: snapshot.id };
    await this.#post("v1/rollback", body, `Rolled back to version ${snapshot.model_version}.`);
  }

  async #post(path, body, doneMessage) {
    try {
      await call("POST", path, { body, seconds: 60 });
      showNotice(doneMessage);
      await this.#refresh();
    } catch (error) {
      showNotice(`Not done: ${error.message}`, { kind: "problem", seconds: 12 });
    }
  }
}

/** Ask for confirmation. Return the reason, which may be empty, or null if the person cancels. */
function confirmWithReason({ title, text, button, isDangerous = false }) {
  const dialog = byId("confirm");
  setText("confirm-title", title);
  setText("confirm-text", text);
  setText("confirm-go", button);
  byId("confirm-go").classList.toggle("danger", isDangerous);
  byId("confirm-reason").value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  byId("confirm-reason").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "go" ? byId("confirm-reason").value.trim() : null);
    }, { once: true });
  });
}

new OperatorPage().start(await signIn(["operator"]));
