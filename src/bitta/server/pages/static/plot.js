// Line plots over time, in SVG.

import { toMilliseconds } from "./api.js";
import { svgElement } from "./dom.js";

const HEIGHT = 150;
const MARGIN = { left: 44, right: 12, top: 10, bottom: 22 };

/** Line over time with an optional band and reference line. `draw` may be called at any time. */
export class Plot {
  #container; #name; #format; #range; #startsAtZero; #values = null;

  /** `format` turns a value into text. `range` holds the possible values. */
  constructor(container, { name, format, range = [0, Infinity], startsAtZero = false }) {
    this.#container = container;
    this.#name = name;
    this.#format = format;
    this.#range = range;
    this.#startsAtZero = startsAtZero;
    new ResizeObserver(() => this.#render()).observe(container);
  }

  /** Draw {at, line, low?, high?, reference?}. The lists have equal length; null marks a missing value. */
  draw(values) {
    this.#values = values;
    this.#render();
  }

  #render() {
    const width = this.#container.clientWidth;
    if (!this.#values || !width) return;
    const { at, line, low, high, reference } = this.#values;
    const measured = line.filter((value) => value !== null);
    if (measured.length < 2) { this.#container.replaceChildren(emptyPlot(width)); return; }
    const axis = this.#axis([...measured, ...(low ?? []), ...(high ?? []), reference].filter(Number.isFinite));
    const x = linearScale(at[0], at.at(-1), MARGIN.left, width - MARGIN.right);
    const y = linearScale(axis.from, axis.to, HEIGHT - MARGIN.bottom, MARGIN.top);
    this.#container.replaceChildren(svgElement("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": this.#description(measured, at),
    },
    ...this.#grid(axis, y, width), ...timeLabels(at, x),
    low && high ? svgElement("path", { class: "band", d: bandPath(at, low, high, x, y) }) : null,
    Number.isFinite(reference) ? horizontalLine("reference", y(reference), width) : null,
    svgElement("path", { class: "line", d: linePath(at, line, x, y) }),
    lastPoint(at, line, x, y)));
  }

  #axis(values) {
    const min = this.#startsAtZero ? 0 : Math.min(...values);
    const max = Math.max(...values);
    const margin = Math.max((max - min) * 0.15, Math.abs(max) * 0.02, 1e-9);
    const [lowest, highest] = this.#range;
    return roundAxis(Math.max(lowest, min - margin), Math.min(highest, max + margin));
  }

  #grid({ from, to, step }, y, width) {
    const elements = [];
    for (let value = from; value <= to + step / 2; value += step) {
      elements.push(horizontalLine("grid", y(value), width));
      elements.push(svgElement("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, this.#format(value)));
    }
    return elements;
  }

  /** Describe the plot for screen readers. */
  #description(measured, at) {
    const minutes = Math.round(toMilliseconds(at.at(-1) - at[0]) / 60_000);
    return `${this.#name}: ${this.#format(measured.at(-1))} now, ${this.#format(measured[0])} ${minutes} minutes before; `
      + `between ${this.#format(Math.min(...measured))} and ${this.#format(Math.max(...measured))}.`;
  }
}

const linearScale = (from, to, start, end) => (value) =>
  start + ((value - from) / (to - from || 1)) * (end - start);

const horizontalLine = (className, y, width) =>
  svgElement("line", { class: className, x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y });

/** Return an axis of two to five steps. A step is 1, 2 or 5 times a power of ten. */
function roundAxis(from, to) {
  const minStep = (to - from) / 4;
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= minStep);
  return { from: Math.floor(from / step + 1e-9) * step, to: Math.ceil(to / step - 1e-9) * step, step };
}

/** Return the path of the line, with a gap where values are missing. */
function linePath(at, line, x, y) {
  let path = "";
  line.forEach((value, index) => {
    if (value === null) return;
    const isStart = index === 0 || line[index - 1] === null;
    path += `${isStart ? "M" : "L"}${x(at[index]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return path;
}

function bandPath(at, low, high, x, y) {
  const indices = at.map((_, index) => index).filter((index) => low[index] !== null && high[index] !== null);
  const point = (index, values) => `${x(at[index]).toFixed(1)} ${y(values[index]).toFixed(1)}`;
  if (!indices.length) return "";
  return `M${indices.map((index) => point(index, high)).join("L")}L${indices.reverse().map((index) => point(index, low)).join("L")}Z`;
}

function lastPoint(at, line, x, y) {
  const index = line.findLastIndex((value) => value !== null);
  return svgElement("circle", { class: "dot", cx: x(at[index]), cy: y(line[index]), r: 3.5 });
}

function timeLabels(at, x) {
  const text = (time) => new Date(toMilliseconds(time)).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const label = (time, anchor) => svgElement("text", { x: x(time), y: HEIGHT - 6, "text-anchor": anchor }, text(time));
  return [label(at[0], "start"), label(at.at(-1), "end")];
}

function emptyPlot(width) {
  return svgElement("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": "Nothing measured yet." },
    svgElement("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "Nothing measured yet"));
}
