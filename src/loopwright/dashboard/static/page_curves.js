// Curves of the selected runs: panels in groups, all with one x axis, one zoom and one cursor.

import { api } from "./api.js";
import { AXES } from "./axis.js";
import { CurveSettings } from "./curve_settings.js";
import { cursor } from "./cursor.js";
import { el, empty, fill, icon, menu, setText } from "./dom.js";
import { count } from "./format.js";
import { Panel } from "./panel.js";
import { panelsOf } from "./panels.js";
import { progressText, statePill } from "./run_columns.js";
import { follow, runs } from "./runs.js";
import { url } from "./url.js";
import { ValuesTable } from "./values_table.js";

const MARKS = ["resumed", "rewind", "signal", "failed", "stopped", "micro_batches", "best", "checkpoint", "evaluation"];
const MOST_MARKS = 240; // of one kind, over all runs
const FIRST_MARKS = ["resumed", "rewind", "signal", "failed", "best", "checkpoint", "micro_batches"];

export const curvesPage = {
  path: "curves", title: "Curves", isInNavigation: true,
  keys: [["Tab", "go from chart to chart"], ["← →", "move the cursor (Shift: by ten)"], ["+ -", "zoom at the cursor"], ["0", "show everything again"], ["v", "table of values"], ["p", "hold the cursor"], ["l", "logarithmic scales"], ["/", "search panels"]],
  mount: (root) => new CurvesView(root),
};

class CurvesView extends CurveSettings {
  #undo = [];
  #panels = new Map(); // base → Panel
  #events = new Map(); // run → events
  #signature = "";
  #marks = null;

  constructor(root) {
    super();
    this.root = root;
    this.#undo.push(runs.listen((what, detail) => this.#changed(what, detail)), url.listen((keys) => { if (keys) this.refresh(); }));
    this.refresh();
  }

