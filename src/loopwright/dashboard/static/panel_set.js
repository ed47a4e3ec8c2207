// Some panels of curves on a page that is about more than curves: the run page and the comparison.

import { CurveSettings } from "./curve_settings.js";
import { el, fill } from "./dom.js";
import { Panel } from "./panel.js";
import { url } from "./url.js";

const KEYS = ["x", "zoom", "logx", "logy", "wide", "fit"]; // of the address: the same as on the page of curves

/**
 * Panels in `element` for `options.ids()`; `set(definitions)` says which (see `panelsOf`).
 * Options: `marks()` gives events to draw; `onloaded(cursors)` hears where new rows begin.
 */
export class PanelSet extends CurveSettings {
  #panels = new Map();
  #undo = null;

  constructor(options) {
    super();
    this.options = options;
    this.element = el("div", { class: "panel-grid" });
    this.#undo = url.listen((keys) => { if (keys?.some((key) => KEYS.includes(key))) this.refresh(); });
  }

  get ids() { return this.options.ids(); }
  get halfLife() { return 0; }
  events() { return this.options.marks?.(this.axis) ?? []; }
  loaded(cursors) { this.options.onloaded?.(cursors); }

  /** Show these panels; those that stay are not made anew. */
  set(definitions) {
    const signature = JSON.stringify(definitions);
    if (signature === this.signature) return;
    this.signature = signature;
    this.#layout(definitions);
    this.refresh();
  }

  #layout(definitions) {
    const keys = definitions.map((definition) => JSON.stringify(definition));
    for (const [key, panel] of this.#panels) if (!keys.includes(key)) { panel.destroy(); this.#panels.delete(key); }
    fill(this.element, definitions.map((definition, index) => {
      if (!this.#panels.has(keys[index])) this.#panels.set(keys[index], new Panel(definition, this));
      return this.#panels.get(keys[index]).element;
    }));
  }

  get names() { return [...new Set([...this.#panels.values()].flatMap((panel) => panel.definition.names.map(({ name }) => name)))].sort(); }

  refresh(kind = "now") {
    const wide = new Set(url.list("wide") ?? []);
    for (const panel of this.#panels.values()) {
      panel.element.classList.toggle("is-wide", wide.has(panel.definition.base));
      panel.refresh(kind);
    }
  }

  add(data) { for (const panel of this.#panels.values()) panel.add(data); }
  forget() { for (const panel of this.#panels.values()) panel.forget(); }

  destroy() {
    this.#undo();
    for (const panel of this.#panels.values()) panel.destroy();
  }
}
