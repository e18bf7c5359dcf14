// The parts of the operator's page: figures and plots of the status, questions, versions, event log.

import { imagePath } from "./api.js";
import { byId, element, replaceItems, setText, setVisible } from "./dom.js";
import { QUESTION_REASONS, SNAPSHOT_REASONS, dateAndTime, eventText, number, percent, plural, timeAgo } from "./format.js";
import { Plot } from "./plot.js";

const MAX_QUESTIONS = 12;
const MAX_LOG_LINES = 12;
const WARNINGS = {
  suspect: "The model may be collapsing",
  collapsed: "The model collapsed",
  "rolled back": "The model collapsed and was rolled back",
};

const wholePercent = (value) => percent(value, 0);
const milliseconds = (value) => (value === null ? "–" : `${number(value, 1)} ms`);

/** Figures, plots, warning and annotators. All come from the body of GET /v1/status. */
export class StatusView {
  #plots = {
    accuracy: new Plot(byId("accuracy-plot"), { name: "Accuracy", format: wholePercent, range: [0, 1] }),
    confidence: new Plot(byId("confidence-plot"), { name: "Confidence", format: wholePercent, range: [0, 1] }),
    agreement: new Plot(byId("agreement-plot"), { name: "Agreement", format: wholePercent, range: [0, 1] }),
    rate: new Plot(byId("rate-plot"), { name: "Answers per minute", format: (value) => number(value, 0), startsAtZero: true }),
    latency: new Plot(byId("latency-plot"), { name: "Latency", format: (value) => `${number(value, 0)} ms`, startsAtZero: true }),
  };

  draw(status) {
    this.#drawModel(status);
    this.#drawFigures(status);
    this.#drawDistance(status.distance);
    this.#drawPlots(status);
    drawWarning(status.collapse);
    drawAnnotators(status.annotators ?? []);
  }

  #drawModel({ model, learning }) {
    setText("model", model.name);
    setText("version", `Version ${model.version}`);
    const isPaused = learning.state === "paused";
    const lastStep = learning.last_step_at ? `, the last ${timeAgo(learning.last_step_at)}` : "";
    setText("learning", isPaused ? `learning paused${learning.reason ? `: ${learning.reason}` : ""}`
      : `learning: ${plural(learning.steps, "step")}${lastStep}, ${percent(learning.duty, 0)} of the time`);
    setVisible("pause", !isPaused);
    setVisible("resume", isPaused);
  }

  #drawFigures({ audits, confidence, agreement, questions, served, history }) {
    setText("accuracy", percent(audits.accuracy));
    setText("accuracy-note", audits.n ? `95 % interval ${percent(audits.low)} to ${percent(audits.high)}, ${number(audits.correct)} of ${plural(audits.n, "audit")} correct` : "No audit has been answered yet");
    setText("confidence", percent(confidence.recent));
    setText("confidence-note", confidenceChange(confidence));
    setText("agreement", percent(agreement));
    setText("rate", `${number(history.answers_per_minute.at(-1) ?? 0, 1)} per minute`);
    setText("rate-note", `${plural(questions.asked, "question")} asked, ${number(questions.expired)} expired; ${plural(questions.answered, "answer")}, ${number(questions.skipped)} skipped`);
    setText("latency", milliseconds(served.latency_ms.p50));
    setText("latency-note", `99 % of requests within ${milliseconds(served.latency_ms.p99)}; ${number(served.n)} served, ${number(served.per_second, 1)} per second`);
  }

  #drawDistance({ now, limit }) {
    const limitText = limit ? ` of at most ${number(limit, 3)}` : ", without a limit";
    setText("distance-note", now === null ? "" : `Distance from the source model: ${number(now, 3)}${limitText}`);
    setVisible("distance-bar", Boolean(limit));
    if (limit) byId("distance-bar").value = Math.min(1, (now ?? 0) / limit);
  }

  #drawPlots({ history, confidence }) {
    const { at } = history;
    this.#plots.accuracy.draw({ at, line: history.accuracy, low: history.low, high: history.high });
    this.#plots.confidence.draw({ at, line: history.confidence, reference: confidence.reference });
    this.#plots.agreement.draw({ at, line: history.agreement });
    this.#plots.rate.draw({ at, line: history.answers_per_minute });
    this.#plots.latency.draw({ at, line: history.latency_ms });
  }
}

