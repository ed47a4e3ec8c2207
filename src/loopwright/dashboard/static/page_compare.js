// The selected runs side by side: what differs in their settings, what came out, where their values part.

import { api } from "./api.js";
import { AXES } from "./axis.js";
import { ComparisonTable } from "./compare_table.js";
import { partings } from "./compare_partings.js";
import { el, empty, fill, icon, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { PanelSet } from "./panel_set.js";
import { panelsOf } from "./panels.js";
import { statePill } from "./run_columns.js";
import { follow, runs } from "./runs.js";
import { url } from "./url.js";

const MOST = 20; // runs that the server compares
const FIRST = 6; // panels
const PAUSE = 5000; // ms between two readings while runs go on

export const comparePage = {
  path: "compare", title: "Compare", isInNavigation: true,
  keys: [["k", "all settings, or only those that differ"], ["Tab", "go from part to part"]],
  mount: (root) => new ComparePage(root),
};

class ComparePage {
  #undo = [];
  #timer = null;
  #asked = "";
  #answer = null;
  #cursors = {};

  constructor(root) {
    this.root = root;
    this.#undo.push(runs.listen((what, detail) => this.#changed(what, detail)), url.listen((keys) => { if (keys) this.refresh(); }));
    this.refresh();
  }

  unmount() {
    this.isGone = true;
    clearTimeout(this.#timer);
    for (const undo of this.#undo) undo();
    this.panels?.destroy();
    follow(null);
  }

  key(event) {
    if (event.key !== "k" || !this.frame) return;
    this.#toggleAll();
    event.preventDefault();
  }

  get ids() { return runs.selected.slice(0, MOST); }

  #changed(what, detail) {
    if (what === "rows") return this.panels?.add(detail);
    if (what === "reread") {
      this.#cursors = { ...this.#cursors, [detail.run]: detail.cursor };
      this.panels?.forget();
      return this.#follow();
    }
    if (what === "selection") return this.refresh();
    if (what === "runs") {
      this.refresh();
      if (detail?.ids.some((id) => this.ids.includes(id))) this.#loadSoon();
    }
  }

  #loadSoon() { this.#timer ??= setTimeout(() => { this.#timer = null; this.#load(); }, PAUSE); }

  refresh() {
    const { ids } = this;
    if (ids.length < 2) return this.#nothing(ids.length);
    if (!this.frame) this.#build();
    const asked = JSON.stringify(ids);
    if (asked !== this.#asked) {
      this.#asked = asked;
      this.#answer = null;
      this.#cursors = {};
      this.#load();
    }
    this.#words();
    this.#showTable();
    this.panels.set(this.#definitions());
    if (asked !== this.panelsOf) { this.panelsOf = asked; this.panels.refresh(); }
    this.#follow();
  }

  #nothing(number) {
    this.panels?.destroy();
    this.frame = this.panels = null;
    this.#asked = "";
    follow(null);
    if (!runs.all.length) return fill(this.root, empty("No runs yet", "A run appears as soon as training starts: pass a run_dir to the trainer."));
    return fill(this.root, empty(number ? "One run is selected" : "No run is selected", `Choose ${number ? "at least one more" : "two or more"} in the table of runs. This page shows how they differ: settings, results, curves, and the first step at which their values differ.`),
      el("p", { class: "centred" }, el("a", { class: "button primary", href: url.link("runs") }, "Choose runs")));
  }

  async #load() {
    const asked = this.#asked;
    try {
      const answer = await api("compare", { run: this.ids });
      if (this.isGone || asked !== this.#asked) return;
      this.#answer = answer;
      this.problem.hidden = true;
    } catch (error) {
      if (this.isGone || asked !== this.#asked || !this.frame) return;
      this.problem.hidden = false;
      setText(this.problem, error.message);
    }
    this.#showTable();
    this.#showPartings();
  }

  // --- elements

  #build() {
    this.count = el("span", { class: "muted" });
    this.first = el("select", { "aria-label": "Run that the others are compared with", onchange: () => runs.select([this.first.value, ...runs.selected.filter((id) => id !== this.first.value)]) });
    this.all = el("button", { class: "button", type: "button", title: "All settings, or only those that differ (k)", onclick: () => this.#toggleAll() }, "All settings");
    this.x = el("select", { "aria-label": "x axis", onchange: () => url.set({ x: this.x.value === "step" ? null : this.x.value, zoom: null }) }, AXES.map(([key, text]) => el("option", { value: key }, text)));
    this.reset = el("button", { class: "button", type: "button", onclick: () => this.panels.zoom(null) }, icon("reset"), "Whole range");
    this.problem = el("div", { class: "problem", role: "alert", hidden: true });
    this.table = new ComparisonTable();
    this.partings = el("div", { class: "partings" });
    this.more = el("a", { class: "part-link" });
    this.panels = new PanelSet({ ids: () => this.ids, marks: (axis) => this.#marks(axis), onloaded: (cursors) => { this.#cursors = { ...cursors, ...this.#cursors }; this.#follow(); } });
    this.frame = [
      el("div", { class: "page-head" }, el("h1", {}, "Compare"), this.count),
      this.problem,
      el("section", { class: "run-part", "aria-label": "Settings and results" }, el("header", { class: "part-head" }, el("h2", {}, "Settings and results"), el("label", { class: "field" }, "Compared with", this.first), this.all), this.table.element),
      el("section", { class: "run-part", "aria-label": "Where they differ" }, el("header", { class: "part-head" }, el("h2", {}, "Where they differ")), this.partings),
      el("section", { class: "run-part", "aria-label": "Curves" }, el("header", { class: "part-head" }, el("h2", {}, "Curves"), this.more, el("label", { class: "field" }, "x", this.x), this.reset), this.panels.element),
    ];
    fill(this.root, el("div", { class: "run-body" }, this.frame));
    fill(this.partings, el("p", { class: "hint" }, "Comparing all values…"));
  }

  #toggleAll() { url.set({ keys: url.get("keys") ? null : "all" }); }

  #words() {
    const { ids } = this;
    const left = runs.selected.length - ids.length;
    setText(this.count, left ? `the first ${MOST} of ${plural(runs.selected.length, "selected run")}` : plural(ids.length, "run"));
    const signature = JSON.stringify(ids);
    if (this.first.dataset.signature !== signature) {
      this.first.dataset.signature = signature;
      fill(this.first, ids.map((id) => el("option", { value: id }, id)));
    }
    this.first.value = ids[0];
    this.all.setAttribute("aria-pressed", String(url.get("keys") !== null));
    this.x.value = url.get("x", "step");
    this.reset.hidden = !this.panels.range;
    const number = this.#allPanels().length;
    setText(this.more, number > FIRST ? `All ${count(number)} panels` : "Larger, with smoothing");
    this.more.href = url.link("curves");
  }

  #showTable() { this.table.set({ ids: this.ids, answer: this.#answer, isAll: url.get("keys") !== null, pill: (id) => statePill(runs.get(id)) }); }

  #showPartings() {
    if (!this.#answer) return;
    this.found = this.#answer.divergences.filter(({ first, second }) => this.ids.includes(first) && this.ids.includes(second));
    fill(this.partings, partings(this.found, this.#answer.ignored));
    this.panels.refresh();
  }

  #allPanels() {
    const names = new Set(this.ids.flatMap((id) => runs.get(id)?.names ?? []));
    const headlines = new Set(this.ids.map((id) => runs.get(id)?.metric?.name));
    const parted = new Set((this.found ?? []).flatMap(({ changes = [] }) => changes.map(({ key }) => key)));
    const has = (set) => ({ names: members }) => members.some(({ name }) => set.has(name));
    const rank = (panel) => (has(headlines)(panel) ? 0 : panel.base === "loss" ? 1 : has(parted)(panel) ? 2 : 3);
    return panelsOf(names).flatMap((group) => group.panels).sort((a, b) => rank(a) - rank(b));
  }

  #definitions() { return this.#allPanels().slice(0, FIRST); }

  /** Lines at the steps where runs part, in the colour of the run that differs from the first. */
  #marks(axis) {
    return (this.found ?? []).filter(({ at, level }) => at !== null && at !== undefined && ((level === "steps" && axis.name === "step") || (level === "epochs" && axis.name === "epoch"))).map(({ at, second, first }) => ({
      x: at, kind: "parts", colour: runs.colour(second), label: () => `differs from ${first} (${second})`,
    }));
  }

  #follow() {
    const cursors = Object.fromEntries(this.ids.filter((id) => id in this.#cursors && runs.get(id)?.state === "running").map((id) => [id, this.#cursors[id]]));
    if (this.panels && Object.keys(cursors).length && !this.panels.range) follow({ cursors, names: this.panels.names, x: this.panels.axis.asked });
    else follow(null);
  }
}
