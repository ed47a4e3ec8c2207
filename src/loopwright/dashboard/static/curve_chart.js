// A chart of curves of runs: linked cursor with a table of values, linked zoom, marks of events.

import { plotRange, rangeOf } from "./axis.js";
import { Chart } from "./chart.js";
import { cursor } from "./cursor.js";
import { curveTraces, eventTraces, markAxis } from "./curve_traces.js";
import { el, fill } from "./dom.js";
import { isVisible } from "./draw.js";
import { number, plural } from "./format.js";

const NEAR = 8; // px from the cursor to an event that is named
const SHOWN = 14; // rows of the table at the pointer

/**
 * Curves in `host`. Set the content with `set({curves, axis, range, yRange, isLog, events}, kind)`:
 * - `curves`: list of `{series, colour, kind, halfLife, label, run}` (see `curve_traces.js`)
 * - `axis`: of `axisOf`; `range`: zoomed range in units of x, or null; `isLog`: logarithmic y
 * - `events`: list of `{x, kind, colour, label}`
 * Options: `label`; `onzoom(range | null)`; `onvisible(bool)`.
 */
export class CurveChart {
  #spec = null;
  #undo = [];
  #frame = null;

  constructor(host, { label, onzoom = () => {}, onvisible = null }) {
    this.host = host;
    this.onzoom = onzoom;
    host.classList.add("curve-chart");
    host.tabIndex = 0;
    this.line = el("div", { class: "cursor-line", hidden: true });
    this.values = el("div", { class: "cursor-values", hidden: true });
    this.chart = new Chart(host, { label, onvisible, ondraw: (graph) => this.#drawn(graph) });
    host.append(this.line, this.values);
    this.#listen();
  }

  #listen() {
    const { host } = this;
    host.addEventListener("pointermove", (event) => this.#point(event));
    host.addEventListener("pointerdown", (event) => { if (event.pointerType !== "mouse") this.#point(event); });
    host.addEventListener("pointerleave", () => { if (cursor.source === this) cursor.set(null); });
    host.addEventListener("dblclick", () => this.onzoom(null));
    host.addEventListener("keydown", (event) => this.#key(event));
    host.addEventListener("blur", () => { if (cursor.source === this) cursor.set(null); });
    this.#undo.push(cursor.listen(() => this.#showCursor()));
  }

  set(spec, kind = "now") {
    this.#spec = spec;
    this.chart.set(() => this.#figure(), kind);
  }

  #figure() {
    const { curves, axis, range, yRange = null, isLog, events = [] } = this.#spec;
    const marks = eventTraces(events, axis.toX);
    const isTouch = matchMedia("(pointer: coarse)").matches;
    return {
      traces: [...curveTraces(curves, { toX: axis.toX, isLog }), ...marks],
      layout: {
        dragmode: isTouch ? false : "zoom",
        xaxis: { type: axis.type, title: { text: axis.title }, ...(axis.type === "linear" && { tickformat: "~s" }), range: plotRange(axis, range ?? extent(curves)), autorange: false },
        yaxis: { type: isLog ? "log" : "linear", ...(isLog && { dtick: null, minor: { showgrid: false } }), ...(yRange ? { range: yRange, autorange: false } : { autorange: true }) },
        yaxis2: markAxis,
      },
    };
  }

  #drawn(graph) {
    if (!this.isWired) {
      this.isWired = true;
      graph.on("plotly_relayout", (change) => this.#relayout(change));
    }
    this.#showCursor();
  }

  #relayout(change) {
    const ends = change["xaxis.range"] ?? (change["xaxis.range[0]"] === undefined ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    if (change["yaxis.range[0]"] !== undefined) this.#spec.yRange = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
    if (ends) this.onzoom(rangeOf(this.#spec.axis, ends));
  }

  #axis() { return this.chart.graph._fullLayout?.xaxis ?? null; }

  #point(event) {
    const axis = this.#axis();
    if (!axis || !this.#spec) return;
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      const box = this.chart.graph.getBoundingClientRect();
      const place = event.clientX - box.left - axis._offset;
      if (place < 0 || place > axis._length) return cursor.source === this ? cursor.set(null) : null;
      cursor.set(rangeOf(this.#spec.axis, [axis.p2l(place)])[0], this);
    });
  }

  #key(event) {
    const series = this.#spec?.curves.map((curve) => curve.series).sort((a, b) => b.length - a.length)[0];
    if (!series?.length) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const by = (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1);
      const from = cursor.x === null ? (by > 0 ? -1 : series.length) : series.nearest(cursor.x);
      cursor.set(series.x[Math.min(series.length - 1, Math.max(0, from + by))], this);
    } else if (event.key === "+" || event.key === "-") this.#zoomBy(event.key === "+" ? 0.5 : 2, series);
    else if (event.key === "0") this.onzoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #zoomBy(factor, series) {
    const [first, last] = this.#spec.range ?? [series.x[0], series.x.at(-1)];
    const middle = cursor.x ?? (first + last) / 2;
    const half = ((last - first) * factor) / 2;
    this.onzoom([middle - half, middle + half]);
  }

  #showCursor() {
    const axis = this.#axis();
    const isShown = cursor.x !== null && axis && this.#spec && isVisible(this.chart.graph);
    const place = isShown ? axis.l2p(plotRange(this.#spec.axis, [cursor.x])[0]) : -1;
    this.line.hidden = !(place >= 0 && place <= (axis?._length ?? 0));
    this.values.hidden = this.line.hidden || cursor.source !== this;
    if (this.line.hidden) return;
    const { _size: size } = this.chart.graph._fullLayout;
    const left = place + axis._offset;
    Object.assign(this.line.style, { transform: `translateX(${left}px)`, top: `${size.t}px`, height: `${size.h}px` });
    if (this.values.hidden) return;
    fill(this.values, this.#table(axis, place));
    const isRight = left > this.host.clientWidth / 2;
    this.values.style.left = isRight ? "auto" : `${left + 14}px`;
    this.values.style.right = isRight ? `${this.host.clientWidth - left + 14}px` : "auto";
  }

  /** Values of the curves at the cursor: `[{curve, at}]`. */
  readings(x = cursor.x) {
    if (!this.#spec || x === null) return [];
    return this.#spec.curves.map((curve) => {
      const index = curve.series.nearest(x);
      const spread = curve.series.length > 1 ? Math.abs(curve.series.x.at(-1) - curve.series.x[0]) : Infinity;
      const isInside = index >= 0 && (curve.series.length === 1 || (x >= curve.series.x[0] - 0.02 * spread && x <= curve.series.x.at(-1) + 0.02 * spread));
      return { curve, at: isInside ? curve.series.at(index) : null };
    });
  }

  #table(axis, place) {
    const readings = this.readings().filter(({ at }) => at);
    const events = (this.#spec.events ?? []).filter((event) => Math.abs(axis.l2p(plotRange(this.#spec.axis, [event.x])[0]) - place) <= NEAR);
    return [
      el("div", { class: "cursor-title" }, this.#spec.axis.name === "wall" ? "" : `${this.#spec.axis.title.replace(/ \(.*/, "")} `, this.#spec.axis.text(cursor.x)),
      el("table", {}, readings.slice(0, SHOWN).map(({ curve, at }) => el("tr", {},
        el("td", {}, el("span", { class: `key ${curve.kind}`, style: { "--swatch": curve.colour } })),
        el("th", { scope: "row" }, curve.label), el("td", { class: "number" }, reading(at)),
        el("td", { class: "spread" }, spreadText(at))))),
      readings.length > SHOWN && el("div", { class: "faint" }, `and ${readings.length - SHOWN} more`),
      events.slice(0, 4).map((event) => el("div", { class: "cursor-event" }, el("span", { class: "swatch", style: { "--swatch": event.colour } }), event.label)),
    ];
  }

  /** The chart as a picture: see `Chart.image`. */
  image(format, options) { return this.chart.image(format, options); }

  destroy() {
    for (const undo of this.#undo) undo();
    this.chart.destroy();
  }
}

/** From the first to the last point of all curves: every panel of the same runs begins and ends at the same place. */
function extent(curves) {
  const ends = curves.filter(({ series }) => series.length).flatMap(({ series }) => [series.x[0], series.end]);
  if (!ends.length) return [0, 1];
  const [first, last] = [Math.min(...ends), Math.max(...ends)];
  return first === last ? [first - 0.5, last + 0.5] : [first, last];
}

/** A value as read off a curve: NaN and infinities are said, not left out. */
export function reading(at) {
  if (!at) return "–";
  if (at.mean !== null) return number(at.mean);
  return { nan: "NaN", inf: "∞", "-inf": "−∞" }[at.odd] ?? "NaN";
}

function spreadText(at) {
  const odd = at.count > 1 && at.nonfinite ? `, ${at.nonfinite} not finite` : "";
  return at.count > 1 ? `${number(at.min, 3)} … ${number(at.max, 3)} of ${plural(at.count, "point")}${odd}` : "";
}
