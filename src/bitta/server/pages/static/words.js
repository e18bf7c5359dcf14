// Codes and numbers, in words.

export const percent = (share, digits = 1) =>
  (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);

export const number = (value, digits = 0) =>
  (value === null || value === undefined ? "–" : value.toLocaleString(undefined, { maximumFractionDigits: digits, minimumFractionDigits: digits }));

export const VERDICTS = { correct: "Correct", incorrect: "Incorrect", skip: "Skipped" };

export const STATES = {
  saving: "Saving", saved: "Saved", waiting: "Waiting for network", refused: "Refused", expired: "Expired, not counted",
};

/** "a cat", "an apple", "an 8". */
export function article(label) {
  return /^(?:[aeio]|u(?!ni|se|ser)|8|11(?!\d)|18(?!\d))/i.test(label) ? "an" : "a";
}

export const REASONS = {
  uncertain: "The model was unsure",
  audit: "Random audit, to estimate accuracy",
};

export const SNAPSHOTS = {
  source: "The model as it was given", interval: "Kept on schedule", asked: "Asked for", rollback: "After a rollback",
};

export const FEEDBACK = {
  pending: "not learned from yet", applied: "the model learned from it", expired: "came too late", superseded: "changed later",
};

export function plural(n, one, many = `${one}s`) {
  return `${number(n)} ${n === 1 ? one : many}`;
}

/** One line of the log for an event. */
export function happened(kind, body) {
  switch (kind) {
    case "started": return "The server started.";
    case "recovered": return "The server recovered from its log.";
    case "asked": return `Asked ${plural(body.questions?.length ?? body.n ?? 0, "question")}.`;
    case "answered": return "An answer came in.";
    case "undone": return body.applied ? "An answer was taken back after the model had learned from it." : "An answer was taken back.";
    case "learned": return `Learned from ${plural(body.answers?.length ?? 0, "new answer")}: version ${body.version}.`;
    case "snapshot": return `Kept version ${body.version}.`;
    case "rollback": return `Rolled back from version ${body.from_version} by ${body.by}${body.reason ? `: ${body.reason}` : "."}`;
    case "paused": return `Learning paused by ${body.by}${body.reason ? `: ${body.reason}` : "."}`;
    case "resumed": return `Learning resumed by ${body.by}.`;
    case "expired": return `${plural(body.prediction_ids?.length ?? 0, "question")} expired.`;
    case "image_deleted": return "A picture was deleted.";
    default: return kind;
  }
}
