// Any chart of plotly's in the look of the page: drawn when visible, at its element's size, exported as a picture.

import { el } from "./dom.js";
import { request, watch } from "./draw.js";
import { baseLayout, onTheme, token } from "./theme.js";

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false, displaylogo: false, scrollZoom: false };

let loading = null;

/** plotly.js, which is large: loaded with the first chart, or by a page that will have one. */
export function plotly() {
  loading ??= window.Plotly ? Promise.resolve(window.Plotly) : new Promise((resolve, reject) => {
    const { src } = document.getElementById("plotly");
    document.head.append(el("script", { src, onload: () => resolve(window.Plotly), onerror: () => reject(new Error(`${src} cannot be loaded`)) }));
  });
  return loading;
}

/**
 * A chart inside `host`.
 *
 * `set(build)` says how to draw it: `build({width, height})` gives `{traces, layout}` in plotly's words and is called only
 * when the chart is drawn. `layout` is laid over the page's base layout (axes too).
 * Options: `label` for screen readers; `onvisible(bool)`; `ondraw(graph)` after each drawing.
 */
export class Chart {
  #build = null;
  #undo = [];

  constructor(host, { label = "Chart", onvisible = null, ondraw = null } = {}) {
    this.host = host;
    plotly(); // early: curves come from the server meanwhile
    this.graph = el("div", { class: "plot", role: "img", "aria-label": label });
    this.ondraw = ondraw;
    host.append(this.graph);
    this.#undo.push(watch(this.graph, () => this.#draw(), onvisible));
    this.#undo.push(onTheme(() => this.redraw()));
    const sizes = new ResizeObserver(() => { if (this.#isResized()) this.redraw(); });
    sizes.observe(this.graph);
    this.#undo.push(() => sizes.disconnect());
  }

  /** Draw by `build` from now on; `kind` is "now" for what a person did, "live" for new data. */
  set(build, kind = "now") {
    this.#build = build;
    request(this.graph, kind);
  }

  redraw(kind = "now") {
    if (this.#build) request(this.graph, kind);
  }

  #isResized() {
    const size = this.graph._fullLayout;
    return size && (Math.abs(size.width - this.graph.clientWidth) > 1 || Math.abs(size.height - this.graph.clientHeight) > 1);
  }

  async #draw() {
    const Plotly = await plotly();
    const size = { width: this.graph.clientWidth, height: this.graph.clientHeight };
    if (!size.width || !this.#build) return;
    const { traces, layout = {} } = this.#build(size);
    await Plotly.react(this.graph, traces, merge(merge(baseLayout(), layout), size), CONFIG);
    this.ondraw?.(this.graph);
  }

  /** The chart as a data address: "png" (twice the size, for slides) or "svg"; with its title and on the page's ground. */
  async image(format, { title = "" } = {}) {
    const Plotly = await plotly();
    const width = Math.max(640, this.graph.clientWidth);
    const height = Math.max(400, this.graph.clientHeight);
    const { traces, layout = {} } = this.#build({ width, height });
    const ground = { paper_bgcolor: token("--surface"), title: { text: escape(title), x: 0, xref: "paper", font: { size: 15 } }, margin: { l: 60, r: 20, t: title ? 44 : 16, b: 48 } };
    return Plotly.toImage({ data: traces, layout: merge(merge(merge(baseLayout(), layout), ground), { width, height }), config: CONFIG },
      { format, width, height, scale: format === "png" ? 2 : 1 });
  }

  destroy() {
    for (const undo of this.#undo) undo();
    window.Plotly?.purge(this.graph);
    this.graph.remove();
  }
}

/** Text for plotly, which reads a few tags of its own: none of them may come from a name. */
export function escape(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Save an address (of data, or of an answer) under a name. */
export function download(address, name) {
  const link = el("a", { href: address, download: name.replaceAll(/[^\w.=-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
}

function merge(base, over) {
  const result = { ...base };
  for (const [key, entry] of Object.entries(over)) {
    const isPlain = entry && typeof entry === "object" && !Array.isArray(entry);
    result[key] = isPlain && result[key] && typeof result[key] === "object" ? merge(result[key], entry) : entry;
  }
  return result;
}
