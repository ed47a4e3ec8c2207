// Where the time of a run went: the verdict, and a bar for every part.

import { Chart, escape } from "./chart.js";
import { el, fill } from "./dom.js";
import { duration, plural } from "./format.js";
import { pictureMenu } from "./picture_menu.js";
import { size } from "./run_record.js";
import { token } from "./theme.js";

const COMPUTING = new Set(["forward", "backward", "optimizer"]);
const ROW = 30; // px of a bar

export const timeSection = {
  key: "time", title: () => "Where the time goes", parts: ["profile"], isShown: ({ profile }) => Boolean(profile?.parts?.length), make: () => new TimeView(),
};

class TimeView {
  constructor() {
    this.words = el("div", { class: "verdict" });
    this.host = el("div", { class: "time-plot" });
    this.notes = el("p", { class: "hint" });
    this.tools = pictureMenu(() => this.chart, "Where the time goes");
    this.element = el("div", { class: "card time" }, this.words, this.host, this.notes);
    this.chart = new Chart(this.host, { label: "Share of each part in the time" });
  }

  update({ profile }) {
    const [first, ...others] = profile.findings ?? [profile.verdict];
    fill(this.words, el("p", { class: "verdict-first" }, coded(first)), others.map((finding) => el("p", { class: "muted" }, coded(finding))));
    fill(this.notes, notes(profile));
    const rows = rowsOf(profile);
    this.host.style.height = `${rows.length * ROW + 16}px`;
    this.chart.set(({ width }) => bars(rows, width));
  }

  destroy() { this.chart.destroy(); }
}

/** Parts from the first to the last of a step, each followed by details that matter. */
function rowsOf({ parts, seconds, num_steps: steps }) {
  return parts.flatMap(({ name, seconds: spent, share, details }) => [
    { name, spent, share, steps, isPart: true },
    ...Object.entries(details ?? {}).filter(([own, time]) => time / seconds >= 0.01 && own.toLowerCase() !== name).map(([own, time]) => ({ name: own, of: name, spent: time, share: time / seconds, steps, isPart: false })),
  ]);
}

function bars(rows, width) {
  const isNarrow = width < 520;
  const perStep = ({ spent, steps }) => (steps && !isNarrow ? `, ${short(spent / steps)} per step` : "");
  const label = (row) => (row.isPart ? escape(row.name) : `<span style="color:${token("--muted")}">${escape(row.name)}</span>`);
  const colour = ({ name, isPart, of }) => (isPart ? (COMPUTING.has(name) ? token("--accent") : token("--run-4")) : COMPUTING.has(of) ? token("--accent-soft") : token("--warn-soft"));
  return {
    traces: [{
      type: "bar", orientation: "h", x: rows.map(({ share }) => 100 * share), y: rows.map((_, index) => index), width: rows.map(({ isPart }) => (isPart ? 0.62 : 0.4)), marker: { color: rows.map(colour) },
      text: rows.map((row) => `${(100 * row.share).toFixed(1)} %  <span style="color:${token("--muted")}">${short(row.spent)}${perStep(row)}</span>`), textposition: "outside", constraintext: "none", textangle: 0, cliponaxis: false, textfont: { color: token("--text"), size: 12 }, hoverinfo: "skip",
    }],
    layout: {
      margin: { l: isNarrow ? 92 : 120, r: isNarrow ? 110 : 210, t: 4, b: 4 }, xaxis: { visible: false, range: [0, Math.max(...rows.map(({ share }) => 100 * share))], fixedrange: true },
      yaxis: { autorange: false, range: [rows.length - 0.5, -0.5], tickvals: rows.map((_, index) => index), ticktext: rows.map(label), showgrid: false, fixedrange: true, ticksuffix: "", ticklen: 8, ticks: "outside", tickcolor: "rgba(0,0,0,0)", nticks: rows.length, tickfont: { size: 12.5, color: token("--text") } },
      dragmode: false,
    },
  };
}

/** Text in which what stands between backticks is code. */
const coded = (text) => text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));

/** Three digits and the unit that fits: parts of a step are often below a millisecond. */
function short(seconds) {
  if (seconds >= 60) return duration(seconds);
  const [unit, factor] = [["s", 1], ["ms", 1e3]].find(([, one]) => seconds * one >= 1) ?? ["µs", 1e6];
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
}

function notes({ seconds, num_steps: steps, warmup_steps: warmup, world, memory = {} }) {
  const texts = [`Measured over ${plural(steps, "step")} in ${short(seconds)}${warmup ? `, after ${plural(warmup, "step")} of warm-up` : ""}.`];
  if (world > 1) texts.push(`This is the first of ${world} processes.`);
  const peaks = [["process", "the process"], ["device", "the device"]].filter(([key]) => memory[key]).map(([key, name]) => `${size(memory[key])} (${name})`);
  if (peaks.length) texts.push(`Peak memory: ${peaks.join(", ")}.`);
  return texts.join(" ");
}
