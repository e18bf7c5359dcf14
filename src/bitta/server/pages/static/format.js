// Codes, numbers and times as text.

import { serverTime, toMilliseconds } from "./api.js";

export const percent = (share, digits = 1) =>
  (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);

export const number = (value, digits = 0) =>
  (value === null || value === undefined ? "–" : value.toLocaleString(undefined, { maximumFractionDigits: digits, minimumFractionDigits: digits }));

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export function timeAgo(microseconds) {
  const seconds = Math.max(0, (serverTime() - toMilliseconds(microseconds)) / 1000);
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(toMilliseconds(microseconds)).toLocaleDateString();
}

export const dateAndTime = (microseconds) => new Date(toMilliseconds(microseconds)).toLocaleString();

/** Return the article of a label: "a cat", "an apple", "an 8". */
export function article(label) {
  return /^(?:[aeio]|u(?!ni|se|ser)|8|11(?!\d)|18(?!\d))/i.test(label) ? "an" : "a";
}

export const VERDICTS = { correct: "Correct", incorrect: "Incorrect", skip: "Skipped" };

export const SAVE_STATES = {
  saving: "Saving", saved: "Saved", waiting: "Waiting for the network", refused: "Refused", expired: "Expired, not counted",
};

export const FEEDBACK_STATUS = {
  pending: "not learned yet", applied: "learned by the model", expired: "not used, because the picture was not kept", superseded: "changed later",
};

export const QUESTION_REASONS = {
  uncertain: "The model was unsure",
  audit: "Random audit, to estimate accuracy",
};

export const SNAPSHOT_REASONS = {
  source: "Source model (before any learning)", interval: "Automatic", asked: "Kept by an operator", rollback: "After a rollback",
};

/** Return one line of the event log. */
export function eventText(kind, body) {
  switch (kind) {
    case "started": return "The server started.";
    case "recovered": return "The server restarted from the last kept version.";
    case "asked": return `Asked ${plural(body.questions?.length ?? body.n ?? 0, "question")}.`;
    case "answered": return "An answer was stored.";
    case "undone": return body.applied ? "An answer was undone after the model had learned from it." : "An answer was undone.";
    case "learned": return `Learned from ${plural(body.answers?.length ?? 0, "new answer")}: version ${body.version}.`;
    case "snapshot": return `Kept version ${body.version}.`;
    case "rollback": return `Rolled back from version ${body.from_version} by ${body.by}${body.reason ? `: ${body.reason}` : "."}`;
    case "paused": return `Learning paused by ${body.by}${body.reason ? `: ${body.reason}` : "."}`;
    case "resumed": return `Learning resumed by ${body.by}.`;
    // The log has one kind for questions that expired and for answers whose picture is gone.
    case "expired": return body.feedback_ids
      ? `${plural(body.feedback_ids.length, "answer")} not used, because the picture was not kept.`
      : `${plural(body.prediction_ids?.length ?? 0, "question")} expired.`;
    case "image_deleted": return "A picture was deleted.";
    default: return kind;
  }
}
