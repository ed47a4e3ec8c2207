// The runs, which of them are selected, and their colours: one for all pages.

import { api, live } from "./api.js";
import { url } from "./url.js";

const COLOURS = 8; // --run-0 … --run-7 in style.css
const FIRST_SELECTED = 5;

const listeners = new Set();
let byId = new Map();
let about = { root: "runs", path: "", exists: true, is_single: false };
let slots = recall();

function recall() {
  try {
    return new Map(JSON.parse(sessionStorage.getItem("loopwright.colours") ?? "[]"));
  } catch {
    return new Map(); // storage is forbidden or holds something else: colours then are those of a new tab
  }
}

function remember() {
  try {
    sessionStorage.setItem("loopwright.colours", JSON.stringify([...slots]));
  } catch { /* the same: nothing is lost but the colours after a reload */ }
}

const notify = (what, detail) => { for (const listener of listeners) listener(what, detail); };

export const runs = {
  get about() { return about; },
  get all() { return [...byId.values()]; },
  get(id) { return byId.get(id) ?? null; },

  /** Call `listener("runs" | "selection" | "rows" | "reread", detail)` after every change. */
  listen(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },

  async load() {
    const { runs: found, ...rest } = await api("runs");
    about = rest;
    byId = new Map(found.map((run) => [run.id, run]));
    notify("runs");
  },

  /** Ids in the order of selection. Without a choice in the address: the running ones and the newest. */
  get selected() {
    const chosen = url.list("runs");
    if (chosen) return chosen.filter((id) => byId.has(id));
    const order = (run) => [run.state === "running" ? 0 : 1, -(run.started ?? 0)];
    const newest = runs.all.filter((run) => run.names?.length).sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
    return newest.slice(0, FIRST_SELECTED).map((run) => run.id);
  },

  get isChosen() { return url.get("runs") !== null; },

  select(ids) {
    url.set({ runs: [...new Set(ids)] });
    notify("selection");
  },

  toggle(id, isSelected = !runs.selected.includes(id)) {
    const others = runs.selected.filter((other) => other !== id);
    runs.select(isSelected ? [...others, id] : others);
  },

  /** The number of a run's colour: it stays while runs come and go in the selection, and over a reload. */
  slot(id) {
    if (!slots.has(id)) {
      const used = new Array(COLOURS).fill(0);
      for (const other of runs.selected) if (slots.has(other)) used[slots.get(other)] += 1;
      slots.set(id, used.indexOf(Math.min(...used)));
      remember();
    }
    return slots.get(id);
  },

  /** A run's colour as a CSS value. */
  colour(id) { return `var(--run-${runs.slot(id)})`; },

  /** The name to show: the folder where several runs have the same name. */
  title(id) {
    const run = byId.get(id);
    return run?.id ?? id;
  },
};

// --- live ---------------------------------------------------------------------------------------------------------

let wanted = null; // {names, x, cursors} of the page that shows curves
let stream = null;
export const connection = { state: "open" };

function query() {
  if (!wanted) return {};
  const ids = Object.keys(wanted.cursors);
  return { run: ids, cursor: ids.map((id) => wanted.cursors[id]), name: wanted.names, x: wanted.x };
}

function changed({ runs: found = [], removed = [] }) {
  for (const run of found) byId.set(run.id, run);
  for (const id of removed) byId.delete(id);
  notify("runs", { ids: found.map((run) => run.id), removed });
}

function moved(what, data) {
  if (wanted && data.run in wanted.cursors) wanted.cursors[data.run] = data.cursor;
  notify(what, data);
}

/** Follow the runs; `follow` adds rows of curves. */
export function startLive() {
  stream = live(query, {
    runs: changed, rows: (data) => moved("rows", data), reread: (data) => moved("reread", data), gone: ({ run }) => changed({ removed: [run] }),
  }, (state) => {
    connection.state = state;
    if (state === "open") catchUp().catch(() => {});
    notify("connection", state);
  });
}

/** What changed before the stream was open: it only sends what changes from then on. */
async function catchUp() {
  const { runs: found, ...rest } = await api("runs");
  about = rest;
  const ids = new Set(found.map((run) => run.id));
  const news = found.filter((run) => JSON.stringify(run) !== JSON.stringify(byId.get(run.id)));
  const removed = [...byId.keys()].filter((id) => !ids.has(id));
  if (news.length || removed.length) changed({ runs: news, removed });
}

/**
 * Ask for new rows of these metrics after these cursors: `{names, x, cursors: {run: cursor}}`, or null for none.
 * A run that is followed already goes on from where the stream is: nothing is sent twice.
 */
export function follow(what) {
  const asked = () => JSON.stringify({ ...query(), cursor: null });
  const before = asked();
  const known = wanted && what && wanted.x === what.x ? wanted.cursors : {};
  wanted = what && { ...what, cursors: Object.fromEntries(Object.entries(what.cursors).map(([id, cursor]) => [id, known[id] ?? cursor])) };
  if (asked() !== before) stream?.restart();
}

/** Make sure the colours of the selection do not depend on who asks first. */
export function assignColours() {
  for (const id of runs.selected) runs.slot(id);
}
