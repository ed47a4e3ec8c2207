// Answers of a report: one file that holds what the server would have said.

const element = document.getElementById("loopwright-report");

/** What the report holds, or null on a live page. */
export const report = element ? JSON.parse(element.textContent) : null;

export function reportMedia(run, id) {
  return report.media?.[run]?.[id] ?? "";
}

/** The answer to `api(path, query, {of})`, or an error that says why a report cannot know it. */
export function reportAnswer(path, query, of) {
  if (path === "runs") return report.runs;
  if (path === "run") return report.run[of] ?? missing(`the run ${of}`);
  if (path === "curves") return curves(query);
  if (path === "events") return { events: Object.fromEntries(list(query.run).map((run) => [run, report.run[run]?.events ?? []])) };
  if (path === "contents") return report.contents?.[of]?.[query.name] ?? missing(query.name);
  if (path === "compare") return report.compare ?? missing("a comparison");
  if (path === "sweep") return report.sweep ?? missing("a sweep");
  return missing(path);
}

function missing(what) {
  throw new Error(`This report does not hold ${what}: make one that does with \`loopwright report\`, or open the runs with \`loopwright ui\`.`);
}

const list = (entry) => (Array.isArray(entry) ? entry : [entry]);

function curves(query) {
  const names = new Set(list(query.name));
  const x = query.x ?? "step";
  const found = [];
  for (const run of list(query.run)) {
    for (const curve of report.curves[run] ?? []) {
      if (!names.has(curve.name) || (query.level && query.level !== curve.level)) continue;
      const along = curve.columns[x] ?? metricAgainst(run, curve, x);
      if (along) found.push(cut({ ...curve, run, x, along }, query.first ?? -Infinity, query.last ?? Infinity));
    }
  }
  return { x, first: query.first ?? null, last: query.last ?? null, curves: found, cursors: {}, missing: [] };
}

/** The mean of another metric in the places of a curve's columns; null where that cannot be said. */
function metricAgainst(run, curve, name) {
  const other = report.curves[run]?.find((one) => one.name === name && one.level === curve.level);
  if (!other) return null;
  const at = new Map(other.columns.step.map((step, index) => [step, other.columns.mean[index]]));
  return curve.columns.step.map((step) => at.get(step) ?? null);
}

function cut(curve, first, last) {
  const kept = [];
  curve.along.forEach((x, index) => { if (x !== null && x >= first && x <= last) kept.push(index); });
  const columns = { x: kept.map((index) => curve.along[index]) };
  for (const name of ["mean", "min", "max", "count", "nonfinite"]) {
    if (curve.columns[name]) columns[name] = kept.map((index) => curve.columns[name][index]);
  }
  const odd = {};
  kept.forEach((index, place) => { if (curve.odd?.[index]) odd[place] = curve.odd[index]; });
  return { run: curve.run, name: curve.name, level: curve.level, x: curve.x, every: curve.every, rows: curve.rows, columns, odd };
}
