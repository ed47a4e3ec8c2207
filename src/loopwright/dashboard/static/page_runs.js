// The table of runs.

import { download } from "./chart.js";
import { el, empty, fill, icon, menu, setText } from "./dom.js";
import { makeFilter } from "./filter.js";
import { plural } from "./format.js";
import { allColumns, compareBy, isEqual } from "./run_columns.js";
import { runs } from "./runs.js";
import { Table } from "./table.js";
import { url } from "./url.js";

const firstRun = (folder) => `trainer = Trainer(model, optimizer, loss,
                  run_dir=${JSON.stringify(`${folder.replace(/\/$/, "")}/first`)})
trainer.train(data, num_epochs=3)`;
const GROUPS = ["state", "device", "folder", "interface", "tags"];

export const runsPage = {
  path: "runs", title: "Runs", isInNavigation: true,
  keys: [["↑ ↓", "go from run to run"], ["Space", "select the run"], ["Shift ↑ ↓", "select several"], ["Enter", "open the run"], ["a", "select all shown"], ["n", "select none"], ["c", "curves of the selection"], ["/", "filter"]],
  mount: (root) => new RunsView(root),
};

class RunsView {
  #undo = [];

  constructor(root) {
    this.root = root;
    this.#undo.push(runs.listen((what) => { if (what !== "rows") this.refresh(); }), url.listen((keys) => { if (keys) this.refresh(); }));
    const clock = setInterval(() => this.refresh(), 10_000); // ages
    this.#undo.push(() => clearInterval(clock));
    this.refresh();
  }

  unmount() { for (const undo of this.#undo) undo(); }

  key(event) {
    if (event.key === "a") runs.select([...runs.selected, ...this.shown.map((run) => run.id)]);
    else if (event.key === "n") runs.select([]);
    else if (event.key === "c") url.go("curves");
    else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key)) this.table?.focus();
    else return;
    event.preventDefault();
  }

  refresh() {
    if (document.hidden && this.table) return;
    if (!runs.all.length) {
      this.table = null;
      return fill(this.root, this.#nothing());
    }
    if (!this.table) this.#build();
    this.#update();
  }

  #nothing() {
    const { exists, root } = runs.about;
    const title = exists === false ? `There is no folder “${root}” yet` : `No runs in “${root}” yet`;
    return empty(title, "A run appears here as soon as training starts. Pass a folder to the trainer:", firstRun(root));
  }

