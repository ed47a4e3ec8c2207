// Colours of the style sheet for charts, which need them as plain values; they follow the system's light or dark setting.

const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let cache = new Map();

/** The value of a token: `token("--run-0")` or of `var(--run-0)`. */
export function token(name) {
  const key = name.replace(/^var\((.*)\)$/, "$1");
  if (!cache.has(key)) cache.set(key, getComputedStyle(document.documentElement).getPropertyValue(key).trim() || key);
  return cache.get(key);
}

/** A colour with an opacity, as charts want it. */
export function faded(name, opacity) {
  const hex = token(name).replace("#", "");
  const [red, green, blue] = [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}

/** Call back after the system's setting changed. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

dark.addEventListener("change", () => {
  cache = new Map();
  for (const listener of listeners) listener();
});

/** What all charts share: fonts, grid and margins in today's colours. */
export function baseLayout() {
  const axis = {
    gridcolor: token("--grid"), zeroline: false, linecolor: token("--line-strong"), showline: false, ticks: "", automargin: false,
    tickfont: { size: 11, color: token("--muted") }, title: { font: { size: 11, color: token("--muted") }, standoff: 6 }, exponentformat: "e", separatethousands: true,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: token("--font"), size: 12, color: token("--text") },
    margin: { l: 52, r: 12, t: 8, b: 34 }, showlegend: false, hovermode: false,
    xaxis: { ...axis }, yaxis: { ...axis, nticks: 5 },
  };
}
