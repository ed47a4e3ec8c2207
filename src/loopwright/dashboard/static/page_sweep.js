// A folder of runs, or the selected ones: how a metric depends on the settings that vary among them.

import { api } from "./api.js";
import { el, empty, fill, setText } from "./dom.js";
import { count, number, plural, value } from "./format.js";
import { statePill } from "./run_columns.js";
import { runs } from "./runs.js";
import { ParallelChart, ScatterGrid } from "./sweep_charts.js";
import { Table } from "./table.js";
import { url } from "./url.js";

const PAUSE = 3000; // ms between two readings while runs go on
const AT_ONCE = 200; // where there is nothing to show yet
const SELECTION = "selection"; // of the select that chooses the runs; folders begin with "/"

export const sweepPage = {
  path: "sweep", title: "Sweep", isInNavigation: true,
  keys: [["↑ ↓", "go from run to run in the table"], ["Space", "select the run"], ["Enter", "open the run"]],
  mount: (root) => new SweepPage(root),
};

class SweepPage {
  #undo = [];
  #timer = null;
  #asked = null;

  constructor(root) {
    this.root = root;
    this.#undo.push(runs.listen((what) => this.#changed(what)), url.listen((keys) => { if (keys) this.refresh(); }));
    this.refresh();
  }

  unmount() {
    this.isGone = true;
    clearTimeout(this.#timer);
    for (const undo of this.#undo) undo();
    this.parallel?.destroy();
    this.scatter?.destroy();
  }

  key(event) {
    if (["ArrowDown", "ArrowUp"].includes(event.key)) { this.table?.focus(); event.preventDefault(); }
  }

  #changed(what) {
    if (what === "selection") return this.refresh();
    if (what === "runs") this.#timer ??= setTimeout(() => { this.#timer = null; this.#load(); }, this.charts?.hidden === false ? PAUSE : AT_ONCE);
  }

  /** The folder to show: that of the address, else the one with the most runs. */
  get folder() {
    const chosen = url.get("folder");
    if (chosen !== null) return chosen;
    const numbers = new Map();
    for (const { id } of runs.all) if (id.includes("/")) numbers.set(id.slice(0, id.lastIndexOf("/")), (numbers.get(id.slice(0, id.lastIndexOf("/"))) ?? 0) + 1);
    const [folder = "", most = 0] = [...numbers].sort((a, b) => b[1] - a[1])[0] ?? [];
    return most > 1 ? folder : "";
  }

  get isSelection() { return url.get("only") === SELECTION; }

  refresh() {
    const asked = this.isSelection ? "" : this.folder;
    if (asked !== this.#asked) { this.#asked = asked; this.answer = null; this.#load(); }
    else this.#show();
  }

  async #load() {
    const asked = this.#asked;
    try {
      const answer = await api("sweep", { folder: asked });
      if (this.isGone || asked !== this.#asked) return;
      this.answer = answer;
      this.#show();
    } catch (error) {
      if (this.isGone || asked !== this.#asked) return;
      this.frame = null;
      fill(this.root, empty("The sweep cannot be shown", error.message));
    }
  }

  // --- what is shown

  /** Rows of the chosen runs, and the parameters that still vary among them. */
  #data() {
    const chosen = new Set(runs.selected);
    const rows = this.answer.rows.filter((row) => !this.isSelection || chosen.has(row.run));
    const known = (key) => rows.map((row) => row.parameters[key] ?? null).filter((entry) => entry !== null);
    const parameters = this.answer.parameters.filter(({ key }) => new Set(known(key).map((entry) => JSON.stringify(entry))).size > 1);
    const metrics = this.answer.metrics.filter(({ name }) => rows.some((row) => typeof row.metrics[name] === "number"));
    const name = url.get("metric");
    const metric = metrics.find((one) => one.name === name) ?? metrics.find((one) => one.name === this.answer.metric) ?? metrics[0] ?? null;
    return { rows, parameters, metrics, metric };
  }

  #show() {
    if (!this.answer) return;
    if (!runs.all.length) return this.#nothing("No runs yet", "A run appears as soon as training starts: pass a run_dir to the trainer.");
    if (!this.frame) this.#build();
    const data = this.#data();
    this.#controls(data);
    const { rows, parameters, metric } = data;
    const isEnough = rows.length > 1 && parameters.length > 0 && metric !== null;
    this.charts.hidden = !isEnough;
    this.why.hidden = isEnough;
    fill(this.why, isEnough ? null : why(data, this.isSelection));
    if (isEnough) {
      const drawn = rows.filter((row) => typeof row.metrics[metric.name] === "number");
      const left = rows.length - drawn.length;
      setText(this.note, left ? `${plural(left, "run")} without a value of ${metric.name} ${left === 1 ? "is" : "are"} in the table only.` : "");
      this.parallel.set({ rows: drawn, parameters, metric });
      this.scatter.set({ rows: drawn, parameters, metric });
    }
    this.#showTable(data);
  }

  #nothing(title, text) {
    this.frame = null;
    fill(this.root, empty(title, text));
  }

