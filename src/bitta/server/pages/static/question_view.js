// The question on the screen: label, picture and buttons.

import { announce, byId, element, setText, setVisible } from "./dom.js";
import { article } from "./format.js";
import { keyName } from "./shortcuts.js";

const MIN_VIEW_TIME = 200;  // milliseconds; a faster press belongs to the previous question
const SMALL_PICTURE = 200;  // pixels; smaller pictures are scaled by whole numbers, so that they stay sharp

export class QuestionView {
  #question = null; #shownAt = 0; #isReady = false;

  constructor(shortcuts) {
    this.#showShortcuts(shortcuts);
    shortcuts.addEventListener("changed", () => this.#showShortcuts(shortcuts));
    new ResizeObserver(() => this.#fitPicture()).observe(byId("frame"));
  }

  /** Return the milliseconds since the question became visible, or null if it cannot be answered yet. */
  viewTime({ needsPicture }) {
    const time = performance.now() - this.#shownAt;
    return (this.#isReady || !needsPicture) && time > MIN_VIEW_TIME ? Math.round(time) : null;
  }

  async show(question) {
    if (question === this.#question) return;
    this.#question = question;
    this.#shownAt = performance.now();
    this.#setReady(false);
    setVisible("question-view", question !== null);
    if (!question) return;
    byId("question-view").dataset.prediction = question.prediction_id;
    setText("article", article(question.label));
    setText("label", question.label);
    byId("frame").replaceChildren(question.picture ?? placeholder("The picture of this question was not kept."));
    if (!question.picture) return;
    const isLoaded = await isDecoded(question.picture);
    if (this.#question !== question) return;
    if (!isLoaded) { this.#showLoadError(question); return; }
    this.#shownAt = performance.now();
    this.#fitPicture();
    this.#setReady(true);
    announce(`Is this ${article(question.label)} ${question.label}?`);
  }

  #showLoadError(question) {
    const button = element("button", {
      type: "button", onclick: () => {
        const source = question.picture.getAttribute("src");
        question.picture.removeAttribute("src");
        question.picture.setAttribute("src", source);
        this.#question = null;
        this.show(question);
      },
    }, "Load it again");
    byId("frame").replaceChildren(placeholder("The picture could not be loaded."), button);
  }

  #setReady(isReady) {
    this.#isReady = isReady;
    // The `disabled` attribute would take the focus from the button between two questions.
    for (const id of ["correct", "incorrect"]) byId(id).setAttribute("aria-disabled", String(!isReady));
  }

  #fitPicture() { if (this.#question?.picture) fit(this.#question.picture, byId("frame")); }

  #showShortcuts(shortcuts) {
    for (const action of Object.keys(shortcuts.keys)) {
      const button = byId(action);
      const keys = shortcuts.isOn ? shortcuts.keys[action] : [];
      button.querySelector(".keycaps").replaceChildren(...keys.map((key) => element("kbd", {}, keyName(key))));
      if (keys.length) button.setAttribute("aria-keyshortcuts", keys.join(" "));
      else button.removeAttribute("aria-keyshortcuts");
    }
  }
}

const placeholder = (sentence) => element("p", { class: "muted" }, sentence);

/** Scale the picture to the size of the frame. */
function fit(picture, frame) {
  const { naturalWidth: width, naturalHeight: height } = picture;
  if (!width || !height) return;
  const maxScale = Math.min(frame.clientWidth / width, frame.clientHeight / height);
  const isSmall = Math.max(width, height) < SMALL_PICTURE;
  const ratio = devicePixelRatio || 1;
  const scale = isSmall ? Math.max(1, Math.floor(maxScale * ratio)) / ratio : maxScale;
  picture.classList.toggle("pixels", isSmall);
  picture.width = Math.round(width * scale);
  picture.height = Math.round(height * scale);
}

async function isDecoded(picture) {
  try {
    await picture.decode();
    return true;
  } catch {
    return false;
  }
}
