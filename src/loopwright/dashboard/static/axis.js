// What x can be, how it is written, and how a zoomed range travels between charts.

import { count, duration, moment, number } from "./format.js";

export const AXES = [
  ["step", "step"], ["update", "update"], ["epoch", "epoch"], ["samples", "samples"], ["seconds", "training time"], ["relative", "time since start"], ["wall", "wall time"],
];

const UNITS = [[86400 * 2, 86400, "days"], [7200, 3600, "h"], [180, 60, "min"], [0, 1, "s"]];

/**
 * The x axis of a page. `longest` is the largest value of seconds to show: it chooses the unit.
 * `asked` is what to ask the server for; `toX`/`fromX` go from the server's values to the axis and back;
 * `text` writes a value for people; `isClock` is false for another metric, which need not grow.
 */
export function axisOf(name, { longest = 0, isLog = false } = {}) {
  const type = isLog && name !== "wall" ? "log" : "linear";
  if (name === "wall") {
    const shift = -new Date().getTimezoneOffset() * 60_000; // plotly writes dates in UTC
    return { name, asked: "wall", isClock: true, title: "", type: "date", toX: (x) => x * 1000 + shift, fromX: (x) => (x - shift) / 1000, text: moment };
  }
  if (name === "seconds" || name === "relative") {
    const [, size, unit] = UNITS.find(([from]) => longest >= from);
    const title = `${name === "seconds" ? "training time" : "time since the start"} (${unit})`;
    return { name, asked: name === "seconds" ? "seconds" : "wall", isClock: true, title, type, toX: (x) => x / size, fromX: (x) => x * size, text: duration };
  }
  const isCount = AXES.some(([known]) => known === name);
  return { name, asked: name, isClock: isCount, title: name, type, toX: (x) => x, fromX: (x) => x, text: (x) => (name === "epoch" ? number(Math.round(x * 100) / 100) : isCount ? count(Math.round(x)) : number(x)) };
}

/** plotly's range of an axis in units of x: it writes logarithms and dates in its own way. */
export function rangeOf(axis, range) {
  return range.map((end) => {
    if (axis.type === "log") return axis.fromX(10 ** end);
    return axis.fromX(axis.type === "date" && typeof end === "string" ? Date.parse(`${end.replace(" ", "T")}Z`) : Number(end));
  });
}

/** A range in units of x as plotly wants it. */
export function plotRange(axis, range) {
  return range.map((end) => (axis.type === "log" ? Math.log10(Math.max(axis.toX(end), 1e-9)) : axis.toX(end)));
}

/** A place on the axis in words: "step 1,200", "training time 3 min", "2026-11-16 14:03:07". */
export function axisText(axis, x) {
  return axis.name === "wall" ? axis.text(x) : `${axis.title.replace(/ \(.*/, "")} ${axis.text(x)}`;
}
