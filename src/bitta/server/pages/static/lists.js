// The lists of the operator's page: questions, versions, what happened.

import { image } from "./api.js";
import { ago, exactly } from "./clock.js";
import { byId, element, refill, write } from "./dom.js";
import { REASONS, SNAPSHOTS, happened, number, percent, plural } from "./words.js";

const SHOWN = 12;
const LINES = 12;

export class Questions {
  #pictures = new Map();

  draw(questions, open) {
    write("questions-note", open ? `${plural(open, "question")} open` : "No question is open.");
    const shown = questions.slice(0, SHOWN);
    // A picture is fetched once, not with every answer that comes in.
    this.#pictures = new Map(shown.map(({ prediction_id: id }) => [id, this.#pictures.get(id) ?? thumbnail(id)]));
    byId("questions").replaceChildren(...shown.map((question) => this.#line(question)));
  }

  #line(question) {
    return element("li", {}, this.#pictures.get(question.prediction_id),
      element("div", { class: "what" },
        element("strong", {}, question.label), " ",
        element("span", { class: `chip ${question.reason}` }, REASONS[question.reason] ?? question.reason),
        element("p", { class: "quiet", title: exactly(question.asked_at) },
          `confidence ${percent(question.confidence, 0)}, uncertainty ${number(question.uncertainty, 2)}, asked ${ago(question.asked_at)}`)));
  }
}

const thumbnail = (id) =>
  element("img", { src: image(id), alt: "", width: 48, height: 48, loading: "lazy", class: "pixels" });

/** `rollBack(snapshot)` is called by the button of a version. */
export function drawVersions(snapshots, current, rollBack) {
  const newest = snapshots.filter((snapshot) => !snapshot.dropped_at)
    .sort((one, other) => other.created_at - one.created_at);
  refill(byId("versions"), newest.map((snapshot) => element("li", { "data-snapshot": snapshot.id, "data-version": snapshot.model_version },
    element("div", { class: "what" },
      element("strong", {}, snapshot.model_version), " ",
      element("span", { class: "chip" }, "Serving"),
      element("p", { class: "quiet", title: exactly(snapshot.created_at) },
        `${SNAPSHOTS[snapshot.reason] ?? snapshot.reason}, ${ago(snapshot.created_at)}`)),
    element("button", {
      type: "button", "aria-label": `Roll back to version ${snapshot.model_version}`, onclick: () => rollBack(snapshot),
    }, "Roll back"))));
  markServing(current);
}

/** The next step serves by a version that is not kept yet. */
export function markServing(current) {
  for (const item of byId("versions").children) {
    item.querySelector(".chip").hidden = item.dataset.version !== current;
  }
}

export class Log {
  #lines = [];

  add(kind, body) {
    const line = { at: Date.now(), text: happened(kind, body), times: 1 };
    // The same again makes a count, not another line.
    if (this.#lines[0]?.text === line.text) line.times += this.#lines.shift().times;
    this.#lines = [line, ...this.#lines].slice(0, LINES);
    byId("log").replaceChildren(...this.#lines.map(({ at, text, times }) => element("li", {},
      element("time", { class: "quiet" }, new Date(at).toLocaleTimeString()), " ", text,
      times > 1 ? element("span", { class: "quiet" }, ` ${times} times`) : null)));
  }
}
