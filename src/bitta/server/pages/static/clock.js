// The server's clock decides when a lease ends; the offset is read off its responses.

let offset = 0;

/** `date` is the Date header of a response: whole seconds, so half a second is added. */
export function heard(date) {
  const said = Date.parse(date ?? "");
  if (Number.isNaN(said)) return;
  const difference = said + 500 - Date.now();
  offset = Math.abs(difference) < 2000 ? 0 : difference;
}

/** Milliseconds since the epoch, on the server's clock. */
export const now = () => Date.now() + offset;

export const microseconds = (milliseconds) => Math.round(milliseconds * 1000);

/** Times come as whole microseconds. */
export const milliseconds = (time) => time / 1000;

export function ago(time) {
  const seconds = Math.max(0, (now() - milliseconds(time)) / 1000);
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(milliseconds(time)).toLocaleDateString();
}

export const exactly = (time) => new Date(milliseconds(time)).toLocaleString();
