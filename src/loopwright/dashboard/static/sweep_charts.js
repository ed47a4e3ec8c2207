// Charts of a sweep: all parameters at once on parallel axes, and the metric against each of them. A click selects a run.

import { Chart, escape } from "./chart.js";
import { el, fill, setText } from "./dom.js";
import { number, value } from "./format.js";
import { pictureMenu } from "./picture_menu.js";
import { runs } from "./runs.js";
import { faded, token } from "./theme.js";

const MOST_AXES = 9;
const MOST_LINES = 200;
const FEWEST = 4; // runs for which a correlation is said

/**
 * Parallel coordinates: an axis for every parameter and for the metric, a line for every run. Drawn as lines of plotly's
 * scatter: its own parallel coordinates need WebGL, which many remote machines lack. A click selects the run.
 */
export class ParallelChart {
  constructor() {
    this.host = el("div", { class: "parallel-plot" });
    this.note = el("p", { class: "hint" });
    this.tools = pictureMenu(() => this.chart, "parallel coordinates");
    this.element = el("div", {}, el("div", { class: "card parallel", tabindex: 0, role: "region", "aria-label": "Parallel coordinates; the table below holds the same values" }, this.host), this.note);
    this.chart = new Chart(this.host, { label: "Parallel coordinates of the runs", ondraw: (graph) => this.#wire(graph) });
  }

  set({ rows, parameters, metric }) {
    const chosen = runs.isChosen ? runs.selected.filter((id) => rows.some((row) => row.run === id)) : [];
    const signature = JSON.stringify([rows, parameters, metric, chosen]);
    if (signature === this.signature) return;
    this.signature = signature;
    const drawn = sorted(rows, metric).slice(0, MOST_LINES);
    const axes = [...parameters.slice(0, MOST_AXES - 1).map((parameter) => scale(parameter, drawn.map((row) => row.parameters[parameter.key] ?? null))), scale({ title: metric.name, kind: "number", isMetric: true }, drawn.map((row) => row.metrics[metric.name]))];
    this.host.style.setProperty("--axes", axes.length);
    const left = [parameters.length >= MOST_AXES && `The first ${MOST_AXES - 1} of ${parameters.length} parameters.`, rows.length > MOST_LINES && `The best ${MOST_LINES} of ${rows.length} runs.`];
    setText(this.note, left.filter(Boolean).join(" "));
    this.chart.set(({ width }) => parallel(drawn, axes, metric, new Set(chosen), width));
  }

  destroy() { this.chart.destroy(); }

  #wire(graph) {
    if (this.isWired) return;
    this.isWired = true;
    graph.on("plotly_click", ({ points }) => runs.toggle(points[0].data.meta));
  }
}

/** The best run first. */
function sorted(rows, { name, mode }) {
  return [...rows].sort((a, b) => (mode === "max" ? -1 : 1) * (a.metrics[name] - b.metrics[name]));
}

function parallel(rows, axes, metric, chosen, width) {
  const places = axes.map((_, index) => index);
  const isDimmed = (row) => chosen.size > 0 && !chosen.has(row.run);
  const lines = rows.map((row, index) => {
    const share = rows.length > 1 ? index / (rows.length - 1) : 0;
    const text = escape(`${row.run}: ${metric.name} ${number(row.metrics[metric.name])}`);
    return {
      type: "scatter", mode: "lines+markers", cliponaxis: false, x: places, y: axes.map(({ values, range: [low, high] }) => (values[index] - low) / (high - low)), meta: row.run, name: "", opacity: isDimmed(row) ? 0.35 : 1,
      line: { color: mixed("--accent", "--line-strong", share), width: chosen.has(row.run) ? 3.2 : 2.4 - share }, marker: { size: 5, color: mixed("--accent", "--line-strong", share) }, hovertemplate: `${text}<extra></extra>`,
    };
  });
  const room = (width - 168) / Math.max(1, axes.length - 1);
  return {
    traces: lines.reverse(), // the best above the others
    layout: {
      hovermode: "closest", dragmode: false, hoverlabel: hoverLook(), margin: { l: 84, r: 84, t: 34, b: 14 },
      xaxis: { visible: false, range: [0, axes.length - 1], fixedrange: true }, yaxis: { visible: false, range: [-0.04, 1.04], fixedrange: true },
      shapes: places.map((x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, layer: "below", line: { color: token("--line-strong"), width: 1 } })),
      annotations: axes.flatMap((axis, index) => labels(axis, index, room, index === axes.length - 1)),
    },
  };
}

