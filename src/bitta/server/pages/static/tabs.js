// One tab answers at a time: the tab that was opened or chosen last. The others step back and say so.

import { uniqueKey } from "./api.js";
import { load, remove, save, watch } from "./storage.js";

const PLACE = "answering";

export class Turn extends EventTarget {
  #tab = uniqueKey();

  constructor() {
    super();
    this.mine = false;
    this.waiting = false;
    watch(PLACE, (tab) => { if (tab !== null && tab !== this.#tab) this.#give(); });
    addEventListener("pagehide", () => this.#leave());
    // A page taken from the back-forward cache, or the last tab left, goes on by itself.
    addEventListener("pageshow", () => this.#whenFree());
    addEventListener("focus", () => this.#whenFree());
  }

  take() {
    save(PLACE, this.#tab);
    this.mine = true;
    this.waiting = false;
    this.dispatchEvent(new Event("taken"));
  }

  #whenFree() {
    const tab = load(PLACE);
    if (tab === null && this.waiting) this.take();
    // Frozen pages hear nothing of what other tabs wrote.
    else if (tab !== null && tab !== this.#tab) this.#give();
  }

  #leave() {
    if (load(PLACE) !== this.#tab) return;
    remove(PLACE);
    this.waiting = true;
  }

  #give() {
    if (!this.mine) return;
    this.mine = false;
    this.waiting = true;
    this.dispatchEvent(new Event("given"));
  }
}
