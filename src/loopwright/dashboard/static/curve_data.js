// Which curves a panel needs, got from the server and kept up to date by the rows that it sends.

import { api } from "./api.js";
import { runs } from "./runs.js";
import { Series } from "./series.js";

const PAIRS = 180; // curves asked for at once
const MOST = 9000; // points of one panel: more cannot be told apart and make drawing slow

/** How many points a curve gets in a panel of so many pixels and curves. */
export function pointsFor(width, curves) {
  return Math.round(Math.max(80, Math.min(width || 400, 800, MOST / Math.max(1, curves))));
}

/**
 * Curves of `names` of the runs `ids` against `axis`, cut to `range`: `{series: Map, cursors}`.
 * Keys of the map are `run\nname\nlevel`.
 */
export async function loadCurves({ ids, names, axis, range, points, signal }) {
  const series = new Map();
  let cursors = {};
  for (const part of parts(ids, names, axis, range)) {
    const answer = await api("curves", { run: part.ids, name: names, x: axis.asked, first: part.first, last: part.last, points }, { signal });
    cursors = { ...answer.cursors, ...cursors };
    for (const curve of answer.curves) series.set(keyOf(curve), shifted(new Series(curve).thin(2 * points), axis));
  }
  return { series, cursors };
}

export const keyOf = ({ run, name, level }) => `${run}\n${name}\n${level}`;

/** Time since the start begins at another moment in every run: a range of it is asked run by run. */
function parts(ids, names, axis, range) {
  const size = axis.name === "relative" && range ? 1 : Math.max(1, Math.floor(PAIRS / Math.max(1, names.length)));
  const found = [];
  for (let start = 0; start < ids.length; start += size) {
    const some = ids.slice(start, start + size);
    const shift = offset(axis, some[0]);
    found.push({ ids: some, first: range ? range[0] + shift : null, last: range ? range[1] + shift : null });
  }
  return found;
}

const offset = (axis, id) => (axis.name === "relative" ? runs.get(id)?.started ?? 0 : 0);

function shifted(series, axis) {
  const by = offset(axis, series.run);
  if (by) series.move(-by);
  return series;
}

/** Add rows of a `rows` event to the curves; true where something changed. */
export function addRows(series, data, { axis, range, points }) {
  let isChanged = false;
  for (const [level, named] of [["step", data.steps], ["epoch", data.epochs]]) {
    for (const [name, rows] of Object.entries(named ?? {})) {
      const key = keyOf({ run: data.run, name, level });
      const by = offset(axis, data.run);
      const moved = { ...rows, x: rows.x.map((x) => x - by) };
      if (range && moved.x[0] > range[1]) continue;
      if (!series.has(key)) series.set(key, new Series({ run: data.run, name, level, every: 1, rows: 0, columns: { x: [], mean: [] } }));
      isChanged = series.get(key).append(moved, points) || isChanged;
    }
  }
  return isChanged;
}
