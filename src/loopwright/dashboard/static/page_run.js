// One run: what it is, how it went, what it left.

import { api } from "./api.js";
import { el, empty, fill } from "./dom.js";
import { RunHead } from "./run_head.js";
import { curveSection, sideSection } from "./run_curves.js";
import { eventSection } from "./run_events.js";
import { histogramSection } from "./run_histograms.js";
import { failureSection, logSection } from "./run_log.js";
import { mediaSection } from "./run_media.js";
import { checkpointSection, configSection, environmentSection, manifestSection } from "./run_record.js";
import { timeSection } from "./run_time.js";
import { follow, runs } from "./runs.js";
import { url } from "./url.js";

const PAUSE = 8000; // ms between two readings of a run that goes on
const PAUSES = { checkpoint: 2500, best: 2500, rewind: 2500, signal: 2500, resumed: 500, stopped: 500, finished: 500, failed: 500 }; // after an event
const AT_ONCE = 500;

// A section is `{key, title(detail), parts, isShown(detail), make(context)}`; `make` gives `{element, update(detail, changed),
// rows?(data), key?(event), destroy?()}`. `parts` are the entries of the answer that it shows: it is updated when one changes.
const SECTIONS = [failureSection, curveSection, mediaSection, histogramSection, sideSection, timeSection, checkpointSection, eventSection, logSection, configSection, environmentSection, manifestSection];

export const runPage = {
  path: "run", title: "Run", isInNavigation: false,
  keys: [["← →", "earlier or later images"], ["n", "newest images"], ["Tab", "go from part to part"], ["/", "search the log"]],
  mount: (root) => new RunPage(root, url.rest),
};

class RunPage {
  #undo = [];
  #built = new Map(); // key → {section, view, element}
  #timer = null;
  #last = 0;

  constructor(root, id) {
    this.root = root;
    this.id = id;
    this.#undo.push(runs.listen((what, detail) => this.#changed(what, detail)));
    this.#load();
  }

