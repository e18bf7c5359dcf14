// Helpers for the page. All text is set as text; nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

/** Example: element("td", {class: "number"}, "12", otherElement) */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
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

export function setVisible(id, isVisible) {
  byId(id).hidden = !isVisible;
}

export function setText(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

/** Replace the items of a list. A focused button keeps the focus if it is still there. */
export function replaceItems(list, items) {
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  list.replaceChildren(...items);
  if (focused) [...list.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused)?.focus();
}

/** Announce a sentence to screen readers. An added space makes them announce a repeated sentence again. */
export function announce(sentence) {
  const region = byId("announcer");
  region.textContent = region.textContent === sentence ? `${sentence}\u00a0` : sentence;
}

let noticeTimer = null;

/** Show a sentence at the bottom of the page for some seconds. */
export function showNotice(sentence, { kind = "plain", seconds = 6 } = {}) {
  const notice = byId("notice");
  notice.textContent = sentence;
  notice.dataset.kind = kind;
  notice.hidden = false;
  announce(sentence);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { notice.hidden = true; }, seconds * 1000);
}
