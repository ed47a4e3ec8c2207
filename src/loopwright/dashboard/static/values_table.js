// The table of values at the cursor: a row for every run, a column for every curve in view.

import { axisText } from "./axis.js";
import { cursor } from "./cursor.js";
import { reading } from "./curve_chart.js";
import { el, fill, setText } from "./dom.js";
import { runs } from "./runs.js";

export class ValuesTable {
  #frame = null;

  constructor(root, panels, axis) {
    this.panels = panels;
    this.axis = axis;
    this.title = el("h2");
    this.body = el("div", { class: "values-body" });
    this.element = el("aside", { class: "values-table card", "aria-label": "Values at the cursor", hidden: true }, el("header", {}, this.title, el("span", { class: "hint" }, "p holds the cursor")), this.body);
    root.append(this.element);
    this.stop = cursor.listen(() => this.#soon());
  }

  show(isShown) {
    this.element.hidden = !isShown;
    document.body.classList.toggle("has-values", isShown);
    this.#soon();
  }

  #soon() {
    cancelAnimationFrame(this.#frame);
    if (!this.element.hidden) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (cursor.x === null) {
      setText(this.title, "Values at the cursor");
      return fill(this.body, el("p", { class: "hint" }, "Move the pointer over a chart, or focus one and press → to read the values of all charts in view at one place."));
    }
    setText(this.title, `${axisText(this.axis(), cursor.x)}${cursor.isPinned ? " (held)" : ""}`);
    const rows = new Map();
    const names = [];
    for (const panel of this.panels()) {
      for (const { curve, at } of panel.readings) {
        if (!names.includes(curve.name)) names.push(curve.name);
        if (!rows.has(curve.run)) rows.set(curve.run, new Map());
        rows.get(curve.run).set(curve.name, at);
      }
    }
    return fill(this.body, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "run"), names.map((name) => el("th", { class: "number" }, name)))),
      el("tbody", {}, [...rows].map(([run, cells]) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: "swatch", style: { "--swatch": runs.colour(run) } }), ` ${run}`),
        names.map((name) => el("td", { class: "number" }, cells.has(name) ? reading(cells.get(name)) : "")))))));
  }

  destroy() {
    this.stop();
    document.body.classList.remove("has-values");
  }
}