function confidenceChange({ recent, reference }) {
  if (recent === null || reference === null) return "Nothing measured yet";
  const points = 100 * (recent - reference);
  if (Math.abs(points) < 0.05) return "the same as at the start";
  return `${number(Math.abs(points), 1)} points ${points > 0 ? "above" : "below"} the start (${percent(reference)})`;
}

function drawWarning({ state, reasons }) {
  setVisible("warning", state !== "ok");
  if (state === "ok") return;
  setText("warning-title", WARNINGS[state] ?? state);
  byId("warning-list").replaceChildren(...reasons.map((reason) => element("li", {}, reason)));
}

function drawAnnotators(annotators) {
  byId("people").replaceChildren(...annotators.map(({ name, id, answered, agreement }) => element("tr", {},
    element("th", { scope: "row" }, name ?? id),
    element("td", { class: "number" }, number(answered)),
    element("td", { class: "number" }, percent(agreement, 0)))));
}

/** List of the open questions. */
export class QuestionList {
  #pictures = new Map();

  draw(questions, nOpen) {
    setText("questions-note", nOpen ? `${plural(nOpen, "question")} open` : "No question is open.");
    const shown = questions.slice(0, MAX_QUESTIONS);
    // Reuse the elements, so that each picture is fetched once.
    this.#pictures = new Map(shown.map(({ prediction_id: id }) => [id, this.#pictures.get(id) ?? thumbnail(id)]));
    byId("questions").replaceChildren(...shown.map((question) => this.#item(question)));
  }

  #item(question) {
    return element("li", {}, this.#pictures.get(question.prediction_id),
      element("div", { class: "item-text" },
        element("strong", {}, question.label), " ",
        element("span", { class: `chip ${question.reason}` }, QUESTION_REASONS[question.reason] ?? question.reason),
        element("p", { class: "muted", title: dateAndTime(question.asked_at) },
          `confidence ${percent(question.confidence, 0)}, uncertainty ${number(question.uncertainty, 2)}, asked ${timeAgo(question.asked_at)}`)));
  }
}

const thumbnail = (id) =>
  element("img", { src: imagePath(id), alt: "", width: 48, height: 48, loading: "lazy", class: "pixels" });

/** Draw the list of versions. The button of a version calls `rollBack(snapshot)`. */
export function drawVersions(snapshots, servedVersion, rollBack) {
  const newestFirst = snapshots.filter((snapshot) => !snapshot.dropped_at)
    .sort((one, other) => other.created_at - one.created_at);
  replaceItems(byId("versions"), newestFirst.map((snapshot) => element("li", { "data-snapshot": snapshot.id, "data-version": snapshot.model_version },
    element("div", { class: "item-text" },
      element("strong", {}, snapshot.model_version), " ",
      element("span", { class: "chip" }, "Serving"),
      element("p", { class: "muted", title: dateAndTime(snapshot.created_at) },
        `${SNAPSHOT_REASONS[snapshot.reason] ?? snapshot.reason}, ${timeAgo(snapshot.created_at)}`)),
    element("button", {
      type: "button", "aria-label": `Roll back to version ${snapshot.model_version}`, onclick: () => rollBack(snapshot),
    }, "Roll back"))));
  markServed(servedVersion);
}

/** Mark the version that is served. After a learning step it is in no snapshot yet. */
export function markServed(servedVersion) {
  for (const item of byId("versions").children) {
    item.querySelector(".chip").hidden = item.dataset.version !== servedVersion;
  }
}

/** List of the latest events. */
export class EventLog {
  #lines = [];

  add(kind, body) {
    const line = { at: Date.now(), text: eventText(kind, body), count: 1 };
    // Count repeated events in one line.
    if (this.#lines[0]?.text === line.text) line.count += this.#lines.shift().count;
    this.#lines = [line, ...this.#lines].slice(0, MAX_LOG_LINES);
    byId("log").replaceChildren(...this.#lines.map(({ at, text, count }) => element("li", {},
      element("time", { class: "muted" }, new Date(at).toLocaleTimeString()), " ", text,
      count > 1 ? element("span", { class: "muted" }, ` ${count} times`) : null)));
  }
}
