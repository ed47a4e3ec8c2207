// In words and numbers: for how long runs are the same, and the first step at which their values differ.

import { el } from "./dom.js";
import { count, plural } from "./format.js";
import { runs } from "./runs.js";

const SHOWN = 6; // values of a step

/** Elements for the divergences of /api/compare, a card for each run but the first. */
export function partings(divergences, ignored = []) {
  const seconds = [...new Set(divergences.map(({ second }) => second))];
  return [
    seconds.map((second) => card(divergences.filter((one) => one.second === second))),
    ignored.length > 0 && el("p", { class: "hint" }, `Not compared, because they always differ between runs: ${ignored.join(", ")}.`),
  ];
}

function card(both) {
  const { first, second } = both[0];
  const main = both.find(({ level, num_same: same, at }) => level === "steps" && (same || at !== null)) ?? both[0];
  const rest = both.filter((one) => one !== main && one.level);
  return el("article", { class: "card parting", data: { run: second } },
    el("p", { class: "parting-words" }, name(second), " ", main.level ? words(main, first) : main.sentence),
    main.changes?.length > 0 && changes(main),
    rest.map((one) => el("p", { class: "hint" }, `By epochs: ${plainWords(one)}`)));
}

const name = (id) => el("strong", { class: "parting-run" }, el("span", { class: "swatch", style: { "--swatch": runs.colour(id) } }), id);

function words(one, first) {
  const unit = one.level.slice(0, -1);
  if (one.at !== null) return one.num_same ? ["is the same as ", name(first), ` in ${plural(one.num_same, unit)}, bit for bit, and first differs at `, el("strong", { class: "parting-place" }, `${unit} ${count(one.at)}`), "."] : ["differs from ", name(first), " from the first ", unit, " on, ", el("strong", { class: "parting-place" }, `${unit} ${count(one.at)}`), "."];
  if (!one.num_same) return ["has no ", unit, " in common with ", name(first), "."];
  return ["is the same as ", name(first), ` in all ${plural(one.num_same, unit)} that they have in common, bit for bit.`, longer(one, unit)];
}

function plainWords(one) {
  const unit = one.level.slice(0, -1);
  if (one.at !== null) return one.num_same ? `the same in ${plural(one.num_same, unit)}, then different from ${unit} ${count(one.at)} on.` : `different from ${unit} ${count(one.at)} on.`;
  return one.num_same ? `the same in all ${plural(one.num_same, unit)}.` : `no ${unit} in common.`;
}

function longer({ ends }, unit) {
  if (!ends || ends[0] === ends[1] || ends.includes(null)) return "";
  return ` One ends at ${unit} ${count(ends[1])}, the other at ${count(ends[0])}.`;
}

/** The values of the step at which runs part, with all digits: the difference is often in the last ones. */
function changes({ changes: all, first, second, level, at }) {
  const difference = (one) => (typeof one.first === "number" && typeof one.second === "number" ? (one.second - one.first).toExponential(2).replace("e+", "e").replace("-", "−").replace("e-", "e−") : "");
  const text = (entry) => (entry === null ? "NaN" : String(entry).replace("-", "−"));
  return el("div", { class: "small-table-frame", tabindex: 0, role: "region", "aria-label": `Values at ${level.slice(0, -1)} ${at}` }, el("table", { class: "small-table" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, `At ${level.slice(0, -1)} ${count(at)}`), [first, second].map((id) => el("th", { scope: "col", class: "number" }, el("span", { class: "run-cell" }, el("span", { class: "swatch", style: { "--swatch": runs.colour(id) } }), id))), el("th", { scope: "col", class: "number" }, "Difference"))),
    el("tbody", {}, all.slice(0, SHOWN).map((one) => el("tr", {}, el("th", { scope: "row" }, one.key), el("td", { class: "number" }, text(one.first)), el("td", { class: "number" }, text(one.second)), el("td", { class: "number muted" }, difference(one)))))),
  all.length > SHOWN && el("p", { class: "hint" }, `and ${count(all.length - SHOWN)} more`));
}
