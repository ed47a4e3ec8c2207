// Charts of a sweep: all parameters at once on parallel axes, and the metric against each of them.

import { Chart, escape } from "./chart.js";
import { el, fill, setText } from "./dom.js";
import { number, value } from "./format.js";
import { runs } from "./runs.js";
import { faded, token } from "./theme.js";
import { url } from "./url.js";

const MOST_AXES = 9;
const FEWEST = 4; // runs for which a correlation is said

/** Parallel coordinates; `onbrush(ids or null)` hears which runs are inside the ranges that were marked. */
export class ParallelChart {
  #ranges = new Map(); // key of an axis → ranges that were marked on it

  constructor(onbrush) {
    this.onbrush = onbrush;
    this.host = el("div", { class: "parallel-plot" });
    this.element = el("div", { class: "card parallel", tabindex: 0, role: "region", "aria-label": "Parallel coordinates; the table below holds the same values" }, this.host);
    this.chart = new Chart(this.host, { label: "Parallel coordinates of the runs", ondraw: (graph) => this.#wire(graph) });
  }

  set(data) {
    const signature = JSON.stringify(data);
    if (signature === this.signature) return;
    this.signature = signature;
    this.data = data;
    this.chart.set(({ width }) => this.#figure(width));
  }

  clear() {
    if (!this.#ranges.size) return;
    this.#ranges.clear();
    this.onbrush(null);
    this.chart.redraw();
  }

  destroy() { this.chart.destroy(); }

  #axes() {
    const { parameters, metric, rows } = this.data;
    const own = parameters.slice(0, MOST_AXES - 1).map((parameter) => ({ key: parameter.key, ...scale(parameter, rows.map((row) => row.parameters[parameter.key] ?? null)) }));
    return [...own, { key: "", ...scale({ title: metric.name, kind: "number" }, rows.map((row) => row.metrics[metric.name])) }];
  }

  #figure(width) {
    const axes = this.#axes();
    this.axes = axes;
    const { values } = axes.at(-1);
    const isMin = this.data.metric.mode !== "max";
    this.host.parentElement.style.setProperty("--axes", axes.length);
    return {
      traces: [{
        type: "parcoords", labelangle: 0, labelside: "top", unselected: { line: { color: token("--line-strong"), opacity: 0.25 } },
        line: { color: values, cmin: Math.min(...values), cmax: Math.max(...values), colorscale: [[0, token("--accent")], [0.5, token("--run-2")], [1, token("--run-4")]], reversescale: !isMin },
        labelfont: { size: 12.5, color: token("--text") }, tickfont: { size: 11, color: token("--muted") }, rangefont: { size: 1, color: "rgba(0,0,0,0)" },
        dimensions: axes.map(({ key, title, values: along, range, ticks }) => ({
          label: escape(shorten(title, width / axes.length)), values: along, range, ...(ticks && { tickvals: ticks.map(([at]) => at), ticktext: ticks.map(([, text]) => escape(text)) }), ...(this.#ranges.has(key) && { constraintrange: this.#ranges.get(key) }),
        })),
      }],
      layout: { margin: { l: 64, r: 64, t: 44, b: 18 } },
    };
  }

  #wire(graph) {
    if (this.isWired) return;
    this.isWired = true;
    graph.on("plotly_restyle", ([change]) => this.#brushed(change));
  }

  #brushed(change) {
    for (const [path, given] of Object.entries(change)) {
      const found = /^dimensions\[(\d+)\]\.constraintrange$/.exec(path);
      if (!found) continue;
      const { key } = this.axes[Number(found[1])];
      const range = given?.[0] ?? null;
      if (range) this.#ranges.set(key, range);
      else this.#ranges.delete(key);
    }
    this.onbrush(this.#ranges.size ? this.#inside() : null);
  }

  #inside() {
    const within = (entry, range) => (Array.isArray(range[0]) ? range : [range]).some(([low, high]) => entry >= low && entry <= high);
    const ids = this.data.rows.map((row) => row.run).filter((_, index) => this.axes.every(({ key, values }) => !this.#ranges.has(key) || within(values[index], this.#ranges.get(key))));
    return new Set(ids);
  }
}

/** Values on an axis: numbers, logarithms of numbers, or places of words, with ticks where plotly cannot know them. */
function scale({ title, kind, is_log: isLog = false }, entries) {
  if (kind === "number" && entries.every((entry) => typeof entry === "number")) {
    const values = isLog ? entries.map(Math.log10) : entries;
    const distinct = [...new Set(entries)].sort((a, b) => a - b);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const ticks = distinct.length <= 8 || isLog ? thin(distinct, 8).map((entry) => [isLog ? Math.log10(entry) : entry, value(entry)]) : null;
    return { title, values, range: low === high ? [low - 1, high + 1] : [low, high], ticks: ticks?.map(([at, text]) => [at, typeof text === "string" ? text : String(text)]) ?? null };
  }
  const words = [...new Set(entries.map(word))];
  return { title, values: entries.map((entry) => words.indexOf(word(entry))), range: [-0.3, words.length - 0.7], ticks: words.map((text, index) => [index, text.length > 18 ? `${text.slice(0, 17)}…` : text]) };
}

const word = (entry) => (entry === null ? "not set" : value(entry));
const thin = (list, most) => (list.length <= most ? list : list.filter((_, index) => index % Math.ceil(list.length / most) === 0));
const shorten = (text, width) => (text.length * 7 > width ? `…${text.slice(-Math.max(6, Math.floor(width / 7)))}` : text);

/** The metric against each parameter, as small charts; a click opens the run. */
export class ScatterGrid {
  #charts = new Map(); // key → {element, chart, note}

  constructor() { this.element = el("div", { class: "panel-grid" }); }

  set({ rows, parameters, metric }) {
    const signature = JSON.stringify([rows, parameters, metric, runs.selected.map((id) => runs.colour(id))]);
    if (signature === this.signature) return;
    this.signature = signature;
    const drawn = parameters.map((parameter) => ({ parameter, strength: correlation(rows, parameter, metric) })).sort((a, b) => Math.abs(b.strength ?? 0) - Math.abs(a.strength ?? 0));
    const keys = new Set(parameters.map(({ key }) => key));
    for (const [key, { chart, element }] of this.#charts) if (!keys.has(key)) { chart.destroy(); element.remove(); this.#charts.delete(key); }
    drawn.forEach(({ parameter, strength }, index) => {
      const one = this.#chartOf(parameter, metric);
      if (this.element.children[index] !== one.element) this.element.insertBefore(one.element, this.element.children[index] ?? null);
      setText(one.note, strength === null ? "" : `rank correlation ${strength.toFixed(2).replace("-", "−")}`);
      one.chart.set(() => scatter(rows, parameter, metric));
    });
  }

  #chartOf({ key }) {
    if (!this.#charts.has(key)) {
      const host = el("div", { class: "panel-plot" });
      const note = el("span", { class: "hint" });
      const element = el("section", { class: "panel card", "aria-label": key, data: { parameter: key } }, el("header", { class: "panel-head" }, el("h3", { title: key }, key), el("span", { class: "space" }), note), host);
      const one = { element, note, isWired: false };
      one.chart = new Chart(host, { label: `The metric against ${key}`, ondraw: (graph) => {
        if (one.isWired) return;
        one.isWired = true;
        graph.on("plotly_click", ({ points }) => url.go("run", points[0].customdata));
      } });
      this.#charts.set(key, one);
    }
    return this.#charts.get(key);
  }

  destroy() {
    for (const { chart } of this.#charts.values()) chart.destroy();
    fill(this.element);
  }
}

function scatter(rows, { key, kind, is_log: isLog }, metric) {
  const selected = new Set(runs.selected);
  const known = rows.filter((row) => row.parameters[key] !== null && row.parameters[key] !== undefined);
  const x = known.map((row) => (kind === "number" ? row.parameters[key] : word(row.parameters[key])));
  const y = known.map((row) => row.metrics[metric.name]);
  const isLogY = Math.min(...y) > 0 && Math.max(...y) / Math.min(...y) >= 100;
  const distinct = [...new Set(x)];
  const ticks = kind === "number" && distinct.length <= 6 ? { tickvals: distinct, ticktext: distinct.map((entry) => value(entry)) } : {};
  return {
    traces: [{
      type: "scatter", mode: "markers", x, y, customdata: known.map((row) => row.run), cliponaxis: false,
      text: known.map((row) => escape(`${row.run}: ${metric.name} ${number(row.metrics[metric.name])} at ${value(row.parameters[key])}`)), hovertemplate: "%{text}<extra></extra>",
      marker: { size: known.map((row) => (selected.has(row.run) ? 10 : 8)), color: known.map((row) => (selected.has(row.run) ? token(runs.colour(row.run)) : faded("--muted", 0.55))), line: { width: 1, color: token("--surface") } },
    }],
    layout: {
      hovermode: "closest", dragmode: false, hoverlabel: { bgcolor: token("--raised"), bordercolor: token("--line-strong"), font: { color: token("--text"), size: 12 }, align: "left" },
      xaxis: { type: kind === "number" ? (isLog ? "log" : "linear") : "category", ...ticks, fixedrange: true, title: { text: escape(key.slice(key.lastIndexOf(".") + 1)) } },
      yaxis: { type: isLogY ? "log" : "linear", fixedrange: true },
    },
  };
}

/** Spearman's rank correlation; null where it says nothing. */
function correlation(rows, { key, kind }, metric) {
  if (kind !== "number") return null;
  const pairs = rows.map((row) => [row.parameters[key], row.metrics[metric.name]]).filter(([x, y]) => typeof x === "number" && typeof y === "number");
  if (pairs.length < FEWEST) return null;
  const [x, y] = [0, 1].map((side) => ranks(pairs.map((pair) => pair[side])));
  const middle = (pairs.length - 1) / 2;
  const sum = (a, b) => a.reduce((total, entry, index) => total + (entry - middle) * (b[index] - middle), 0);
  const spread = Math.sqrt(sum(x, x) * sum(y, y));
  return spread ? sum(x, y) / spread : null;
}

/** Places in the order of size; equal values share the mean of theirs. */
function ranks(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return values.map((entry) => (sorted.indexOf(entry) + sorted.lastIndexOf(entry)) / 2);
}
