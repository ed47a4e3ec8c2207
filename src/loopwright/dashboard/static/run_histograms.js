// Histograms of a run as heat maps: steps from left to right, values upwards, the darker the more of the values.

import { api } from "./api.js";
import { Chart, escape } from "./chart.js";
import { el, setText } from "./dom.js";
import { count, number, plural } from "./format.js";
import { pictureMenu } from "./picture_menu.js";
import { token } from "./theme.js";

const COLUMNS = 120; // histograms that are drawn
const BINS = 60;
const PAUSE = 2500; // ms between two readings while new ones come

const shown = ({ media }) => media.filter(({ kind, items }) => kind === "histogram" && items.length);

export const histogramSection = {
  key: "histograms", title: () => "Histograms", parts: ["media"], isShown: (detail) => shown(detail).length > 0, make: (context) => new HistogramView(context),
};

class HistogramView {
  #maps = new Map();

  constructor({ id }) {
    this.id = id;
    this.element = el("div", { class: "panel-grid" });
  }

  update(detail) {
    for (const { name, items } of shown(detail)) {
      if (!this.#maps.has(name)) {
        const map = new HeatMap(this.id, name);
        this.#maps.set(name, map);
        this.element.append(map.element);
      }
      this.#maps.get(name).set(items);
    }
  }

  forget() { for (const map of this.#maps.values()) map.forget(); }
  destroy() { for (const map of this.#maps.values()) map.destroy(); }
}

class HeatMap {
  #newest = null; // what is there
  #loaded = null; // what is drawn
  #timer = null;
  #last = 0;
  isVisible = false;

  constructor(run, name) {
    this.run = run;
    this.name = name;
    this.note = el("span", { class: "hint" });
    this.problem = el("div", { class: "panel-problem", hidden: true });
    const host = el("div", { class: "panel-plot" });
    this.element = el("section", { class: "panel card", "aria-label": name, data: { histogram: name } }, el("header", { class: "panel-head" }, el("h3", { title: name }, name), this.note, el("span", { class: "space" }), pictureMenu(() => this.chart, name)), host, this.problem);
    this.chart = new Chart(host, { label: `Histograms of ${name}`, onvisible: (is) => { this.isVisible = is; this.#load(); } });
  }

  set(items) {
    this.#newest = `${items.length} ${items.at(-1).id}`;
    this.#load();
  }

  forget() { this.#loaded = null; this.#load(); }

  #load() {
    if (!this.isVisible || this.#loaded === this.#newest) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#read(), Math.max(0, this.#last + PAUSE - performance.now()));
  }

  async #read() {
    const kind = this.#loaded === null ? "now" : "live";
    this.#loaded = this.#newest;
    this.#last = performance.now();
    try {
      const answer = await api("contents", { name: this.name, points: COLUMNS }, { of: this.run });
      this.problem.hidden = true;
      setText(this.note, answer.every > 1 ? `1 of ${count(answer.every)} histograms` : plural(answer.items.length, "step"));
      this.chart.set(() => (answer.items.length > 1 ? heatMap(answer.items) : bars(answer.items[0])), kind);
    } catch (error) {
      this.problem.hidden = false;
      setText(this.problem, error.message);
    }
  }

  destroy() {
    clearTimeout(this.#timer);
    this.chart.destroy();
  }
}

/** The traces of a heat map. Every histogram has edges of its own: their counts are spread over common bins. */
function heatMap(items) {
  const contents = items.map(({ content }) => content);
  const low = Math.min(...contents.map(({ edges }) => edges[0]));
  const high = Math.max(...contents.map(({ edges }) => edges.at(-1)));
  const width = (high - low) / BINS || 1;
  const columns = contents.map((content) => spread(content, low, width));
  const z = Array.from({ length: BINS }, (_, bin) => columns.map((column) => (column[bin] > 0 ? Math.sqrt(column[bin]) : null)));
  const text = Array.from({ length: BINS }, (_, bin) => columns.map((column) => `${(100 * column[bin]).toPrecision(2)} %`));
  const steps = items.map(({ step }) => step);
  const edges = borders(steps);
  return {
    traces: [{
      type: "heatmap", x: edges, y: Array.from({ length: BINS + 1 }, (_, bin) => low + bin * width), z, text, zmin: 0, showscale: false, hoverongaps: false,
      customdata: Array.from({ length: BINS }, () => steps), hovertemplate: "step %{customdata}<br>values about %{y:.3g}<br>%{text} of them<extra></extra>",
      colorscale: [[0, token("--accent-soft")], [1, token("--accent")]],
    }],
    layout: { hovermode: "closest", hoverlabel: hoverLook(), xaxis: { title: { text: "step" }, showgrid: false, range: [edges[0], edges.at(-1)], ...(edges.at(-1) >= 10_000 && { tickformat: "~s" }) }, yaxis: { range: [low, low + BINS * width] } },
  };
}

const hoverLook = () => ({ bgcolor: token("--raised"), bordercolor: token("--line-strong"), font: { color: token("--text"), size: 12 } });

/** The share of the values in each of the common bins; a bin of the histogram gives each the part that lies in it. */
function spread({ edges, counts }, low, width) {
  const total = counts.reduce((sum, entry) => sum + entry, 0) || 1;
  const bins = new Array(BINS).fill(0);
  counts.forEach((entry, index) => {
    if (!entry) return;
    const [from, to] = [(edges[index] - low) / width, (edges[index + 1] - low) / width];
    if (to <= from) { bins[Math.min(BINS - 1, Math.floor(from))] += entry / total; return; }
    for (let bin = Math.floor(from); bin < Math.min(BINS, Math.ceil(to)); bin += 1) {
      bins[bin] += ((Math.min(to, bin + 1) - Math.max(from, bin)) / (to - from)) * (entry / total);
    }
  });
  return bins;
}

/** Edges of columns around steps: half way to the next. */
function borders(steps) {
  const middle = steps.slice(1).map((step, index) => (step + steps[index]) / 2);
  const first = steps[0] - (middle[0] - steps[0]);
  return [first, ...middle, steps.at(-1) + (steps.at(-1) - middle.at(-1))];
}

function bars({ step, content: { edges, counts } }) {
  return {
    traces: [{ type: "bar", x: counts.map((_, index) => (edges[index] + edges[index + 1]) / 2), width: counts.map((_, index) => edges[index + 1] - edges[index]), y: counts, marker: { color: token("--accent") }, hovertemplate: `${escape("about")} %{x:.3g}: %{y}<extra></extra>` }],
    layout: { hovermode: "closest", hoverlabel: hoverLook(), bargap: 0, xaxis: { title: { text: `values at step ${number(step)}` } } },
  };
}
