// The columns of the table of runs: what each says, how it is sorted, and which are worth showing.

import { el, fill, icon } from "./dom.js";
import { age, count, duration, moment, number, value } from "./format.js";
import { runs } from "./runs.js";
import { url } from "./url.js";

const STATES = { running: "live", finished: "good", stopped: "warn", interrupted: "warn", failed: "bad", crashed: "bad", unreadable: "bad" };
const STATE_HINTS = {
  interrupted: "Stopped by a signal after saving: start the same command to resume it", crashed: "Its process ended without recording a reason: start the same command to resume it",
  failed: "It ended with an error: the run's page shows the traceback", unreadable: "Its files cannot be read", stopped: "A callback or a limit ended it early",
};

/** A run's state as a coloured word. */
export function statePill(run) {
  const hint = run.problems?.length ? run.problems.join("\n") : run.reason ?? STATE_HINTS[run.state] ?? "";
  return el("span", { class: `pill ${run.problems?.length ? "bad" : STATES[run.state] ?? ""}`, title: hint }, run.problems?.length ? "damaged" : run.state);
}

/** A bar with the share done, and what is left. */
export function progressBar(run) {
  const { fraction = null } = run.progress ?? {};
  const isOver = run.state !== "running";
  const text = progressText(run);
  if (fraction === null) return el("span", { class: "muted" }, text);
  return el("div", { class: "progress", title: progressHint(run) },
    el("div", { class: `track ${isOver ? "is-over" : ""}`, role: "progressbar", "aria-valuenow": Math.round(fraction * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress" },
      el("div", { class: "done", style: { width: `${Math.min(100, 100 * fraction)}%` } })),
    el("span", { class: "progress-text" }, text));
}

export function progressText(run) {
  const { fraction = null, update = null } = run.progress ?? {};
  const share = fraction === null ? (update === null ? "–" : `${count(update)} upd.`) : `${Math.floor(fraction * 100)} %`;
  return run.state === "running" && typeof run.seconds_left === "number" ? `${share} · ${duration(run.seconds_left)} left` : share;
}

function progressHint({ progress }) {
  const [unit, limit] = Object.entries(progress.limit ?? {})[0] ?? [];
  const now = { epoch: progress.epoch, update: progress.update, step: progress.step, sample: progress.sample }[unit];
  return unit ? `${unit} ${count(now)} of ${count(limit)}` : "";
}

const FIXED = [
  { key: "run", title: "Run", isSticky: true, class: "name", valueOf: (run) => run.id, text: (run) => `${run.id}\n${run.name}\n${runs.selected.includes(run.id) ? runs.slot(run.id) : ""}`, draw: drawName, isAlways: true },
  { key: "state", title: "State", text: (run) => `${run.state}${run.problems?.length ?? ""}${run.reason ?? ""}`, draw: (cell, run) => fill(cell, statePill(run)), valueOf: (run) => (run.problems?.length ? "damaged" : run.state) },
  { key: "progress", title: "Progress", class: "wide", text: (run) => `${progressText(run)}${run.state}${run.progress?.fraction}`, draw: (cell, run) => fill(cell, progressBar(run)), valueOf: (run) => run.progress?.fraction ?? null },
  { key: "eta", title: "Left", align: "number", isOptional: true, text: (run) => duration(run.seconds_left), valueOf: (run) => run.seconds_left },
  { key: "best", title: "Best", hint: "The best value of the run's headline metric", text: (run) => (run.metric ? `${run.metric.name} ${run.metric.value} ${run.metric.epoch}` : "–"), draw: drawBest, valueOf: (run) => run.metric?.value ?? null },
  { key: "started", title: "Started", align: "number", text: (run) => `${age(run.started)}`, draw: (cell, run) => drawMoment(cell, run.started), valueOf: (run) => run.started },
  { key: "updated", title: "Updated", align: "number", isOptional: true, text: (run) => age(run.updated), draw: (cell, run) => drawMoment(cell, run.updated), valueOf: (run) => run.updated },
  { key: "seconds", title: "Trained", align: "number", hint: "Time spent in training", text: (run) => duration(run.seconds), valueOf: (run) => run.seconds },
  { key: "device", title: "Device", text: (run) => run.device ?? "–", valueOf: (run) => run.device },
  { key: "epoch", title: "Epoch", align: "number", isOptional: true, text: (run) => count(run.progress?.epoch), valueOf: (run) => run.progress?.epoch ?? null },
  { key: "update", title: "Update", align: "number", isOptional: true, text: (run) => count(run.progress?.update), valueOf: (run) => run.progress?.update ?? null },
  { key: "rate", title: "Updates/s", align: "number", isOptional: true, text: (run) => number(run.rate, 3), valueOf: (run) => run.rate },
  { key: "interface", title: "Interface", isOptional: true, text: (run) => run.interface ?? "–", valueOf: (run) => run.interface },
  { key: "name", title: "Name", isOptional: true, text: (run) => run.name ?? "–", valueOf: (run) => run.name },
  { key: "folder", title: "Folder", isOptional: true, text: (run) => folderOf(run) || "–", valueOf: folderOf },
  { key: "tags", title: "Tags", text: (run) => (run.tags ?? []).join("\n"), draw: (cell, run) => fill(cell, (run.tags ?? []).map((tag) => el("span", { class: "tag" }, tag))), valueOf: (run) => run.tags ?? [] },
];

function folderOf(run) {
  return run.id.includes("/") ? run.id.slice(0, run.id.lastIndexOf("/")) : "";
}

function drawName(cell, run) {
  const isSelected = runs.selected.includes(run.id);
  const [folder, last] = [folderOf(run), run.id.slice(folderOf(run).length + 1) || run.id];
  fill(cell, el("span", { class: "run-name" },
    el("span", { class: "swatch", style: isSelected ? { "--swatch": runs.colour(run.id) } : {} }),
    el("a", { href: url.link("run", run.id), title: run.name && run.name !== run.id ? `${run.id} (${run.name})` : run.id, tabindex: -1 }, folder && el("span", { class: "faint" }, `${folder}/`), folder ? last : run.id),
    run.problems?.length ? el("span", { class: "warning", title: run.problems.join("\n") }, icon("warning")) : null));
}

function drawBest(cell, run) {
  if (!run.metric) return fill(cell, "–");
  const { name, value: best, epoch, mode } = run.metric;
  return fill(cell, el("span", { class: "best", title: `${mode === null ? "Last" : mode === "min" ? "Lowest" : "Highest"} ${name}${epoch === null ? "" : `, in epoch ${epoch}`}` },
    el("span", { class: "number" }, best === null ? "NaN" : number(best)), el("span", { class: "faint" }, name)));
}

function drawMoment(cell, wall) {
  fill(cell, age(wall));
  cell.title = moment(wall);
}

const OWN = new Set(FIXED.map((column) => column.key));

const configColumn = (key) => ({
  key: OWN.has(key) ? `config.${key}` : key, title: key.slice(key.lastIndexOf(".") + 1), prefix: key.includes(".") ? key.slice(0, key.lastIndexOf(".")) : null, isConfig: true,
  has: (run) => key in (run.config ?? {}), text: (run) => (key in (run.config ?? {}) ? value(run.config[key]) : ""), valueOf: (run) => run.config?.[key] ?? null,
});

const lastColumn = (name) => ({
  key: `last.${name}`, title: name, prefix: "last", align: "number", isOptional: true, hint: `The last value of ${name}`,
  text: (run) => (name in (run.last ?? {}) ? (run.last[name] === null ? "NaN" : number(run.last[name])) : ""), valueOf: (run) => run.last?.[name] ?? null,
});

/** All columns there are for these runs: fixed ones, every config key, the last value of every metric. */
export function allColumns(rows) {
  const keys = new Set();
  const names = new Set();
  for (const run of rows) {
    for (const key of Object.keys(run.config ?? {})) keys.add(key);
    for (const name of run.names ?? []) names.add(name);
  }
  const has = (key) => rows.filter((run) => key in (run.config ?? {})).length > rows.length / 3;
  const config = [...keys].sort((a, b) => has(b) - has(a) || a.localeCompare(b, "en")).map(configColumn); // what few have comes last
  for (const column of config) column.align = rows.every((run) => typeof (column.valueOf(run) ?? 0) === "number") ? "number" : null;
  return [...FIXED, ...config, ...[...names].sort().map(lastColumn)];
}

/** True where all runs that have a value have the same one: such a column tells nothing that distinguishes runs. */
export function isEqual(column, rows) {
  const known = rows.filter((run) => !run.problems?.length && (!column.isConfig || column.has(run)));
  if (known.length < 2 || column.isAlways) return false;
  const first = JSON.stringify(column.valueOf(known[0]) ?? null);
  return known.every((run) => JSON.stringify(column.valueOf(run) ?? null) === first);
}

/** Compare two rows by a column; what is missing comes last in either direction. */
export function compareBy(column, isDescending) {
  const plain = (entry) => (Array.isArray(entry) ? entry.join(" ") : entry);
  return (a, b) => {
    const [x, y] = [plain(column.valueOf(a)), plain(column.valueOf(b))];
    const [noX, noY] = [x === null || x === undefined || x === "", y === null || y === undefined || y === ""];
    if (noX || noY) return noX - noY;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return isDescending ? -order : order;
  };
}
