// How curves are shown, as the address says: the same on every page that has some.

import { axisOf } from "./axis.js";
import { runs } from "./runs.js";
import { url } from "./url.js";

const HALF_LIVES = [0, 3, 10, 30, 100, 300, 1000, 3000, 10000]; // in points

/** A view of curves: pages extend it by `ids`, `events()` and `loaded(cursors)`; panels read it (see `panel.js`). */
export class CurveSettings {
  /** How far the smoothing can be turned. */
  static get smoothest() { return HALF_LIVES.length - 1; }

  get range() {
    const [first, last] = (url.list("zoom") ?? []).map(Number);
    return first < last ? [first, last] : null; // anything else was typed by hand
  }

  get halfLife() { return HALF_LIVES[Number(url.get("smooth", 0))] ?? 0; }
  get isFitted() { return url.get("fit") !== null; }

  get axis() {
    const name = url.get("x", "step");
    const spent = (run) => (name === "relative" ? (run?.updated ?? 0) - (run?.started ?? 0) : run?.seconds ?? 0);
    const longest = Math.max(0, ...this.ids.map((id) => spent(runs.get(id))));
    return axisOf(name, { longest: this.range ? this.range[1] - this.range[0] : longest, isLog: url.get("logx") !== null });
  }

  isLogY(base) {
    const chosen = url.list("logy") ?? [];
    return chosen.includes("*") !== chosen.includes(base);
  }

  zoom(range) { url.set({ zoom: range ? range.map((end) => String(Number(end.toPrecision(10)))) : null }, { replace: false }); }
  toggleLog(base) { this.toggle("logy", base); }
  widen(base) { this.toggle("wide", base); }

  /** Put an entry into a list of the address, or take it out. */
  toggle(key, entry) {
    const chosen = url.list(key) ?? [];
    const others = chosen.filter((one) => one !== entry);
    const now = others.length < chosen.length ? others : [...chosen, entry];
    url.set({ [key]: now.length ? now : null });
  }
}
