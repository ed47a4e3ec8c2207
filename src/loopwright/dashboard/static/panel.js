// One panel of the curves page: head with what can be done, and the chart. It loads its curves when it comes into view.

import { address, isLive } from "./api.js";
import { download } from "./chart.js";
import { CurveChart } from "./curve_chart.js";
import { addRows, keyOf, loadCurves, pointsFor } from "./curve_data.js";
import { el, icon, menu, setText } from "./dom.js";
import { isVisible } from "./draw.js";
import { count } from "./format.js";
import { runs } from "./runs.js";

/**
 * A panel of `{base, names}` for a view: `view` gives `ids`, `axis`, `range`, `halfLife`, `isLogY(base)`, `events()` and
 * is told of `zoom(range)`, `toggleLog(base)`, `widen(base)`, `loaded(cursors)`.
 */
export class Panel {
  #series = new Map();
  #asked = null; // what was last asked of the server
  #control = null;
  #later = null;
  #shown = { signature: "", events: null };

  constructor(definition, view) {
    this.definition = definition;
    this.view = view;
    this.note = el("button", { class: "thin-note", type: "button", hidden: true, title: "" });
    this.problem = el("div", { class: "panel-problem", hidden: true });
    this.log = el("button", { class: "button plain small", type: "button", title: "Logarithmic scale", onclick: () => view.toggleLog(definition.base) }, "log");
    this.wide = el("button", { class: "button plain icon-only", type: "button", "aria-label": "Wide", title: "Wide", onclick: () => view.widen(definition.base) }, icon("expand"));
    const host = el("div", { class: "panel-plot" });
    this.element = el("section", { class: "panel card", "aria-label": definition.base, data: { panel: definition.base } },
      el("header", { class: "panel-head" }, el("h3", { title: definition.names.map(({ name }) => name).join(", ") }, definition.base), this.#keys(), this.note,
        el("span", { class: "space" }), this.log, this.wide, menu(icon("download"), () => this.#exports(), { button: { class: "button plain icon-only", "aria-label": "Export", title: "Export" } })),
      host, this.problem);
    this.chart = new CurveChart(host, { label: `Curves of ${definition.base}`, onzoom: (range) => view.zoom(range), onvisible: (is) => { if (is) this.refresh(); } });
  }

  /** Which line is training and which is evaluation, where both are here. */
  #keys() {
    const { names } = this.definition;
    if (names.length < 2) return null;
    return el("span", { class: "line-keys" }, names.map(({ name, word, kind }) => el("span", { title: name }, el("span", { class: `key ${kind}` }), word)));
  }

  #exports() {
    const { base, names } = this.definition;
    const picture = (format) => async () => download(await this.chart.image(format, { title: base }), `${base}.${format}`);
    return [
      el("button", { class: "choice", type: "button", onclick: picture("png") }, "Picture (PNG)"), el("button", { class: "choice", type: "button", onclick: picture("svg") }, "Drawing (SVG)"),
      isLive && el("a", { class: "choice", href: address("csv", { run: this.view.ids, name: names.map(({ name }) => name) }), download: `${base.replaceAll("/", "_")}.csv` }, "All values (CSV)"),
    ];
  }

  /** Bring the panel to what the view says now; loads only what is in view and not here yet. */
  refresh(kind = "now") {
    if (!isVisible(this.chart.chart.graph)) return;
    const { ids, axis, range } = this.view;
    const wanted = JSON.stringify([ids, axis.name, range]);
    if (wanted !== this.#asked) this.#load(wanted, { ids, axis, range });
    if (this.#isChanged()) this.#show(kind);
  }

  /** True where the view says something else than what was drawn last; new values are another matter. */
  #isChanged() {
    return this.#signature() !== this.#shown.signature || this.view.events() !== this.#shown.events;
  }

  #signature() {
    const { ids, axis, range, halfLife, isFitted } = this.view;
    return JSON.stringify([ids, ids.map((id) => runs.slot(id)), axis.name, axis.type, axis.title, range, halfLife, isFitted, this.view.isLogY(this.definition.base)]);
  }

  async #load(wanted, { ids, axis, range }) {
    this.#asked = wanted;
    this.#control?.abort();
    this.#control = new AbortController();
    this.element.classList.add("is-loading");
    this.points = pointsFor(this.element.clientWidth - 70, ids.length * this.definition.names.length);
    try {
      const answer = await loadCurves({ ids, names: this.definition.names.map(({ name }) => name), axis, range, points: this.points, signal: this.#control.signal });
      this.element.classList.remove("is-loading");
      this.#series = answer.series;
      this.#say(null);
      this.view.loaded(answer.cursors);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.element.classList.remove("is-loading");
      this.#asked = null;
      this.#say(error.message);
    }
    this.#show("now");
  }

  #say(text) {
    this.problem.hidden = !text;
    setText(this.problem, text ?? "");
  }

  /** New rows of the live stream. */
  add(data) {
    if (!this.#asked || !this.#control) return;
    const mine = new Set(this.definition.names.map(({ name }) => name));
    const own = (rows) => Object.fromEntries(Object.entries(rows ?? {}).filter(([name]) => mine.has(name)));
    const { axis, range } = this.view;
    if (!axis.isClock) return this.#forgetLater();
    if (addRows(this.#series, { run: data.run, steps: own(data.steps), epochs: own(data.epochs) }, { axis, range, points: this.points })) this.#show("live");
  }

  /** Against another metric, new points may be anywhere between the others: the curve is read anew, now and then. */
  #forgetLater() {
    this.#later ??= setTimeout(() => {
      this.#later = null;
      this.forget();
    }, 3000);
  }

  /** The curves on the server are others now: ask again. */
  forget() {
    this.#asked = null;
    this.refresh();
  }

  #curves() {
    const { ids, halfLife } = this.view;
    const found = [];
    for (const run of ids) {
      for (const { name, kind, word } of this.definition.names) {
        const series = this.#series.get(keyOf({ run, name, level: "step" })) ?? this.#series.get(keyOf({ run, name, level: "epoch" }));
        if (series) found.push({ run, series, kind, halfLife, colour: runs.colour(run), name, label: runs.title(run), word: this.definition.names.length > 1 ? word : "" });
      }
    }
    return found;
  }

  #show(kind) {
    const { axis, range, isFitted } = this.view;
    const isLog = this.view.isLogY(this.definition.base);
    const curves = this.#curves();
    const events = this.view.events();
    const drawn = new Set(curves.map((curve) => curve.run));
    this.chart.set({ curves, axis, range, isLog, isFitted, events: events.filter(({ run }) => !run || drawn.has(run)) }, kind);
    this.#shown = { signature: this.#signature(), events };
    this.log.setAttribute("aria-pressed", String(isLog));
    this.#noteThinning(curves);
  }

  #noteThinning(curves) {
    const every = Math.max(1, ...curves.map((curve) => curve.series.every));
    this.note.hidden = every === 1;
    setText(this.note, `1 of ${count(every)} points`);
    this.note.title = `Each point of the line is the mean of up to ${count(every)} values, and the band shows the range from the smallest to the largest. Zoom in to see every value.`;
  }

  /** True where something of it can be drawn: for the table of values. */
  get readings() { return isVisible(this.chart.chart.graph) ? this.chart.readings() : []; }

  destroy() {
    clearTimeout(this.#later);
    this.#control?.abort();
    this.chart.destroy();
    this.element.remove();
  }
}
