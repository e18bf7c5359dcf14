// Calls to the server. A failure is a Failure with what a person should read and whether to try again.

import { heard } from "./clock.js";

export class Failure extends Error {
  constructor(message, { status = 0, code = "network", wait = 0 } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.wait = wait;
  }

  get network() { return this.status === 0; }

  get signedOut() { return this.status === 401; }

  /** The same request may succeed later: no network, a busy or restarting server. */
  get passing() { return this.network || this.status === 408 || this.status === 429 || this.status >= 500; }
}

/** The JSON body of a success; null for 204. */
export async function call(method, path, { body, key, seconds = 15, signal } = {}) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), seconds * 1000);
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  if (signal?.aborted) stop.abort();
  try {
    const response = await fetch(path, {
      method,
      headers: headers(body, key),
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: stop.signal,
    });
    heard(response.headers.get("Date"));
    const answer = response.status === 204 ? null : await read(response);
    if (!response.ok) throw failure(response, answer);
    return answer;
  } catch (problem) {
    if (problem instanceof Failure) throw problem;
    throw new Failure("The server cannot be reached.");
  } finally {
    clearTimeout(timer);
  }
}

function headers(body, key) {
  const given = { Accept: "application/json", "X-Bitta": "1" };
  if (body !== undefined) given["Content-Type"] = "application/json";
  if (key) given["Idempotency-Key"] = key;
  return given;
}

async function read(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    // A proxy's page in place of an answer: treat a success of that kind as no answer at all.
    if (response.ok) throw new Failure("The server's answer could not be read.");
    return null;
  }
}

function failure(response, answer) {
  return new Failure(answer?.error ?? `The server answered ${response.status}.`, {
    status: response.status,
    code: answer?.code ?? "unknown",
    wait: Number(response.headers.get("Retry-After")) || 0,
  });
}

/** Random enough to be unique; works without a secure context, where randomUUID is missing. */
export function uniqueKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const image = (predictionId) => `v1/predictions/${encodeURIComponent(predictionId)}/image`;