/** The title above an axis, and its values beside it: to the right of the last one, where there are no lines. */
function labels({ title, ticks, range: [low, high] }, index, room, isLast) {
  const base = { showarrow: false, x: index, font: { size: 11, color: token("--muted") } };
  return [
    { ...base, y: 1, yref: "paper", yanchor: "bottom", yshift: 8, text: `<b>${escape(shorten(title, room))}</b>`, font: { size: 12.5, color: token("--text") } },
    ...ticks.map(([at, text]) => ({ ...base, y: (at - low) / (high - low), xanchor: isLast ? "left" : "right", xshift: isLast ? 8 : -8, text: escape(text), bgcolor: faded("--surface", 0.75), borderpad: 1 })),
  ];
}

const hoverLook = () => ({ bgcolor: token("--raised"), bordercolor: token("--line-strong"), font: { color: token("--text"), size: 12 }, align: "left" });

/** A colour between two of the style sheet. */
function mixed(from, to, share) {
  const parts = (name) => [1, 3, 5].map((start) => parseInt(token(name).slice(start, start + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((part, index) => Math.round(part + (b[index] - part) * share)).join(",")})`;
}

/** Values on an axis: numbers, logarithms of numbers, or places of words, with ticks where plotly cannot know them. */
function scale({ title, kind, is_log: isLog = false, isMetric = false }, entries) {
  if (kind === "number" && entries.every((entry) => typeof entry === "number")) {
    const values = isLog ? entries.map(Math.log10) : entries;
    const distinct = [...new Set(entries)].sort((a, b) => a - b);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const range = low === high ? [low - 1, high + 1] : [low, high];
    const ticks = (distinct.length <= 6 && !isMetric) || isLog ? thin(distinct, 7).map((entry) => [isLog ? Math.log10(entry) : entry, value(entry)]) : [0, 1, 2, 3, 4].map((part) => low + (part * (high - low)) / 4).map((entry) => [entry, number(entry, 3)]);
    return { title, values, range, ticks };
  }
  const order = ([, a], [, b]) => (a === null) - (b === null) || String(a).localeCompare(String(b), "en", { numeric: true });
  const words = [...new Map(entries.map((entry) => [word(entry), entry]))].sort(order).map(([text]) => text);
  return { title, values: entries.map((entry) => words.indexOf(word(entry))), range: words.length > 1 ? [0, words.length - 1] : [-1, 1], ticks: words.map((text, index) => [index, cut(text)]) };
}

const cut = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
const word = (entry) => (entry === null ? "not set" : value(entry));
const thin = (list, most) => (list.length <= most ? list : list.filter((_, index) => index % Math.ceil(list.length / most) === 0));
const shorten = (text, width) => (text.length * 7 > width ? `…${text.slice(-Math.max(6, Math.floor(width / 7)))}` : text);

/** The metric against each parameter, as small charts; a click selects the run. */
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
      const one = { note, isWired: false };
      one.element = el("section", { class: "panel card", "aria-label": key, data: { parameter: key } }, el("header", { class: "panel-head" }, el("h3", { title: key }, key), el("span", { class: "space" }), note, pictureMenu(() => one.chart, key)), host);
      one.chart = new Chart(host, { label: `The metric against ${key}`, ondraw: (graph) => {
        if (one.isWired) return;
        one.isWired = true;
        graph.on("plotly_click", ({ points }) => runs.toggle(points[0].customdata));
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
  const x = known.map((row) => (kind === "number" ? row.parameters[key] : escape(word(row.parameters[key]))));
  const y = known.map((row) => row.metrics[metric.name]);
  const isLogY = Math.min(...y) > 0 && Math.max(...y) / Math.min(...y) >= 100;
  const label = (entry) => (kind === "number" ? value(entry) : escape(cut(word(entry))));
  const words = new Map(known.map((row, index) => [x[index], row.parameters[key]]));
  const ticks = words.size <= (kind === "number" ? 6 : 12) ? { tickvals: [...words.keys()], ticktext: [...words.values()].map(label) } : {};
  return {
    traces: [{
      type: "scatter", mode: "markers", x, y, customdata: known.map((row) => row.run), cliponaxis: false,
      text: known.map((row) => escape(`${row.run}: ${metric.name} ${number(row.metrics[metric.name])} at ${value(row.parameters[key])}`)), hovertemplate: "%{text}<extra></extra>",
      marker: { size: known.map((row) => (selected.has(row.run) ? 10 : 8)), color: known.map((row) => (selected.has(row.run) ? token(runs.colour(row.run)) : faded("--muted", 0.55))), line: { width: 1, color: token("--surface") } },
    }],
    layout: {
      hovermode: "closest", dragmode: false, hoverlabel: hoverLook(),
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