  #build() {
    this.count = el("span", { class: "muted", role: "status" });
    this.from = el("select", { "aria-label": "Runs", onchange: () => this.#choose(this.from.value) });
    this.metric = el("select", { "aria-label": "Metric", onchange: () => url.set({ metric: this.metric.value, rank: null }) });
    this.why = el("div", {});
    this.note = el("p", { class: "hint" });
    this.parallel = new ParallelChart();
    this.scatter = new ScatterGrid();
    const holder = el("div");
    this.charts = el("div", { class: "run-body" },
      el("section", { class: "run-part", "aria-label": "Parallel coordinates" }, el("header", { class: "part-head" }, el("h2", {}, "Parallel coordinates"), el("span", { class: "hint" }, "The better the run, the stronger its line. Click a point to select the run."), this.parallel.tools), this.parallel.element, this.note),
      el("section", { class: "run-part", "aria-label": "Metric against each parameter" }, el("header", { class: "part-head" }, this.scatterTitle = el("h2"), el("span", { class: "hint" }, "Strongest first, by rank correlation")), this.scatter.element));
    this.frame = [el("div", { class: "page-head" }, el("h1", {}, "Sweep"), this.count), el("div", { class: "toolbar" }, el("label", { class: "field" }, "Runs", this.from), el("label", { class: "field" }, "Metric", this.metric)), this.why, this.charts,
      el("section", { class: "run-part", "aria-label": "Runs of the sweep" }, el("header", { class: "part-head" }, el("h2", {}, "Runs")), holder)];
    fill(this.root, el("div", { class: "run-body sweep" }, this.frame));
    this.table = new Table(holder, {
      label: "Runs of the sweep", key: (row) => row.run, onopen: (id) => url.go("run", id), onsort: (key) => this.#sortBy(key),
      selection: { has: (id) => runs.selected.includes(id), set: (ids, is) => runs.select(is ? [...runs.selected, ...ids] : runs.selected.filter((id) => !ids.includes(id))) },
    });
  }

  #choose(from) {
    if (from === SELECTION) url.set({ only: SELECTION, rank: null });
    else url.set({ only: null, folder: from.slice(1), metric: null, rank: null });
  }

