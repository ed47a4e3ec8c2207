// Curves as plotly's traces: line of means, band from the smallest to the largest value, marks for NaN and events.

import { faded, token } from "./theme.js";

const GAP = 10; // a distance of so many usual distances is a gap in which nothing was logged
const DASHES = { line: "solid", dash: "6px,3px", dot: "2px,3px" };

/**
 * The traces of a list of curves `{series, colour, kind, halfLife}`; kind is "line", "dash" or "dot".
 * `toX` turns a value of x into what the axis shows; `isLog` is true for a logarithmic y axis.
 */
export function curveTraces(curves, { toX = (x) => x, isLog = false } = {}) {
  const drawn = curves.filter((curve) => curve.series.length).map((curve) => ({ ...curve, breaks: gaps(curve.series), x: curve.series.x.map(toX) }));
  return joined([
    ...drawn.filter((curve) => curve.series.every > 1).map((curve) => band(curve, isLog)),
    ...drawn.flatMap((curve) => lines(curve)),
    ...drawn.flatMap((curve) => oddMarks(curve)),
  ]);
}

/**
 * Traces that look alike as one with gaps between: drawing takes time for every trace, and fifty runs have no more than
 * eight colours.
 */
function joined(traces) {
  const groups = new Map();
  for (const { x, y, ...style } of traces) {
    const { size, symbol } = style.marker ?? {};
    const isPlain = !Array.isArray(size) && !Array.isArray(symbol);
    const key = isPlain ? JSON.stringify(style) : `${groups.size}`;
    const known = groups.get(key);
    if (known) {
      known.x.push(null, ...x);
      known.y.push(null, ...y);
    } else groups.set(key, { ...style, x: [...x], y: [...y] });
  }
  return [...groups.values()];
}

/** Indexes before which the line is broken: values are missing for much longer than usual. */
function gaps(series) {
  const found = new Set();
  if (series.level !== "step" || !series.isOrdered || series.length < 4) return found;
  const distances = [];
  for (let index = 1; index < series.length; index += 1) distances.push(series.x[index] - series.x[index - 1]);
  const usual = distances.slice().sort((a, b) => a - b)[distances.length >> 1];
  if (usual > 0) distances.forEach((distance, index) => { if (distance > GAP * usual) found.add(index + 1); });
  return found;
}

/** One polygon for each stretch without a gap. */
function band({ series, colour, breaks, x, halfLife }, isLog) {
  const floor = isLog ? Math.min(...series.min.filter((value) => value > 0)) : null;
  const polygonX = [];
  const polygonY = [];
  let stretch = [];
  const close = () => {
    if (stretch.length) {
      if (polygonX.length) { polygonX.push(null); polygonY.push(null); }
      const back = stretch.slice().reverse();
      polygonX.push(...stretch.map((index) => x[index]), ...back.map((index) => x[index]));
      polygonY.push(...stretch.map((index) => series.max[index]), ...back.map((index) => (isLog && series.min[index] <= 0 ? floor : series.min[index])));
    }
    stretch = [];
  };
  for (let index = 0; index < series.length; index += 1) {
    if (breaks.has(index) || series.max[index] === null || series.min[index] === null) close();
    if (series.max[index] !== null && series.min[index] !== null) stretch.push(index);
  }
  close();
  return {
    type: "scatter", mode: "lines", x: polygonX, y: polygonY, fill: "toself", fillcolor: faded(colour, halfLife ? 0.1 : 0.17),
    line: { width: 0.6, color: faded(colour, halfLife ? 0.16 : 0.3) }, hoverinfo: "skip",
  };
}

function lines(curve) {
  const { series, colour, kind, halfLife } = curve;
  const isSmoothed = halfLife > 0 && series.level === "step" && series.length > 2;
  const style = { color: token(colour), width: 1.6, dash: DASHES[kind] ?? "solid" };
  if (!isSmoothed) return [line(curve, series.mean, style, hasMarkers(curve))];
  return [
    line(curve, series.mean, { ...style, color: faded(colour, 0.3), width: 1 }, false),
    line(curve, series.smooth(halfLife), { ...style, width: 2 }, false),
  ];
}

