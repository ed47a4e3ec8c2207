// The curves of one run on its page: those that matter first, and learning rate, speed and memory.

import { el, icon, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { PanelSet } from "./panel_set.js";
import { panelsOf } from "./panels.js";
import { url } from "./url.js";

const FIRST = 4;
const SIDES = [/(^|[_/.])(lr|learning_rate)($|[_/.\d])/, /(samples|steps|updates|tokens|images|batches)_per_second|throughput|(^|[_/])(rate|speed|fps)$/, /mem(ory)?($|[_/.])/, /(^|[_/])(seconds|time)$/];
const MARKS = ["resumed", "rewind", "signal", "failed", "micro_batches"]; // and the last best value

const sideOf = ({ names }) => SIDES.findIndex((pattern) => names.some(({ name }) => pattern.test(name)));

/** The panels of a run: `[main, side]`, the headline metric and the loss before the others. */
function split({ summary }) {
  const panels = panelsOf(summary.names ?? []).flatMap((group) => group.panels);
  const isHeadline = ({ names }) => names.some(({ name }) => name === summary.metric?.name);
  const rank = (panel) => (isHeadline(panel) ? 0 : panel.base === "loss" ? 1 : panel.base.includes("loss") ? 2 : 3);
  const main = panels.filter((panel) => sideOf(panel) < 0);
  const side = panels.filter((panel) => sideOf(panel) >= 0);
  return [main.sort((a, b) => rank(a) - rank(b)), side.sort((a, b) => sideOf(a) - sideOf(b))];
}

class Curves {
  constructor({ id, follow }, which) {
    this.id = id;
    this.which = which;
    this.set = new PanelSet({ ids: () => [id], marks: (axis) => this.#marks(axis), onloaded: follow });
    this.more = which === 0 && el("a", { class: "part-link", href: url.link("curves", "", { runs: [id] }) });
    this.reset = el("button", { class: "button small", type: "button", onclick: () => this.set.zoom(null) }, icon("reset"), "Whole range");
    this.tools = [this.reset, this.more];
    this.element = this.set.element;
    this.undo = url.listen(() => this.#showReset());
    this.#showReset();
  }

  get names() { return this.set.names; }

  #showReset() { this.reset.hidden = !this.set.range; }

  update(detail, changed) {
    this.detail = detail;
    const panels = split(detail)[this.which];
    const shown = this.which === 0 ? panels.slice(0, FIRST) : panels;
    this.set.set(shown);
    if (changed?.has("events")) this.set.refresh("live");
    if (this.more) setText(this.more, panels.length > FIRST ? `All ${count(panels.length)} panels` : "Larger, with zoom and smoothing");
  }

  #marks(axis) {
    const shift = axis.name === "relative" ? this.detail.summary.started ?? 0 : 0;
    const best = this.which === 0 ? this.detail.events.findLast((event) => event.kind === "best") : null;
    return this.detail.events.filter((event) => (MARKS.includes(event.kind) || event === best) && typeof event[axis.asked] === "number").map((event) => ({
      x: event[axis.asked] - shift, kind: event.kind, colour: "--muted", label: () => `${event.kind.replace("_", "-")}${typeof event.update === "number" ? ` at ${plural(event.update, "update")}` : ""}${event.text ? `: ${event.text}` : ""}`,
    }));
  }

  rows(data) { this.set.add(data); }
  forget() { this.set.forget(); }

  destroy() {
    this.undo();
    this.set.destroy();
  }
}

export const curveSection = {
  key: "curves", title: () => "Curves", parts: ["summary", "events"], isShown: (detail) => split(detail)[0].length > 0,
  make: (context) => new Curves(context, 0),
};

export const sideSection = {
  key: "speed", title: (detail) => titleOf(split(detail)[1]), parts: ["summary", "events"], isShown: (detail) => split(detail)[1].length > 0,
  make: (context) => new Curves(context, 1),
};

function titleOf(panels) {
  const words = ["learning rate", "speed", "memory", "time"].filter((_, index) => panels.some((panel) => sideOf(panel) === index));
  const text = words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0];
  return text[0].toUpperCase() + text.slice(1);
}
