// Calls to the server, its clock, and its event stream.

/** Error of a call: the message for people, and properties that say what to do. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "network", retryAfter = 0 } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;  // seconds
  }

  get isNetworkError() { return this.status === 0; }

  get isSignedOut() { return this.status === 401; }

  /** True if the same request may succeed later: no network, or a busy or restarting server. */
  get isTemporary() { return this.isNetworkError || this.status === 408 || this.status === 429 || this.status >= 500; }
}

/** Return the JSON body of the response, or null if it has none. Throws an ApiError. */
export async function call(method, path, { body, idempotencyKey, seconds = 15, signal } = {}) {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(), seconds * 1000);
  signal?.addEventListener("abort", () => controller.abort(), { once: true });
  if (signal?.aborted) controller.abort();
  try {
    const response = await fetch(path, {
      method,
      headers: requestHeaders(body, idempotencyKey),
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: controller.signal,
    });
    updateClock(response.headers.get("Date"));
    const content = response.status === 204 ? null : await parseBody(response);
    if (!response.ok) throw errorOf(response, content);
    return content;
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError("The server cannot be reached.");
  } finally {
    clearTimeout(timer);
  }
}

function requestHeaders(body, idempotencyKey) {
  const headers = { Accept: "application/json", "X-Bitta": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
  return headers;
}

async function parseBody(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    // A proxy may send its own page with a success status. Such a page is not a response of the server.
    if (response.ok) throw new ApiError("The server's response could not be read.");
    return null;
  }
}

function errorOf(response, content) {
  return new ApiError(content?.error ?? `The server responded with status ${response.status}.`, {
    status: response.status,
    code: content?.code ?? "unknown",
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
  });
}

/** Return a unique string. crypto.randomUUID does not exist in pages without TLS. */
export function uniqueKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const imagePath = (predictionId) => `v1/predictions/${encodeURIComponent(predictionId)}/image`;

// The server's clock decides when a lease ends. Its offset to ours is read from its responses.

let clockOffset = 0;  // milliseconds

/** `date` is the Date header of a response. It has whole seconds, so half a second is added. */
function updateClock(date) {
  const time = Date.parse(date ?? "");
  if (Number.isNaN(time)) return;
  const difference = time + 500 - Date.now();
  clockOffset = Math.abs(difference) < 2000 ? 0 : difference;
}

/** Return the time of the server's clock, in milliseconds since 1970. */
export const serverTime = () => Date.now() + clockOffset;

// The API has times in whole microseconds.
export const toMicroseconds = (milliseconds) => Math.round(milliseconds * 1000);
export const toMilliseconds = (microseconds) => microseconds / 1000;

const MAX_SILENCE = 30_000;  // milliseconds; the server sends a status every few seconds

/**
 * Server-sent events. Reconnects after an error, a restart of the server, or silence.
 * Dispatches an event of each kind, "any" for every kind but "status", and "state" with "live", "lost" or "closed".
 */
export class EventStream extends EventTarget {
  #path; #kinds; #source = null; #nFailures = 0; #reconnectTimer = null; #silenceTimer = null;

  constructor(path, kinds) {
    super();
    this.#path = path;
    this.#kinds = kinds;
    this.state = "closed";
    addEventListener("online", () => { if (this.state === "lost") this.#open(); });
  }

  start() { if (this.state === "closed") this.#open(); }

  stop() {
    this.#close();
    this.#setState("closed");
  }

  #open() {
    this.#close();
    this.#source = new EventSource(this.#path);
    this.#source.addEventListener("open", () => {
      this.#nFailures = 0;
      this.#setState("live");
      this.#restartSilenceTimer();
    });
    this.#source.addEventListener("error", () => this.#reconnectLater());
    for (const kind of ["status", ...this.#kinds]) {
      this.#source.addEventListener(kind, (event) => this.#receive(kind, event));
    }
    this.#restartSilenceTimer();
  }

  #close() {
    clearTimeout(this.#reconnectTimer);
    clearTimeout(this.#silenceTimer);
    this.#source?.close();
    this.#source = null;
  }

  #receive(kind, event) {
    this.#restartSilenceTimer();
    let body;
    try {
      body = JSON.parse(event.data);
    } catch {
      return;
    }
    this.dispatchEvent(new CustomEvent(kind, { detail: body }));
    if (kind !== "status") this.dispatchEvent(new CustomEvent("any", { detail: { kind, body } }));
  }

  #restartSilenceTimer() {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.#reconnectLater(), MAX_SILENCE);
  }

  #reconnectLater() {
    this.#close();
    this.#setState("lost");
    this.#nFailures += 1;
    const seconds = Math.min(20, 2 ** Math.min(this.#nFailures - 1, 5));
    this.#reconnectTimer = setTimeout(() => this.#open(), seconds * (800 + 400 * Math.random()));
  }

  #setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
