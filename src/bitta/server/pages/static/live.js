// Server-sent events that come back by themselves: after an error, a restart, or silence.

const SILENCE = 30_000;  // The server sends a status every few seconds.

export class Live extends EventTarget {
  #path; #kinds; #source = null; #failures = 0; #timer = null; #silence = null;

  constructor(path, kinds) {
    super();
    this.#path = path;
    this.#kinds = kinds;
    this.state = "closed";
    addEventListener("online", () => { if (this.state === "lost") this.#open(); });
  }

  start() { if (this.state === "closed") this.#open(); }

  stop() {
    this.#shut();
    this.#become("closed");
  }

  #open() {
    this.#shut();
    this.#source = new EventSource(this.#path);
    this.#source.addEventListener("open", () => { this.#failures = 0; this.#become("live"); this.#alive(); });
    this.#source.addEventListener("error", () => this.#lost());
    for (const kind of ["status", ...this.#kinds]) {
      this.#source.addEventListener(kind, (event) => this.#heard(kind, event));
    }
    this.#alive();
  }

  #shut() {
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#source?.close();
    this.#source = null;
  }

  #heard(kind, event) {
    this.#alive();
    let body;
    try {
      body = JSON.parse(event.data);
    } catch {
      return;
    }
    this.dispatchEvent(new CustomEvent(kind, { detail: body }));
    if (kind !== "status") this.dispatchEvent(new CustomEvent("any", { detail: { kind, body } }));
  }

  #alive() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE);
  }

  #lost() {
    this.#shut();
    this.#become("lost");
    this.#failures += 1;
    const seconds = Math.min(20, 2 ** Math.min(this.#failures - 1, 5));
    this.#timer = setTimeout(() => this.#open(), seconds * (800 + 400 * Math.random()));
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
