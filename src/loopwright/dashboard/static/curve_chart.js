// A chart of curves of runs: linked cursor with a table of values, linked zoom, marks of events.

import { axisText, plotRange, rangeOf } from "./axis.js";
import { Chart } from "./chart.js";
import { cursor } from "./cursor.js";
import { curveTraces, eventTraces, markAxis } from "./curve_traces.js";
import { el, fill } from "./dom.js";
import { isVisible } from "./draw.js";
import { number, plural } from "./format.js";

const NEAR = 8; // px from the cursor to an event that is named
const SHOWN = 14; // rows of the table at the pointer

/**
 * Curves in `host`. Set the content with `set({curves, axis, range, isLog, isFitted, events}, kind)`:
 * - `curves`: list of `{series, colour, kind, halfLife, label, run}` (see `curve_traces.js`)
 * - `axis`: of `axisOf`; `range`: zoomed range in units of x, or null; `isLog`: logarithmic y
 * - `events`: list of `{x, kind, colour, label()}`
 * Options: `label`; `onzoom(range | null)`; `onvisible(bool)`.
 */
export class CurveChart {
  #spec = null;
  #undo = [];
  #frame = null;
  #yRange = null; // what the reader zoomed to

  constructor(host, { label, onzoom = () => {}, onvisible = null }) {
    this.host = host;
    this.onzoom = onzoom;
    host.classList.add("curve-chart");
    host.tabIndex = 0;
    this.line = el("div", { class: "cursor-line", hidden: true });
    this.values = el("div", { class: "cursor-values", hidden: true });
    this.chart = new Chart(host, { label, onvisible, ondraw: (graph) => this.#drawn(graph) });
    host.append(this.line);
    document.body.append(this.values);
    this.#listen();
  }

  #listen() {
    const { host } = this;
    host.addEventListener("pointermove", (event) => this.#point(event));
    host.addEventListener("pointerdown", (event) => { if (event.pointerType !== "mouse") this.#point(event); });
    host.addEventListener("pointerleave", () => { if (cursor.source === this) cursor.set(null); });
    host.addEventListener("dblclick", () => this.#reset());
    host.addEventListener("keydown", (event) => this.#key(event));
    host.addEventListener("blur", () => { if (cursor.source === this) cursor.set(null); });
    this.#undo.push(cursor.listen(() => this.#showCursor()));
  }

  set(spec, kind = "now") {
    this.#spec = spec;
    this.chart.set(() => this.#figure(), kind);
  }

  #figure() {
    const { curves, axis, range, isLog, isFitted = false, events = [] } = this.#spec;
    const yRange = this.#yRange ?? (isFitted ? fitted(curves, isLog) : null);
    const marks = eventTraces(events, axis.toX);
    const shown = plotRange(axis, range ?? extent(curves));
    const isTouch = matchMedia("(pointer: coarse)").matches;
    return {
      traces: [...curveTraces(curves, { toX: axis.toX, isLog }), ...marks],
      layout: {
        dragmode: isTouch ? false : "zoom",
        xaxis: { type: axis.type, title: { text: axis.title }, ...ticks(axis, shown), range: shown, autorange: false },
        yaxis: { type: isLog ? "log" : "linear", automargin: true, ...(isLog && { tickformat: "~g", nticks: 3 }), ...(yRange ? { range: yRange, autorange: false } : { autorange: true }) },
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
    if (change["yaxis.range[0]"] !== undefined) this.#yRange = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
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
    else if (event.key === "0") this.#reset();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #reset() {
    this.#yRange = null;
    this.onzoom(null);
    this.chart.redraw();
  }

  #zoomBy(factor, series) {
    const [first, last] = this.#spec.range ?? series.span;
    if (factor > 1 && !this.#spec.range) return; // there is nothing beyond the whole
    const place = Math.min(Math.max(cursor.x ?? (first + last) / 2, first), last); // it stays where it is in the panel
    this.onzoom([place - (place - first) * factor, place + (last - place) * factor]);
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
    this.#placeValues(left);
  }

  /** Beside the cursor, on the side with more room, and always inside the window. */
  #placeValues(left) {
    const box = this.host.getBoundingClientRect();
    const at = box.left + left;
    const { offsetWidth: width, offsetHeight: height } = this.values;
    const x = at + 14 + width < innerWidth - 8 ? at + 14 : Math.max(8, at - 14 - width);
    const y = Math.max(8, Math.min(box.top + 12, innerHeight - height - 8));
    this.values.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  /** Values of the curves at the cursor: `[{curve, at}]`. */
  readings(x = cursor.x) {
    if (!this.#spec || x === null) return [];
    return this.#spec.curves.map((curve) => {
      const index = curve.series.nearest(x);
      const [first, last] = curve.series.span ?? [Infinity, -Infinity];
      const spread = 0.02 * (last - first);
      const isInside = index >= 0 && (curve.series.length === 1 || (x >= first - spread && x <= last + spread));
      return { curve, at: isInside ? curve.series.at(index) : null };
    });
  }

  #table(axis, place) {
    const readings = this.readings().filter(({ at }) => at);
    const events = (this.#spec.events ?? []).filter((event) => Math.abs(axis.l2p(plotRange(this.#spec.axis, [event.x])[0]) - place) <= NEAR);
    const most = Math.max(0, ...readings.map(({ at }) => at.count));
    return [
      el("div", { class: "cursor-title" }, axisText(this.#spec.axis, cursor.x), most > 1 && el("span", { class: "faint" }, ` means of up to ${plural(most, "point")}`)),
      el("table", {}, readings.slice(0, SHOWN).map(({ curve, at }) => el("tr", {},
        el("td", {}, el("span", { class: `key ${curve.kind}`, style: { "--swatch": curve.colour } })),
        el("th", { scope: "row" }, curve.label), el("td", { class: "word" }, curve.word ?? ""), el("td", { class: "number" }, reading(at)),
        el("td", { class: "spread" }, spreadText(at))))),
      readings.length > SHOWN && el("div", { class: "faint" }, `and ${readings.length - SHOWN} more`),
      events.slice(0, 4).map((event) => el("div", { class: "cursor-event" }, el("span", { class: "swatch", style: { "--swatch": event.colour } }), event.label())),
    ];
  }

  /** The chart as a picture: see `Chart.image`. */
  image(format, options) { return this.chart.image(format, options); }

  destroy() {
    for (const undo of this.#undo) undo();
    this.values.remove();
    this.chart.destroy();
  }
}

/** Thousands as 10k; but no letters for what is smaller, where 20m would be read as minutes, nor for 526.444k of a close look. */
function ticks(axis, [first, last]) {
  if (axis.type === "log") return { tickformat: "~s" };
  if (axis.type !== "linear" || Math.abs(last) < 10_000) return {};
  return { tickformat: last - first > 0.02 * Math.abs(last) ? "~s" : ",~f" };
}

/** The range of y that holds the lines without their rare extremes, as plotly writes it. */
function fitted(curves, isLog) {
  const values = curves.flatMap(({ series }) => series.mean).filter((value) => value !== null && (!isLog || value > 0)).sort((a, b) => a - b);
  if (values.length < 3) return null;
  const at = (share) => (isLog ? Math.log10 : Number)(values[Math.round(share * (values.length - 1))]);
  const [low, high] = [at(0.005), at(0.995)];
  const margin = 0.06 * (high - low) || 0.5 * Math.abs(high) || 1;
  return [low - margin, high + margin];
}

/** From the first to the last point of all curves: every panel of the same runs begins and ends at the same place. */
function extent(curves) {
  const ends = curves.flatMap(({ series }) => series.span ?? []);
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
  if (at.count <= 1) return "";
  return `${number(at.min, 3)} … ${number(at.max, 3)}${at.nonfinite ? `, ${at.nonfinite} not finite` : ""}`;
}
