// Settings and results of runs: a row for each key, a column for each run.

import { el, fill } from "./dom.js";
import { number, value } from "./format.js";
import { runs } from "./runs.js";
import { url } from "./url.js";

const RESULTS = 8; // metrics
const TITLES = { config: "Config", code: "Code", seed: "Seed", packages: "Packages", hardware: "Hardware", data: "Data" };
const LONG = 12; // rows of a group that are shown before "show all"

export class ComparisonTable {
  #signature = "";
  #open = new Set();

  constructor() {
    this.table = el("table", { class: "small-table compare-table" });
    this.element = el("div", { class: "card small-table-frame compare-frame", tabindex: 0, role: "region", "aria-label": "Settings and results" }, this.table);
  }

  /** `answer` is that of /api/compare, or null while it is on its way; `isAll` shows settings that are the same too. */
  set({ ids, answer, isAll, pill }) {
    const summaries = ids.map((id) => runs.get(id)).filter(Boolean);
    const signature = JSON.stringify([ids, answer, isAll, summaries.map((run) => [run.state, run.problems, run.best_values, run.config]), [...this.#open]]);
    if (signature === this.#signature) return;
    this.#signature = signature;
    this.last = { ids, answer, isAll, pill };
    const groups = [results(summaries, new Set(answer?.ignored ?? [])), settings(summaries, isAll), ...others(ids, answer)];
    fill(this.table, this.#head(ids, pill), groups.map((group) => this.#group(group, ids)));
  }

  #head(ids, pill) {
    return el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "key-column" }, ""), ids.map((id) => el("th", { scope: "col" }, el("span", { class: "run-name" }, el("span", { class: "swatch", style: { "--swatch": runs.colour(id) } }), el("a", { href: url.link("run", id), title: id }, shortName(id, ids))), pill(id)))));
  }

  #group({ title, rows, none }, ids) {
    const isLong = rows.length > LONG && title !== TITLES.config && !this.#open.has(title);
    const shown = isLong ? rows.slice(0, LONG) : rows;
    if (!rows.length && !none) return null;
    return el("tbody", { "aria-label": title }, el("tr", { class: "group" }, el("th", { colspan: ids.length + 1, scope: "rowgroup" }, title)),
      shown.map((row) => el("tr", { class: row.isSame ? "is-same" : "" }, keyCell(row.key), row.cells.map(({ text, hint = "", mark = "" }) => el("td", { class: mark, title: hint }, text)))),
      isLong && el("tr", {}, el("td", { colspan: ids.length + 1 }, el("button", { class: "button plain small", type: "button", onclick: () => { this.#open.add(title); this.set(this.last); } }, `${rows.length - LONG} more`))),
      !rows.length && el("tr", {}, el("td", { colspan: ids.length + 1, class: "muted" }, none)));
  }
}

/** The part of a path that tells runs apart: a folder that all share is left out. */
function shortName(id, ids) {
  const folder = id.slice(0, id.lastIndexOf("/") + 1);
  return folder && ids.every((other) => other.startsWith(folder)) ? id.slice(folder.length) : id;
}

function keyCell(key) {
  const at = key.lastIndexOf(".") + 1;
  return el("th", { scope: "row", class: "key-column", title: key }, at > 0 && el("span", { class: "faint" }, key.slice(0, at)), key.slice(at));
}

/** Best values; the best of all runs stands out. Speed and memory are left out: no two runs have the same. */
function results(summaries, ignored) {
  const names = [...new Set(summaries.flatMap((run) => [run.metric?.name, ...Object.keys(run.best_values ?? {})]))].filter(Boolean);
  const modeOf = (name) => summaries.map((run) => run.best?.[name]?.mode).find(Boolean) ?? null;
  const rows = names.filter((name) => modeOf(name) && !ignored.has(name)).slice(0, RESULTS).map((name) => {
    const values = summaries.map((run) => run.best_values?.[name] ?? null);
    const known = values.filter((one) => typeof one === "number");
    const best = modeOf(name) === "min" ? Math.min(...known) : Math.max(...known);
    const isTold = new Set(known).size > 1;
    return { key: name, cells: values.map((one, index) => ({ text: name in (summaries[index].best_values ?? {}) ? (one === null ? "NaN" : number(one)) : "–", hint: one === null ? "" : String(one), mark: isTold && one === best ? "number is-best" : "number" })) };
  });
  return { title: "Results (best value of each run)", rows };
}

function settings(summaries, isAll) {
  const keys = [...new Set(summaries.flatMap((run) => Object.keys(run.config ?? {})))];
  const rows = keys.map((key) => rowOf(key, summaries.map((run) => run.config?.[key]), summaries.map((run) => key in (run.config ?? {}))));
  const isOwn = ({ key }) => key === "name" || key === "output_path";
  const shown = isAll ? rows : rows.filter((row) => !row.isSame && !isOwn(row));
  return { title: TITLES.config, rows: shown, none: keys.length ? `All ${keys.length} settings are the same.` : "These runs have not recorded any settings." };
}

function others(ids, answer) {
  if (!answer) return [];
  const at = ids.map((id) => answer.runs.indexOf(id));
  const rows = answer.differences.filter(({ part }) => part !== "config").map(({ part, key, values, has }) => ({ part, ...rowOf(key, at.map((index) => values[index]), at.map((index) => has[index] ?? false)) }));
  return [...new Set(rows.map(({ part }) => part))].map((part) => ({ title: TITLES[part] ?? part, rows: rows.filter((row) => row.part === part && !row.isSame) }));
}

/** A row of values; those that differ from the first run's are marked. */
function rowOf(key, values, has) {
  const texts = values.map((entry, index) => (has[index] ? JSON.stringify(entry) : ""));
  const isSame = texts.every((text) => text === texts[0]);
  return { key, isSame, cells: values.map((entry, index) => ({ text: has[index] ? value(entry) : "not set", hint: has[index] ? String(texts[index]) : "", mark: `${typeof entry === "number" ? "number" : ""} ${has[index] ? "" : "is-unset"} ${texts[index] === texts[0] ? "" : "is-other"}`.trim() })) };
}
