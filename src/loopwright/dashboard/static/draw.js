// When to draw: only what is visible, one chart per idle moment, each at most once a second, and never more than a
// sixth of the time. A hidden tab draws nothing.

const SHARE = 5; // after drawing for t, live drawing rests for 5 t
const SHORTEST = 1000; // ms between two live drawings of one chart

const charts = new Map(); // element → {draw, isVisible, dirty: null | "live" | "now", last}
let timer = null; // of the next drawing, or null
let isDrawing = false;
let restUntil = 0;

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (!chart) continue;
    chart.isVisible = entry.isIntersecting;
    chart.onvisible?.(entry.isIntersecting);
  }
  schedule();
}, { rootMargin: "120px 0px" });

/** Put an element under the scheduler's care: `draw()` draws it, `onvisible(bool)` says when it comes into view. */
export function watch(element, draw, onvisible = null) {
  charts.set(element, { draw, onvisible, isVisible: false, dirty: null, last: 0 });
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    charts.delete(element);
  };
}

/** Ask for a drawing: "now" for what a person did, "live" for new data. */
export function request(element, kind = "now") {
  const chart = charts.get(element);
  if (!chart) return;
  if (chart.dirty !== "now") chart.dirty = kind;
  schedule();
}

/** True where the element is in view (or close to it). */
export const isVisible = (element) => charts.get(element)?.isVisible ?? false;

function due(chart, now) {
  if (!chart.isVisible || !chart.dirty) return Infinity;
  return chart.dirty === "now" ? 0 : Math.max(chart.last + SHORTEST, restUntil) - now;
}

function schedule() {
  if (isDrawing || document.hidden) return;
  const now = performance.now();
  const wait = Math.min(Infinity, ...[...charts.values()].map((chart) => due(chart, now)));
  clearTimeout(timer);
  if (wait === Infinity) return;
  timer = setTimeout(() => idle(step), Math.max(0, wait));
}

const idle = window.requestIdleCallback ? (call) => requestIdleCallback(call, { timeout: 100 }) : (call) => setTimeout(call, 0);

async function step() {
  if (isDrawing) return;
  isDrawing = true;
  const now = performance.now();
  const chart = [...charts.values()].filter((one) => due(one, now) <= 0).sort((a, b) => rank(a) - rank(b))[0];
  if (chart) {
    const kind = chart.dirty;
    chart.dirty = null;
    try {
      await chart.draw();
    } catch (error) {
      console.error(error); // one chart that cannot be drawn must not stop the others
    }
    const spent = performance.now() - now;
    chart.last = performance.now();
    if (kind === "live") restUntil = Math.max(restUntil, now) + SHARE * spent;
  }
  isDrawing = false;
  schedule();
}

const rank = (chart) => (chart.dirty === "now" ? 0 : chart.last);

document.addEventListener("visibilitychange", schedule);