  #controls({ rows, metrics, metric }) {
    setText(this.count, plural(rows.length, "run"));
    const folders = this.answer.folders.filter(({ folder }, index, all) => folder !== "" || index === all.findIndex((one) => one.folder === ""));
    this.#options(this.from, [...folders.map(({ folder, runs: number_ }) => [`/${folder}`, `${folder || "all runs"} (${count(number_)})`]), [SELECTION, `selected runs (${count(runs.selected.length)})`]], this.isSelection ? SELECTION : `/${this.folder}`);
    this.#options(this.metric, metrics.map(({ name, mode }) => [name, mode ? name : `${name} (last value)`]), metric?.name ?? "");
    setText(this.scatterTitle, `${metric?.name ?? "Metric"} against each parameter`);
  }

  #options(select, options, chosen) {
    const signature = JSON.stringify(options);
    if (select.dataset.signature !== signature) {
      select.dataset.signature = signature;
      fill(select, options.map(([key, text]) => el("option", { value: key }, text)));
    }
    select.value = chosen;
  }

  // --- the table

  #sort({ metric }) {
    const chosen = url.get("rank");
    if (chosen) return { key: chosen.replace(/^-/, ""), isDescending: chosen.startsWith("-") };
    return { key: `metric.${metric?.name}`, isDescending: metric?.mode === "max" };
  }

  #sortBy(key) {
    const { key: now, isDescending } = this.#sort(this.#data());
    url.set({ rank: now === key && !isDescending ? `-${key}` : key });
  }

  #showTable(data) {
    const { rows, parameters, metrics, metric } = data;
    const sort = this.#sort(data);
    const columns = columnsOf(parameters, metric, metrics.filter((one) => one !== metric && one.mode));
    const by = columns.find((column) => column.key === sort.key) ?? columns[0];
    const shown = [...rows].sort(order(by, sort.isDescending));
    this.table.set({ groups: [{ title: null, rows: shown }], columns, sort });
  }
}

function columnsOf(parameters, metric, others) {
  const column = ({ name, mode }) => ({ key: `metric.${name}`, title: name, prefix: mode ? "best" : "last", align: "number", valueOf: (row) => row.metrics[name] ?? null, text: (row) => (name in row.metrics ? (row.metrics[name] === null ? "NaN" : number(row.metrics[name])) : "") });
  return [
    { key: "run", title: "Run", isSticky: true, class: "name", valueOf: (row) => row.run, text: (row) => `${row.run}\n${runs.selected.includes(row.run) ? runs.slot(row.run) : ""}`, draw: drawName },
    ...(metric ? [column(metric)] : []),
    ...parameters.map(({ key, title, kind }) => ({ key, title, prefix: key === title ? null : key.slice(0, Math.max(0, key.length - title.length - 1)) || null, align: kind === "number" ? "number" : null, valueOf: (row) => row.parameters[key] ?? null, text: (row) => (row.parameters[key] === null || row.parameters[key] === undefined ? "" : value(row.parameters[key])) })),
    ...others.map(column),
    { key: "state", title: "State", valueOf: (row) => row.state, text: (row) => row.state, draw: (cell, row) => fill(cell, statePill(runs.get(row.run) ?? row)) },
  ];
}

function drawName(cell, row) {
  const isSelected = runs.selected.includes(row.run);
  fill(cell, el("span", { class: "run-name" }, el("span", { class: "swatch", style: isSelected ? { "--swatch": runs.colour(row.run) } : {} }), el("a", { href: url.link("run", row.run), title: row.run, tabindex: -1 }, row.name)));
}

/** What has no value comes last in either direction. */
function order(column, isDescending) {
  return (a, b) => {
    const [x, y] = [column.valueOf(a), column.valueOf(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const by = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return isDescending ? -by : by;
  };
}

function why({ rows, parameters, metric }, isSelection) {
  if (rows.length < 2) return empty("A sweep needs two or more runs", isSelection ? "Select more runs in the table of runs, or choose a folder above." : "Put the runs of a sweep into one folder to compare them here by their settings:", isSelection ? null : 'for lr in (0.1, 0.01, 0.001):\n    Trainer(..., run_dir=f"runs/sweep/lr={lr}", config={"lr": lr})');
  if (!parameters.length) return empty("These runs have the same settings", "No setting varies, so there is nothing to compare a metric with. Pass settings to the trainer with config=, and they are compared here.", 'Trainer(..., config={"lr": lr, "width": width})');
  if (!metric) return empty("No run has a metric yet", "Charts appear here with the first value that is logged at the end of an epoch or an evaluation.");
  return null;
}