  #build() {
    this.count = el("span", { class: "muted", role: "status" });
    this.problem = el("span", { class: "hint is-bad", role: "alert" });
    this.input = el("input", {
      class: "input", type: "search", placeholder: "Filter: words, lr>0.01, state=running, -tags=old", "aria-label": "Filter runs", value: url.get("q", ""),
      oninput: () => url.set({ q: this.input.value || null }),
    });
    this.group = el("select", { "aria-label": "Group by", onchange: () => url.set({ group: this.group.value || null }) });
    this.equal = el("button", { class: "button", type: "button", onclick: () => url.set({ equal: url.get("equal") ? null : "shown" }) });
    this.compare = el("a", { class: "button" }, "Compare");
    this.curves = el("a", { class: "button primary" }, "Curves");
    const holder = el("div");
    fill(this.root,
      el("div", { class: "page-head" }, el("h1", {}, "Runs"), this.count),
      el("div", { class: "toolbar" }, el("div", { class: "search" }, icon("search"), this.input),
        el("label", { class: "field" }, "Group by", this.group), this.equal,
        menu([icon("columns"), "Columns"], () => this.#columnMenu()),
        el("button", { class: "button plain icon-only", type: "button", "aria-label": "Save the table as CSV", title: "Save the table as CSV", onclick: () => this.#save() }, icon("download")), el("span", { class: "space" }), this.compare, this.curves),
      this.problem, holder);
    this.table = new Table(holder, {
      label: "Runs", key: (run) => run.id, onopen: (id) => url.go("run", id), onsort: (key) => this.#sortBy(key),
      selection: { has: (id) => this.selected.has(id), set: (ids, isSelected) => this.#select(ids, isSelected) },
    });
  }

  #select(ids, isSelected) {
    const changed = new Set(ids);
    const others = runs.selected.filter((id) => !changed.has(id));
    runs.select(isSelected ? [...runs.selected, ...ids.filter((id) => !this.selected.has(id))] : others);
  }

  get sort() {
    const text = url.get("sort", "-started");
    return { key: text.replace(/^-/, ""), isDescending: text.startsWith("-") };
  }

  #sortBy(key) {
    const isDescending = this.sort.key === key ? !this.sort.isDescending : ["started", "updated", "progress"].includes(key);
    url.set({ sort: `${isDescending ? "-" : ""}${key}` === "-started" ? null : `${isDescending ? "-" : ""}${key}` });
  }

  /** Which columns are shown: the reader's choice, else all but the optional ones; equal ones are hidden. */
  #visible(columns, rows) {
    const chosen = new Set(url.list("cols") ?? []);
    const hidden = new Set(url.list("hide") ?? []);
    const wanted = columns.filter((column) => column.isAlways || (!hidden.has(column.key) && (chosen.has(column.key) || !column.isOptional)));
    const isHiding = url.get("equal") !== "shown";
    const equal = wanted.filter((column) => (column.isConfig || ["device", "tags"].includes(column.key)) && !chosen.has(column.key) && isEqual(column, rows));
    return { shown: isHiding ? wanted.filter((column) => !equal.includes(column)) : wanted, equal };
  }

  #columnMenu() {
    const columns = allColumns(runs.all);
    const { shown, equal } = this.#visible(columns, runs.all);
    const part = (title, some) => some.length && [el("div", { class: "menu-title" }, title), some.map((column) => el("label", { class: "choice" },
      el("input", { type: "checkbox", checked: shown.includes(column), onchange: (event) => this.#choose(column, event.target.checked) }),
      column.isConfig ? column.key : column.prefix ? `${column.title} (last value)` : column.title, equal.includes(column) && !shown.includes(column) && el("span", { class: "faint" }, "equal")))];
    return [
      el("button", { class: "choice", type: "button", onclick: () => url.set({ cols: null, hide: null, equal: null }) }, icon("reset"), "As at first"),
      part("Run", columns.filter((column) => !column.isConfig && !column.prefix && !column.isAlways)),
      part("Config", columns.filter((column) => column.isConfig)), part("Metrics", columns.filter((column) => !column.isConfig && column.prefix)),
    ];
  }

  /** The rows and columns that are shown, with whole values. */
  #save() {
    const { shown } = this.#visible(allColumns(runs.all), runs.all);
    const cell = (entry) => (/[",\n]/.test(entry) ? `"${entry.replaceAll('"', '""')}"` : entry);
    const text = (entry) => (entry === null || entry === undefined ? "" : typeof entry === "object" ? (Array.isArray(entry) ? entry.join(" ") : JSON.stringify(entry)) : String(entry));
    const rows = [shown.map((column) => column.key), ...this.shown.map((run) => shown.map((column) => text(column.valueOf(run))))];
    download(`data:text/csv;charset=utf-8,${encodeURIComponent(rows.map((row) => row.map(cell).join(",")).join("\n") + "\n")}`, "runs.csv");
  }

  #choose(column, isShown) {
    const without = (list) => (list ?? []).filter((key) => key !== column.key);
    const [cols, hide] = [without(url.list("cols")), without(url.list("hide"))];
    (isShown ? cols : hide).push(column.key);
    url.set({ cols: cols.length ? cols : null, hide: hide.length ? hide : null });
  }

  #update() {
    const all = runs.all;
    const columns = allColumns(all);
    const byKey = new Map(columns.map((column) => [column.key, column]));
    this.selected = new Set(runs.selected);
    const filter = makeFilter(url.get("q", ""), {
      keys: [...byKey.keys()], valueOf: (run, key) => byKey.get(key).valueOf(run),
      textOf: (run) => [run.id, run.name, run.state, run.device, ...(run.tags ?? []), ...Object.entries(run.config ?? {}).map(([key, entry]) => `${key}=${entry}`)].join("\n").toLowerCase(),
    });
    const sorting = byKey.get(this.sort.key) ?? byKey.get("started");
    this.shown = all.filter(filter.test).sort((a, b) => compareBy(sorting, this.sort.isDescending)(a, b) || a.id.localeCompare(b.id, "en", { numeric: true }));
    const { shown, equal } = this.#visible(columns, all);
    this.table.set({ groups: this.#groups(byKey), columns: shown, sort: { ...this.sort, key: sorting.key } });
    this.#words(filter, equal, columns);
  }

  #groups(byKey) {
    const by = byKey.get(url.get("group", ""));
    if (!by) return [{ title: null, rows: this.shown }];
    const groups = new Map();
    for (const run of this.shown) {
      const entry = by.valueOf(run);
      const title = `${by.title} ${Array.isArray(entry) ? entry.join(", ") || "–" : entry === null || entry === "" ? "–" : entry}`;
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(run);
    }
    return [...groups].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([title, rows]) => ({ title, rows }));
  }

  #words(filter, equal, columns) {
    const running = runs.all.filter((run) => run.state === "running").length;
    const total = this.shown.length === runs.all.length ? plural(runs.all.length, "run") : `${this.shown.length} of ${plural(runs.all.length, "run")}`;
    setText(this.count, `${total}${running ? `, ${running} running` : ""}${this.shown.length ? "" : ": nothing matches the filter"}`);
    setText(this.problem, filter.problem ?? "");
    if (document.activeElement !== this.input) this.input.value = url.get("q", "");
    this.equal.hidden = !equal.length && url.get("equal") !== "shown";
    this.equal.setAttribute("aria-pressed", String(url.get("equal") !== "shown"));
    setText(this.equal, url.get("equal") === "shown" ? "Hide equal columns" : `${plural(equal.length, "equal column")} hidden`);
    this.equal.title = "Columns in which all runs have the same value";
    this.curves.href = url.link("curves");
    this.compare.href = url.link("compare");
    this.compare.hidden = this.selected.size < 2;
    const choices = ["", ...GROUPS, ...columns.filter((column) => column.isConfig).map((column) => column.key)];
    if ([...this.group.options].map((option) => option.value).join("\n") !== choices.join("\n")) fill(this.group, choices.map((key) => el("option", { value: key }, key === "" ? "nothing" : columns.find((column) => column.key === key)?.isConfig ? key : columns.find((column) => column.key === key)?.title ?? key)));
    this.group.value = url.get("group", "");
  }
}
