// The figures, plots and warnings of the operator's page, from one status.

import { ago } from "./clock.js";
import { byId, element, show, write } from "./dom.js";
import { Plot } from "./plot.js";
import { number, percent, plural } from "./words.js";

const time = (value) => (value === null ? "–" : `${number(value, 1)} ms`);
const share = (value) => percent(value, 0);
const WARNINGS = {
  suspect: "The model may be collapsing",
  collapsed: "The model collapsed",
  "rolled back": "The model collapsed and was rolled back",
};

export class Board {
  #plots = {
    accuracy: new Plot(byId("accuracy-plot"), { name: "Accuracy", format: share, range: [0, 1] }),
    confidence: new Plot(byId("confidence-plot"), { name: "Confidence", format: share, range: [0, 1] }),
    agreement: new Plot(byId("agreement-plot"), { name: "Agreement", format: share, range: [0, 1] }),
    rate: new Plot(byId("rate-plot"), { name: "Answers a minute", format: (value) => number(value, 0), zero: true }),
    latency: new Plot(byId("latency-plot"), { name: "Latency", format: (value) => `${number(value, 0)} ms`, zero: true }),
  };

  draw(status) {
    this.#head(status);
    this.#figures(status);
    this.#lines(status);
    warn(status.collapse);
    people(status.annotators ?? []);
  }

  #head({ model, learning }) {
    write("model", model.name);
    write("version", `Version ${model.version}`);
    const paused = learning.state === "paused";
    const when = learning.last_step_at ? `, the last ${ago(learning.last_step_at)}` : "";
    write("learning", paused ? `learning paused${learning.reason ? `: ${learning.reason}` : ""}`
      : `learning: ${plural(learning.steps, "step")}${when}, ${percent(learning.duty, 0)} of the time`);
    show("pause", !paused);
    show("resume", paused);
  }

  #figures({ audits, confidence, agreement, questions, served, history, distance }) {
    write("accuracy", percent(audits.accuracy));
    write("accuracy-note", audits.n ? `95 % interval ${percent(audits.low)} to ${percent(audits.high)}, ${number(audits.correct)} of ${plural(audits.n, "audit")} correct` : "No audit has been answered yet");
    write("confidence", percent(confidence.recent));
    write("confidence-note", drift(confidence));
    write("agreement", percent(agreement));
    write("rate", `${number(history.answers_per_minute.at(-1) ?? 0, 1)} a minute`);
    write("rate-note", `${number(questions.answered)} answered, ${number(questions.skipped)} skipped, ${number(questions.expired)} expired of ${number(questions.asked)}`);
    write("latency", time(served.latency_ms.p50));
    write("latency-note", `p99 ${time(served.latency_ms.p99)}; ${number(served.n)} served, ${number(served.per_second, 1)} a second`);
    const most = distance.limit ? ` of at most ${number(distance.limit, 3)}` : ", without a limit";
    write("distance-note", distance.now === null ? "" : `Distance from the source: ${number(distance.now, 3)}${most}`);
    show("distance-bar", Boolean(distance.limit));
    if (distance.limit) byId("distance-bar").value = Math.min(1, (distance.now ?? 0) / distance.limit);
  }

  #lines({ history, confidence }) {
    const { at } = history;
    this.#plots.accuracy.draw({ at, line: history.accuracy, low: history.low, high: history.high });
    this.#plots.confidence.draw({ at, line: history.confidence, reference: confidence.reference });
    this.#plots.agreement.draw({ at, line: history.agreement });
    this.#plots.rate.draw({ at, line: history.answers_per_minute });
    this.#plots.latency.draw({ at, line: history.latency_ms });
  }
}

function drift({ recent, reference }) {
  if (recent === null || reference === null) return "No reference yet";
  const points = 100 * (recent - reference);
  const way = Math.abs(points) < 0.05 ? "as" : `${number(Math.abs(points), 1)} points ${points > 0 ? "above" : "below"}`;
  return way === "as" ? "as at the start" : `${way} the start (${percent(reference)})`;
}

function warn({ state, reasons }) {
  show("warning", state !== "ok");
  if (state === "ok") return;
  write("warning-title", WARNINGS[state] ?? state);
  byId("warning-list").replaceChildren(...reasons.map((reason) => element("li", {}, reason)));
}

function people(annotators) {
  byId("people").replaceChildren(...annotators.map(({ name, id, answered, agreement }) => element("tr", {},
    element("th", { scope: "row" }, name ?? id),
    element("td", { class: "number" }, number(answered)),
    element("td", { class: "number" }, percent(agreement, 0)))));
}