  unmount() {
    for (const undo of this.#undo) undo();
    for (const panel of this.#panels.values()) panel.destroy();
    this.values?.destroy();
    follow(null);
    cursor.pin(false);
    cursor.set(null);
  }

  get ids() { return runs.selected; }
  // --- what panels call

  /** The first answer says where the stream of new rows begins; later ones add runs that it did not have. */
  loaded(cursors) {
    this.cursors = { ...cursors, ...this.cursors };
    this.#follow();
  }

  /** Marks of the selected runs; made once for all panels. */
  events() {
    const signature = JSON.stringify([this.ids, this.axis.name, this.marks, this.ids.map((id) => this.#events.get(id)?.length)]);
    if (this.#marks?.signature !== signature) this.#marks = { signature, list: this.#makeMarks() };
    return this.#marks.list;
  }

  #makeMarks() {
    const { asked, name } = this.axis;
    const kinds = new Set(this.marks);
    const shift = (id) => (name === "relative" ? runs.get(id)?.started ?? 0 : 0);
    return this.ids.flatMap((id) => telling(this.#events.get(id) ?? [], Math.max(4, MOST_MARKS / this.ids.length)).filter((event) => kinds.has(event.kind) && typeof event[asked] === "number")
      .map((event) => ({ x: event[asked] - shift(id), kind: event.kind, run: id, colour: runs.colour(id), label: () => eventText(event, id) })));
  }

  get marks() { return url.list("marks") ?? (url.get("marks") === "" ? [] : FIRST_MARKS); }

  // --- changes

  #changed(what, detail) {
    if (what === "rows") return this.#rows(detail);
    if (what === "reread") return this.#reread(detail);
    if (what === "selection" || what === "runs") this.refresh(what === "runs" ? "live" : "now");
  }

  #rows(data) {
    if (data.events?.length) this.#addEvents(data.run, data.events);
    for (const panel of this.#panels.values()) panel.add(data);
  }

  #reread({ run, cursor: place }) {
    this.cursors = { ...this.cursors, [run]: place };
    this.#events.delete(run);
    this.#loadEvents();
    for (const panel of this.#panels.values()) panel.forget();
    this.#follow();
  }

  #follow() {
    const cursors = Object.fromEntries(this.ids.filter((id) => id in (this.cursors ?? {})).map((id) => [id, this.cursors[id]]));
    const names = this.groups.flatMap((group) => group.panels.flatMap((panel) => panel.names.map(({ name }) => name)));
    if (Object.keys(cursors).length && !this.range) follow({ cursors, names: [...new Set(names)].sort(), x: this.axis.asked });
    else follow(null);
  }

  refresh(kind = "now") {
    if (!this.ids.length) return this.#nothing();
    this.groups = this.#wantedGroups();
    const signature = JSON.stringify([this.groups.map((group) => [group.title, group.panels]), url.get("closed"), url.get("wide")]);
    if (!this.frame) this.#build();
    if (signature !== this.#signature) this.#layout(signature);
    const asked = JSON.stringify([this.ids, this.axis.asked]);
    if (this.axis.name !== this.axisName) { // a place on the axis before is none on this one
      this.axisName = this.axis.name;
      cursor.pin(false);
      cursor.set(null);
    }
    if (asked !== this.asked) {
      this.asked = asked;
      this.cursors = {};
      this.#loadEvents();
    }
    this.#words();
    for (const panel of this.#panels.values()) panel.refresh(kind);
    this.#follow();
  }

  #nothing() {
    for (const panel of this.#panels.values()) panel.destroy();
    this.#panels.clear();
    this.frame = null;
    this.#signature = "";
    follow(null);
    const hasRuns = runs.all.length > 0;
    fill(this.root, hasRuns ? el("div", {}, empty("No run is selected", "Choose the runs whose curves you want to see in the table of runs: tick the boxes, or press Space."),
      el("p", { class: "centred" }, el("a", { class: "button primary", href: url.link("runs") }, "Choose runs")))
      : empty("No runs yet", "A run appears here as soon as training starts: pass a run_dir to the trainer."));
  }

  async #loadEvents() {
    const ids = this.ids.filter((id) => !this.#events.has(id));
    if (!ids.length) return;
    try {
      const answer = await api("events", { run: ids });
      for (const id of ids) this.#addEvents(id, answer.events[id] ?? []);
    } catch {
      return; // curves without marks are still curves; the run's page says what is wrong with it
    }
    for (const panel of this.#panels.values()) panel.refresh();
  }

  /** Events come with answers and in the stream, some of them twice. */
  #addEvents(run, events) {
    const byId = new Map([...(this.#events.get(run) ?? []), ...events].map((event) => [event.id, event]));
    this.#events.set(run, [...byId.values()]);
  }

  #wantedGroups() {
    const names = new Set(this.ids.flatMap((id) => runs.get(id)?.names ?? []));
    const search = url.get("find", "").toLowerCase().split(/\s+/).filter(Boolean);
    const isWanted = (panel) => search.every((word) => panel.names.some(({ name }) => name.toLowerCase().includes(word)));
    return panelsOf(names).map((group) => ({ ...group, panels: group.panels.filter(isWanted) })).filter((group) => group.panels.length);
  }

  // --- elements

  #build() {
    this.chips = el("div", { class: "chips", role: "list", "aria-label": "Selected runs" });
    this.find = el("input", { class: "input", type: "search", placeholder: "Search panels by name", "aria-label": "Search panels", value: url.get("find", ""), oninput: () => url.set({ find: this.find.value || null }) });
    this.x = el("select", { "aria-label": "x axis", onchange: () => url.set({ x: this.x.value === "step" ? null : this.x.value, zoom: null }) });
    this.smooth = el("input", { type: "range", min: 0, max: CurveSettings.smoothest, step: 1, "aria-label": "Smoothing", oninput: () => url.set({ smooth: Number(this.smooth.value) || null }) });
    this.smoothText = el("span", { class: "smooth-text" });
    this.reset = el("button", { class: "button", type: "button", title: "Show everything (0)", onclick: () => this.zoom(null) }, icon("reset"), "Whole range");
    this.valuesButton = el("button", { class: "button", type: "button", title: "Table of values at the cursor (v)", onclick: () => this.#toggleValues() }, "Values");
    this.groupsHost = el("div", { class: "groups" });
    this.frame = [
      this.chips,
      el("div", { class: "toolbar" }, el("div", { class: "search" }, icon("search"), this.find), el("label", { class: "field" }, "x", this.x), el("label", { class: "field", title: "A running mean, drawn over the raw curve. A point loses half of its weight after this many points. Values of epochs are not smoothed." }, "Smooth", this.smooth, this.smoothText),
        menu("Scales", () => this.#scaleMenu()), menu([icon("flag"), "Marks"], () => this.#markMenu()), this.valuesButton, this.reset),
      this.groupsHost,
    ];
    fill(this.root, el("h1", { class: "visually-hidden" }, "Curves"), this.frame);
    this.values = new ValuesTable(this.root, () => [...this.#panels.values()], () => this.axis);
  }

  #toggleValues() { url.set({ values: url.get("values") ? null : "1" }); }

  #scaleMenu() {
    const choice = (text, key, on) => el("label", { class: "choice" }, el("input", { type: "checkbox", checked: on(), onchange: (event) => url.set({ [key]: event.target.checked ? (key === "logy" ? ["*"] : "1") : null }) }), text);
    return [choice("Logarithmic y, all panels", "logy", () => (url.list("logy") ?? []).includes("*")), choice("Logarithmic x", "logx", () => url.get("logx") !== null),
      choice("Fit y to the lines: spikes may leave the panel", "fit", () => url.get("fit") !== null)];
  }

  #markMenu() {
    const chosen = new Set(this.marks);
    return MARKS.map((kind) => el("label", { class: "choice" }, el("input", {
      type: "checkbox", checked: chosen.has(kind),
      onchange: (event) => {
        if (event.target.checked) chosen.add(kind); else chosen.delete(kind);
        url.set({ marks: [...chosen] });
      },
    }), kind.replace("_", "-")));
  }

  /** Panels in their groups; panels that stay are moved, not made anew. */
  #layout(signature) {
    this.#signature = signature;
    const closed = new Set(url.list("closed") ?? []);
    const wide = new Set(url.list("wide") ?? []);
    const kept = new Set();
    fill(this.groupsHost, this.groups.length ? this.groups.map((group) => {
      const title = group.title || "metrics";
      const isClosed = closed.has(title);
      const head = el("button", { class: "group-head", type: "button", "aria-expanded": String(!isClosed), onclick: () => this.toggle("closed", title) }, icon("chevron"), el("h2", {}, title), el("span", { class: "faint" }, String(group.panels.length)));
      const panels = isClosed ? [] : group.panels.map((definition) => {
        const key = JSON.stringify(definition);
        kept.add(key);
        if (!this.#panels.has(key)) this.#panels.set(key, new Panel(definition, this));
        const { element } = this.#panels.get(key);
        element.classList.toggle("is-wide", wide.has(definition.base));
        return element;
      });
      return el("section", { class: "panel-group" }, head, el("div", { class: "panel-grid", hidden: isClosed }, panels));
    }) : empty(url.get("find") ? "No panel has this name" : "Nothing is logged yet", url.get("find") ? "The search looks into the names of metrics; words in any order." : "Curves appear here with the first logged value."));
    for (const [key, panel] of this.#panels) if (!kept.has(key)) { panel.destroy(); this.#panels.delete(key); }
  }

  #words() {
    this.#chipRow();
    const names = [...new Set(this.ids.flatMap((id) => runs.get(id)?.step_names ?? []))].sort();
    const choices = [...AXES, ...names.map((name) => [name, name])];
    if (this.x.dataset.choices !== JSON.stringify(choices)) {
      this.x.dataset.choices = JSON.stringify(choices);
      fill(this.x, AXES.map(([key, text]) => el("option", { value: key }, text)), el("optgroup", { label: "another metric" }, names.map((name) => el("option", { value: name }, name))));
    }
    this.x.value = url.get("x", "step");
    this.smooth.value = url.get("smooth", "0");
    setText(this.smoothText, this.halfLife ? `${count(this.halfLife)} points` : "off");
    this.reset.hidden = !this.range;
    this.valuesButton.setAttribute("aria-pressed", String(Boolean(url.get("values"))));
    this.values.show(Boolean(url.get("values")));
    if (document.activeElement !== this.find) this.find.value = url.get("find", "");
  }

  #chipRow() {
    const signature = JSON.stringify(this.ids.map((id) => [id, runs.get(id)?.state, progressText(runs.get(id) ?? {})]));
    if (this.chips.dataset.signature === signature) return;
    this.chips.dataset.signature = signature;
    const isFocused = this.chips.contains(document.activeElement);
    fill(this.chips, this.ids.map((id) => {
      const run = runs.get(id);
      return el("span", { class: "chip", role: "listitem" }, el("span", { class: "swatch", style: { "--swatch": runs.colour(id) } }), el("a", { href: url.link("run", id), title: id }, id), run.state === "running" ? el("span", { class: "chip-live", title: progressText(run) }, progressText(run).split(" · ")[0]) : run.state === "finished" ? null : statePill(run),
        el("button", { class: "chip-close", type: "button", "aria-label": `Deselect ${id}`, onclick: () => runs.toggle(id, false) }, icon("close")));
    }), el("a", { class: "button plain", href: url.link("runs") }, "Choose runs"));
    if (isFocused) this.chips.querySelector("button")?.focus();
  }

  key(event) {
    if (event.key === "v") this.#toggleValues();
    else if (event.key === "p") cursor.pin();
    else if (event.key === "0" || event.key === "Escape") this.zoom(null);
    else if (event.key === "l") url.set({ logy: (url.list("logy") ?? []).includes("*") ? null : ["*"] });
    else return;
    event.preventDefault();
  }
}

/** Of the best ones only the last, which is the best; of very many alike, some evenly. */
function telling(events, most) {
  const best = events.findLast((event) => event.kind === "best");
  return MARKS.flatMap((kind) => {
    const alike = kind === "best" ? (best ? [best] : []) : events.filter((event) => event.kind === kind);
    const every = Math.ceil(alike.length / most);
    return alike.filter((_, index) => (alike.length - 1 - index) % every === 0);
  });
}

function eventText(event, id) {
  const words = event.kind.replace("_", "-");
  const place = typeof event.update === "number" ? ` at update ${count(event.update)}` : "";
  return `${words}${place}${event.text ? `: ${event.text}` : ""} (${id})`;
}
