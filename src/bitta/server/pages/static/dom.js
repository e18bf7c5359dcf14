// Text goes into the page as text alone: nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

/** element("td", {class: "number"}, "12", otherElement) */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function show(id, visible) {
  byId(id).hidden = !visible;
}

export function write(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

/** New lines in a list; a button that had the focus and is still there keeps it. */
export function refill(list, lines) {
  const held = list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  list.replaceChildren(...lines);
  if (held) [...list.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === held)?.focus();
}

/** Say a sentence to screen readers; the space makes a repeated sentence a new one. */
export function announce(sentence) {
  const region = byId("announcer");
  region.textContent = region.textContent === sentence ? `${sentence}\u00a0` : sentence;
}

let quiet = null;

/** A sentence at the foot of the page that goes away by itself. */
export function notice(sentence, { kind = "plain", seconds = 6 } = {}) {
  const place = byId("notice");
  place.textContent = sentence;
  place.dataset.kind = kind;
  place.hidden = false;
  announce(sentence);
  clearTimeout(quiet);
  quiet = setTimeout(() => { place.hidden = true; }, seconds * 1000);
}
