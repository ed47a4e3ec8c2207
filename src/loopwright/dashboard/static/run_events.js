// What happened to a run, in order. Long rows of evaluations and checkpoints are one line that opens.

import { el, fill } from "./dom.js";
import { count, duration, moment, plural } from "./format.js";

const WORDS = {
  started: "Started", resumed: "Resumed", checkpoint: "Checkpoint", best: "New best", evaluation: "Evaluation", rewind: "Rewound", micro_batches: "Smaller micro-batches",
  signal: "Signal", stopped: "Stopped", finished: "Finished", failed: "Failed",
};
const CLASSES = { started: "live", resumed: "live", best: "good", finished: "good", rewind: "warn", micro_batches: "warn", signal: "warn", stopped: "warn", failed: "bad" };
const ROUTINE = { evaluation: "evaluation", checkpoint: "checkpoint", best: "new best value" };
const LONGEST = 4; // routine events in a row that are shown one by one

export const eventSection = {
  key: "events", title: () => "Events", parts: ["events"], isShown: ({ events }) => events.length > 0, make: () => new EventView(),
};

class EventView {
  #open = new Set(); // rows that the reader opened

  constructor() { this.element = el("ol", { class: "timeline card" }); }

  update({ events }) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.closest("[data-row]")?.dataset.row : null;
    const start = events[0]?.wall;
    fill(this.element, rowsOf(events).map((row) => (row.length === 1 ? eventRow(row[0], start) : this.#group(row, start))));
    if (focused) this.element.querySelector(`[data-row="${focused}"] summary`)?.focus();
  }

  #group(events, start) {
    const key = String(events[0].id);
    const numbers = Object.keys(ROUTINE).map((kind) => [events.filter((event) => event.kind === kind).length, ROUTINE[kind]]).filter(([number]) => number);
    const [first, last] = [events[0], events.at(-1)];
    const inner = el("ol", { class: "timeline-inner" });
    const build = () => { if (details.open && !inner.children.length) fill(inner, events.map((event) => eventRow(event, start))); };
    const details = el("details", { open: this.#open.has(key) },
      el("summary", {}, el("span", { class: "event-kind" }, numbers.map(([number, noun]) => plural(number, noun)).join(", ")), el("span", { class: "event-place" }, typeof first.update === "number" ? `updates ${count(first.update)} to ${count(last.update)}` : "")),
      inner);
    details.addEventListener("toggle", () => { this.#open[details.open ? "add" : "delete"](key); build(); });
    build();
    return el("li", { class: "event is-group", data: { row: key } }, timeOf(first, start), el("span", { class: "event-dot" }), details);
  }
}

/** Events, with more than a few routine ones in a row put together. */
function rowsOf(events) {
  const rows = [];
  for (const event of events) {
    const last = rows.at(-1);
    if (event.kind in ROUTINE && last?.[0].kind in ROUTINE) last.push(event);
    else rows.push([event]);
  }
  return rows.flatMap((row) => (row.length > LONGEST ? [row] : row.map((event) => [event])));
}

function eventRow(event, start) {
  return el("li", { class: `event ${CLASSES[event.kind] ?? ""}`, data: { kind: event.kind } }, timeOf(event, start), el("span", { class: "event-dot" }),
    el("div", { class: "event-words" }, el("span", { class: "event-kind" }, WORDS[event.kind] ?? event.kind), el("span", { class: "event-place" }, placeOf(event)), event.text && el("span", { class: "event-text" }, event.text.split("\n")[0])));
}

const placeOf = ({ kind, update, text }) => (typeof update === "number" && (update > 0 || kind !== "started") && !/\bupdate\b/.test(text ?? "") ? `update ${count(update)}` : "");

function timeOf({ wall }, start) {
  if (!wall) return el("time", {}, "");
  const since = wall - start;
  return el("time", { title: moment(wall) }, since < 0.5 ? moment(wall).slice(11) : `+${duration(since)}`);
}
