// A line over time with an optional band around it, in SVG.

import { milliseconds } from "./clock.js";
import { drawing } from "./dom.js";

const HEIGHT = 150;
const MARGIN = { left: 44, right: 12, top: 10, bottom: 22 };

/**
 * One plot in one place; `draw` again with new values at any time.
 * `format` writes a value, `range` has the natural ends of the axis, `zero` begins it there.
 */
export class Plot {
  #place; #name; #format; #range; #zero; #values = null;

  constructor(place, { name, format, range = null, zero = false }) {
    this.#place = place;
    this.#name = name;
    this.#format = format;
    this.#range = range;
    this.#zero = zero;
    new ResizeObserver(() => this.#render()).observe(place);
  }

  /** {at, line, low?, high?, reference?}: lists of the same length; null where nothing was measured. */
  draw(values) {
    this.#values = values;
    this.#render();
  }

  #render() {
    const width = this.#place.clientWidth;
    if (!this.#values || !width) return;
    const { at, line, low, high, reference } = this.#values;
    const known = line.filter((value) => value !== null);
    if (known.length < 2) { this.#place.replaceChildren(empty(width)); return; }
    const axis = this.#axis([...known, ...(low ?? []), ...(high ?? []), reference].filter(Number.isFinite));
    const x = scale(at[0], at.at(-1), MARGIN.left, width - MARGIN.right);
    const y = scale(axis[0], axis[1], HEIGHT - MARGIN.bottom, MARGIN.top);
    this.#place.replaceChildren(drawing("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": this.#inWords(known, at),
    },
    ...this.#grid(axis, y, width), ...times(at, x),
    low && high ? drawing("path", { class: "band", d: band(at, low, high, x, y) }) : null,
    Number.isFinite(reference) ? drawing("line", { class: "reference", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(reference), y2: y(reference) }) : null,
    drawing("path", { class: "line", d: path(at, line, x, y) }),
    ...last(at, line, x, y)));
  }

  #axis(values) {
    const least = this.#zero ? 0 : Math.min(...values);
    const most = Math.max(...values);
    const room = Math.max((most - least) * 0.15, Math.abs(most) * 0.02, 1e-9);
    const [floor, ceiling] = this.#range ?? [0, Infinity];
    return nice(Math.max(floor, least - room), Math.min(ceiling, most + room));
  }

  #grid([from, to, step], y, width) {
    const lines = [];
    for (let value = from; value <= to + step / 2; value += step) {
      lines.push(drawing("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
      lines.push(drawing("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, this.#format(value)));
    }
    return lines;
  }

  #inWords(known, at) {
    const minutes = Math.round(milliseconds(at.at(-1) - at[0]) / 60_000);
    return `${this.#name}: ${this.#format(known.at(-1))} now, ${this.#format(known[0])} ${minutes} minutes before; `
      + `between ${this.#format(Math.min(...known))} and ${this.#format(Math.max(...known))}.`;
  }
}

const scale = (from, to, start, end) => (value) =>
  start + ((value - from) / (to - from || 1)) * (end - start);

/** Two to five steps of 1, 2 or 5 times a power of ten. */
function nice(from, to) {
  const rough = (to - from) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((multiple) => multiple * power).find((size) => size >= rough);
  return [Math.floor(from / step + 1e-9) * step, Math.ceil(to / step - 1e-9) * step, step];
}

/** A gap in what was measured is a gap in the line. */
function path(at, line, x, y) {
  let text = "";
  line.forEach((value, place) => {
    if (value === null) return;
    const begins = place === 0 || line[place - 1] === null;
    text += `${begins ? "M" : "L"}${x(at[place]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return text;
}

function band(at, low, high, x, y) {
  const places = at.map((_, place) => place).filter((place) => low[place] !== null && high[place] !== null);
  const point = (place, values) => `${x(at[place]).toFixed(1)} ${y(values[place]).toFixed(1)}`;
  if (!places.length) return "";
  return `M${places.map((place) => point(place, high)).join("L")}L${places.reverse().map((place) => point(place, low)).join("L")}Z`;
}

function last(at, line, x, y) {
  const place = line.findLastIndex((value) => value !== null);
  return [drawing("circle", { class: "dot", cx: x(at[place]), cy: y(line[place]), r: 3.5 })];
}

function times(at, x) {
  const clock = (time) => new Date(milliseconds(time)).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const write = (time, anchor) => drawing("text", { x: x(time), y: HEIGHT - 6, "text-anchor": anchor }, clock(time));
  return [write(at[0], "start"), write(at.at(-1), "end")];
}

function empty(width) {
  return drawing("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": "Nothing measured yet." },
    drawing("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "Nothing measured yet"));
}