const hasMarkers = ({ series }) => series.level === "epoch" ? series.length <= 60 : series.length <= 2;

function line({ series, breaks, x, colour }, values, style, isMarked) {
  const lineX = [];
  const lineY = [];
  for (let index = 0; index < series.length; index += 1) {
    if (breaks.has(index)) { lineX.push(x[index]); lineY.push(null); }
    lineX.push(x[index]);
    lineY.push(values[index]);
  }
  const lonely = lineY.map((value, index) => (value !== null && (lineY[index - 1] ?? null) === null && (lineY[index + 1] ?? null) === null));
  const isShown = isMarked || lonely.some(Boolean);
  return {
    type: "scatter", mode: isShown ? "lines+markers" : "lines", x: lineX, y: lineY, line: style, hoverinfo: "skip", connectgaps: false,
    ...(isShown && { marker: { color: token(colour), size: isMarked ? 4.5 : lonely.map((is) => (is ? 4 : 0)), line: { width: 0 } } }),
  };
}

/** NaN and infinite values have no height: crosses at the lower edge, arrows at the edge where they went. */
function oddMarks({ series, colour, x }) {
  const places = { x: [], y: [], symbol: [] };
  series.nonfinite.forEach((number, index) => {
    if (!number) return;
    const odd = series.oddAt(index);
    places.x.push(x[index]);
    places.y.push(odd === "inf" ? 0.98 : 0.02);
    places.symbol.push(odd === "inf" ? "triangle-up" : odd === "-inf" ? "triangle-down" : "x-thin");
  });
  if (!places.x.length) return [];
  return [{
    type: "scatter", mode: "markers", x: places.x, y: places.y, yaxis: "y2", hoverinfo: "skip", cliponaxis: false,
    marker: { symbol: places.symbol, size: 8, color: token(colour), line: { width: 2, color: token(colour) } },
  }];
}

/** Events that stop or change a run are lines through the chart; the others are small signs at the lower edge. */
export const LINES = { resumed: "dash", rewind: "dot", signal: "dot", failed: "solid", stopped: "dot", micro_batches: "dot", parts: "dash" };
const SIGNS = { checkpoint: "line-ns", best: "star", evaluation: "circle", started: "triangle-right", finished: "square" };

/** Traces of events `{x, kind, colour}`. */
export function eventTraces(events, toX = (x) => x) {
  const traces = [];
  const groups = new Map();
  for (const event of events) {
    const key = `${event.colour} ${LINES[event.kind] ?? "sign"}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(event);
  }
  for (const group of groups.values()) traces.push(LINES[group[0].kind] ? eventLines(group, toX) : eventSigns(group, toX));
  return traces;
}

function eventLines(events, toX) {
  return {
    type: "scatter", mode: "lines", yaxis: "y2", hoverinfo: "skip",
    x: events.flatMap((event) => [toX(event.x), toX(event.x), null]), y: events.flatMap(() => [0, 1, null]),
    line: { color: faded(events[0].colour, 0.75), width: 1.2, dash: LINES[events[0].kind] },
  };
}

function eventSigns(events, toX) {
  return {
    type: "scatter", mode: "markers", yaxis: "y2", hoverinfo: "skip", cliponaxis: false, x: events.map((event) => toX(event.x)),
    y: events.map((event) => (event.kind === "best" ? 0.05 : 0.015)),
    marker: {
      symbol: events.map((event) => SIGNS[event.kind] ?? "diamond"), opacity: 0.8, size: events.map((event) => (event.kind === "best" ? 7 : 6)),
      color: token(events[0].colour), line: { width: events.map((event) => (event.kind === "checkpoint" ? 1.5 : 0)), color: token(events[0].colour) },
    },
  };
}

/** The axis of marks: from 0 at the lower to 1 at the upper edge, invisible. */
export const markAxis = { overlaying: "y", range: [0, 1], fixedrange: true, visible: false };