  unmount() {
    this.isGone = true;
    clearTimeout(this.#timer);
    for (const undo of this.#undo) undo();
    for (const { view } of this.#built.values()) view.destroy?.();
    this.spy?.disconnect();
    follow(null);
    url.set({ at: null, part: null });
  }

  key(event) {
    for (const { view } of this.#built.values()) if (view.key?.(event)) return event.preventDefault();
  }

  // --- data

  async #load() {
    this.#last = performance.now();
    let detail;
    if (!runs.get(this.id) && !this.detail) return this.#failed({ status: 404, message: `There is no run “${this.id}” in this folder. It may have been moved or removed. If it appears, it is shown here.` });
    try {
      detail = await api("run", {}, { of: this.id });
    } catch (error) {
      if (!this.isGone) this.#failed(error);
      return;
    }
    if (this.isGone) return;
    const before = this.detail;
    if (before) detail.log.lines = joined(before.log.lines, detail.log.lines);
    this.detail = detail;
    const changed = new Set(Object.keys(detail).filter((part) => !before || JSON.stringify(before[part]) !== JSON.stringify(detail[part])));
    if (!this.head) this.#build();
    this.#show(changed);
    this.#follow(before ? null : detail.cursor);
    if (!before) this.#goTo(url.get("part"), "auto");
  }

  #failed(error) {
    if (this.head) return; // what is shown stays; the head of the page says that the server is away
    fill(this.root, empty(error.status === 404 ? "There is no such run" : "The run cannot be shown", error.message),
      el("p", { class: "centred" }, el("a", { class: "button primary", href: url.link("runs") }, "All runs")));
  }

  /** Read the run again, soon, but not more often than is good for the server. */
  #reload(pause = PAUSE) {
    const wait = Math.max(0, this.#last + pause - performance.now());
    if (this.due !== undefined && this.due <= performance.now() + wait) return;
    clearTimeout(this.#timer);
    this.due = performance.now() + wait;
    this.#timer = setTimeout(() => { this.due = undefined; this.#load(); }, wait);
  }

  #changed(what, detail) {
    if (what === "runs" && !this.detail && runs.get(this.id)) this.#reload(AT_ONCE);
    else if (what === "runs" && this.detail && detail?.removed?.includes(this.id)) this.head.gone();
    else if (what === "runs" && this.detail && (!detail || detail.ids.includes(this.id))) {
      const summary = runs.get(this.id);
      const isOver = summary && summary.state !== this.detail.summary.state;
      if (summary) this.detail.summary = summary;
      if (summary) this.#show(new Set(["summary"]));
      this.#reload(isOver ? AT_ONCE : PAUSE);
    } else if (what === "selection") this.head?.update(this.detail);
    else if (what === "rows" && detail.run === this.id) this.#rows(detail);
    else if (what === "reread" && detail.run === this.id) {
      for (const { view } of this.#built.values()) view.forget?.();
      this.#follow(detail.cursor);
      this.#reload(0);
    }
  }

  #rows(data) {
    if (!this.detail) return;
    const changed = new Set();
    if (data.events?.length) changed.add("events");
    const known = new Set(this.detail.events.map((event) => event.id));
    this.detail.events.push(...(data.events ?? []).filter((event) => !known.has(event.id)));
    for (const item of data.media ?? []) { this.#addMedia(item); changed.add("media"); }
    const last = this.detail.log.lines.at(-1)?.id ?? 0;
    const lines = (data.log ?? []).filter((line) => line.id > last);
    if (lines.length) { this.detail.log.lines.push(...lines); changed.add("log"); }
    for (const { view } of this.#built.values()) view.rows?.(data);
    if (changed.size) this.#show(changed);
    for (const { kind } of data.events ?? []) if (kind in PAUSES) this.#reload(PAUSES[kind]);
  }

  #addMedia({ name, kind, ...item }) {
    const { media } = this.detail;
    let group = media.find((one) => one.name === name && one.kind === kind);
    if (!group) media.push(group = { name, kind, items: [] });
    group.items = group.items.filter((one) => one.step !== item.step || one.position !== item.position);
    group.items.push(item);
    group.items.sort((a, b) => a.step - b.step || a.position - b.position);
  }

  #follow(cursor = null) {
    if (cursor) this.cursor = cursor;
    if (this.cursor) follow({ cursors: { [this.id]: this.cursor }, names: this.#names(), x: url.get("x", "step") === "relative" ? "wall" : url.get("x", "step") });
  }

  #names() { return [...new Set([...this.#built.values()].flatMap(({ view }) => view.names ?? []))].sort(); }

  // --- elements

  #build() {
    this.head = new RunHead(this.id);
    this.contents = el("nav", { class: "contents", "aria-label": "Parts of this page" });
    this.body = el("div", { class: "run-body" });
    this.nothing = el("section", { class: "run-part card coming" });
    fill(this.root, this.head.element, el("div", { class: "run-layout" }, this.contents, this.body));
    this.spy = new IntersectionObserver((entries) => this.#spied(entries), { rootMargin: "-60px 0px -70% 0px" });
  }

  #show(changed) {
    const { detail } = this;
    if (changed.has("summary") || changed.has("sentences") || changed.has("problems")) this.head.update(detail);
    let isNew = false;
    for (const section of SECTIONS) {
      const isShown = section.isShown(detail);
      const built = this.#built.get(section.key);
      if (isShown && !built) { this.#add(section); isNew = true; }
      else if (!isShown && built) { this.#remove(section.key); isNew = true; }
      else if (isShown && section.parts.some((part) => changed.has(part))) built.view.update(detail, changed);
    }
    if (isNew || !this.#built.size) this.#arrange();
  }

  #add(section) {
    const view = section.make({ id: this.id, reload: () => this.#reload(0), follow: () => this.#follow() });
    const title = el("h2", {}, section.title(this.detail));
    const element = el("section", { class: "run-part", id: `part-${section.key}`, "aria-label": section.title(this.detail) }, el("header", { class: "part-head" }, title, view.tools), view.element);
    this.#built.set(section.key, { section, view, element });
    this.spy.observe(element);
    queueMicrotask(() => view.update(this.detail, null));
  }

  #remove(key) {
    const { view, element } = this.#built.get(key);
    view.destroy?.();
    element.remove();
    this.#built.delete(key);
  }

  /** Sections in their order, and the list of contents. */
  #arrange() {
    const order = SECTIONS.map((section) => this.#built.get(section.key)).filter(Boolean);
    order.forEach(({ element }, index) => { if (this.body.children[index] !== element) this.body.insertBefore(element, this.body.children[index] ?? null); });
    fill(this.contents, order.map(({ section }) => el("a", { href: url.link("run", this.id, { part: section.key }), data: { part: section.key }, onclick: (event) => this.#jump(event, section.key) }, section.short ?? section.title(this.detail))));
    const isBare = !order.some(({ section }) => ["curves", "media", "histograms", "log", "checkpoints"].includes(section.key));
    if (isBare) { fill(this.nothing, coming(this.detail)); this.body.prepend(this.nothing); } else this.nothing.remove();
    this.#follow();
  }

  #jump(event, key) {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    url.set({ part: key });
    this.#goTo(key, "smooth");
  }

  #goTo(key, behavior) {
    const element = key && this.#built.get(key)?.element;
    if (element) queueMicrotask(() => element.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : behavior, block: "start" }));
  }

  /** Of the parts at the upper edge of the window, the last is where the reader is. */
  #spied(entries) {
    for (const { target, isIntersecting } of entries) target.dataset.isHere = isIntersecting ? "1" : "";
    const here = [...this.body.children].filter((element) => element.dataset.isHere).at(-1)?.id.slice(5);
    for (const link of this.contents.children) link.classList.toggle("is-here", link.dataset.part === here);
  }
}

/** Lines of the log that are known and are no longer in the answer stay. */
function joined(known, lines) {
  const first = lines[0]?.id ?? 0;
  return [...known.filter(({ id }) => id !== null && id < first), ...lines];
}

/** What a run without anything will show, and how it gets there. */
function coming({ summary, problems }) {
  const isRunning = summary.state === "running";
  if (problems.length || summary.state === "unreadable") return [el("h2", {}, "Its record cannot be read"), el("p", { class: "muted" }, "The reason is above. Other runs are not affected, and nothing here writes to this one.")];
  return [el("h2", {}, isRunning ? "Nothing is recorded yet" : "Nothing was recorded"),
    el("p", { class: "muted" }, isRunning ? "This page fills up as the run goes on: curves with the first logged step, checkpoints with the first save, the log with the first line. It also shows what you log yourself:" : "The run ended before its first log point. This page shows what a run logs, and what you log yourself:"),
    el("pre", { class: "command" }, el("code", {}, 'trainer.log_step({"accuracy": accuracy})\ntrainer.log_images("samples", [source, generated, target])'))];
}
