// The operator's page: how the model is doing, and the means to stop it or go back.

import { call } from "./api.js";
import { Board } from "./board.js";
import { confirm } from "./confirm.js";
import { byId, notice, show, write } from "./dom.js";
import { Log, Questions, drawVersions, markServing } from "./lists.js";
import { Live } from "./live.js";
import { signOut, whoAmI } from "./signin.js";

const KINDS = ["started", "recovered", "asked", "answered", "undone", "learned", "snapshot", "rollback",
  "paused", "resumed", "image_deleted", "expired"];
const TO_QUESTIONS = new Set(["asked", "answered", "undone", "expired", "rollback", "image_deleted"]);
const TO_VERSIONS = new Set(["snapshot", "rollback", "started", "recovered"]);

class Operation {
  #board = new Board(); #log = new Log(); #live = new Live("v1/events", KINDS);
  #list = new Questions(); #status = null; #due = new Map();

  start(me) {
    write("me", me.name ?? me.id);
    show("tools", true);
    show("board", true);
    byId("sign-out").addEventListener("click", () => signOut());
    byId("pause").addEventListener("click", () => this.#pause());
    byId("resume").addEventListener("click", () => this.#do("v1/adaptation/resume", {}, "Learning goes on."));
    byId("snapshot").addEventListener("click", () => this.#do("v1/snapshots", {}, "This version is kept."));
    this.#live.addEventListener("status", ({ detail }) => this.#draw(detail));
    this.#live.addEventListener("any", ({ detail }) => this.#happened(detail));
    this.#live.addEventListener("state", ({ detail }) => this.#connection(detail));
    this.#live.start();
    this.#refresh();
  }

  #draw(status) {
    this.#status = status;
    this.#board.draw(status);
    markServing(status.model.version);
  }

  #connection(state) {
    show("connection", true);
    byId("connection").dataset.state = state === "live" ? "saved" : "waiting";
    write("connection", state === "live" ? "Live" : "Reconnecting");
    // A stream that does not open may mean that the session ended, which only a call can tell.
    if (state === "live") this.#refresh();
    else this.#get("v1/status", (status) => this.#draw(status));
  }

  #happened({ kind, body }) {
    this.#log.add(kind, body);
    if (TO_QUESTIONS.has(kind)) this.#soon("questions", () => this.#questions());
    if (TO_VERSIONS.has(kind)) this.#soon("versions", () => this.#versions());
    if (kind === "rollback" && body.by === "guard") {
      notice(`The server rolled back by itself: ${body.reason}`, { kind: "problem", seconds: 20 });
    }
  }

  /** Many events in a row make one call. */
  #soon(name, act) {
    if (this.#due.has(name)) return;
    this.#due.set(name, setTimeout(() => { this.#due.delete(name); act(); }, 700));
  }

  async #refresh() {
    await this.#get("v1/status", (status) => this.#draw(status));
    await Promise.all([this.#questions(), this.#versions()]);
  }

  #questions() {
    return this.#get("v1/questions?status=open&limit=50", ({ questions }) => this.#list.draw(
      questions, this.#status?.questions.open ?? questions.length));
  }

  #versions() {
    return this.#get("v1/snapshots", ({ snapshots }) => drawVersions(
      snapshots, this.#status?.model.version, (snapshot) => this.#rollBack(snapshot)));
  }

  async #get(path, draw) {
    try {
      draw(await call("GET", path));
    } catch (problem) {
      if (problem.signedOut) location.reload();
      else if (!problem.network) notice(problem.message, { kind: "problem" });
    }
  }

  async #pause() {
    const reason = await confirm({
      title: "Pause learning?", go: "Pause learning",
      text: "The model goes on serving as it is now. Answers are kept and learned from later.",
    });
    if (reason !== null) await this.#do("v1/adaptation/pause", reason ? { reason } : {}, "Learning is paused.");
  }

  async #rollBack(snapshot) {
    const reason = await confirm({
      title: `Roll back to version ${snapshot.model_version}?`, go: "Roll back", dangerous: true,
      text: `The model served now, version ${this.#status?.model.version ?? "unknown"}, is replaced at once. Answers are kept, and the rollback is written to the log.`,
    });
    if (reason === null) return;
    const body = reason ? { snapshot_id: snapshot.id, reason } : { snapshot_id: snapshot.id };
    await this.#do("v1/rollback", body, `Rolled back to version ${snapshot.model_version}.`);
  }

  async #do(path, body, done) {
    try {
      await call("POST", path, { body, seconds: 60 });
      notice(done);
      await this.#refresh();
    } catch (problem) {
      notice(`Not done: ${problem.message}`, { kind: "problem", seconds: 12 });
    }
  }
}

new Operation().start(await whoAmI(["operator"]));
