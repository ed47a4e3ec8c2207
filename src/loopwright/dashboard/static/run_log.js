// The end of a run's log, followed while the run goes on, and the traceback of a run that failed.

import { api, isLive } from "./api.js";
import { el, fill, icon, setText } from "./dom.js";
import { count, moment } from "./format.js";
import { copyButton } from "./run_head.js";
import { url } from "./url.js";

const MOST = 4000; // lines that are shown
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];
const CLASSES = { DEBUG: "debug", WARNING: "warning", ERROR: "error", CRITICAL: "error", FATAL: "error" };

export const failureSection = {
  key: "failure", title: () => "What went wrong", short: "Traceback", parts: ["traceback"], isShown: ({ traceback }) => Boolean(traceback),
  make() {
    const element = el("pre", { class: "traceback", tabindex: 0 });
    let text = "";
    return { element, tools: copyButton(() => text, "traceback"), update(detail) { text = detail.traceback; fill(element, tracebackLines(text)); } };
  },
};

/** A traceback with places quiet and the error loud. */
function tracebackLines(text) {
  const lines = text.trimEnd().split("\n");
  return lines.map((line) => {
    const isPlace = /^\s+File "/.test(line);
    const isError = /^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Warning|Exit|Interrupted|Stop\w*)\b/.test(line) || (line === lines.at(-1) && /^\S/.test(line));
    return el("span", { class: isError ? "trace-error" : isPlace ? "trace-place" : /^\S/.test(line) ? "trace-head" : "trace-code" }, `${line}\n`);
  });
}

export const logSection = {
  key: "log", title: () => "Log", parts: ["log", "summary"], isShown: ({ log }) => log.lines.length > 0, make: (context) => new LogView(context),
};

class LogView {
  #shown = 0; // lines of the log that are on the page
  #first = null; // the first of them: another one means another log
  #more = null; // lines before those of the answer

  constructor({ id }) {
    this.id = id;
    this.level = el("select", { "aria-label": "Level", onchange: () => url.set({ level: this.level.value === "DEBUG" ? null : this.level.value }) }, el("option", { value: "DEBUG" }, "all lines"), el("option", { value: "WARNING" }, "warnings and errors"), el("option", { value: "ERROR" }, "errors"));
    this.find = el("input", { class: "input", type: "search", placeholder: "Search", "aria-label": "Search the log", value: url.get("grep", ""), oninput: () => url.set({ grep: this.find.value || null }) });
    this.following = el("button", { class: "button", type: "button", "aria-pressed": "true", title: "Keep the newest line in view", onclick: () => this.#follow(this.following.getAttribute("aria-pressed") !== "true") }, "Follow");
    this.tools = el("div", { class: "part-tools" }, el("div", { class: "search" }, icon("search"), this.find), this.level, this.following);
    this.earlier = el("button", { class: "button plain small", type: "button", onclick: () => this.#loadMore() });
    this.lines = el("div", { class: "log-lines", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: 0 });
    this.none = el("p", { class: "hint", hidden: true });
    this.element = el("div", { class: "log" }, this.earlier, this.lines, this.none);
    this.lines.addEventListener("scroll", () => this.#scrolled());
    this.undo = url.listen((keys) => { if (keys?.includes("level") || keys?.includes("grep")) this.#redraw(); });
  }

  destroy() { this.undo(); }

  update(detail, changed) {
    this.log = detail.log;
    this.isRunning = detail.summary.state === "running" && isLive;
    this.following.hidden = !this.isRunning;
    if (changed && !changed.has("log")) return;
    setText(this.earlier, "Earlier lines");
    this.earlier.hidden = !this.log.is_cut || this.#more !== null || !isLive;
    const lines = this.#all();
    if (lines[0]?.text !== this.#first || this.#shown > lines.length) return this.#redraw();
    this.#append(lines.slice(this.#shown));
    this.#shown = lines.length;
  }

  #all() { return this.#more ? [...this.#more, ...this.log.lines.filter((line) => line.id > (this.#more.at(-1)?.id ?? 0))] : this.log.lines; }

  #redraw() {
    const lines = this.#all();
    this.level.value = url.get("level", "DEBUG");
    if (document.activeElement !== this.find) this.find.value = url.get("grep", "");
    fill(this.lines);
    this.#first = lines[0]?.text;
    this.#shown = lines.length;
    this.#append(lines);
  }

  #append(lines) {
    const least = LEVELS.indexOf(url.get("level", "DEBUG"));
    const words = url.get("grep", "").toLowerCase();
    const rank = (level) => (level === null ? 1 : CLASSES[level] === "error" ? 3 : LEVELS.indexOf(level));
    const isWanted = ({ level, text }) => rank(level) >= least && (!words || text.toLowerCase().includes(words));
    this.lines.append(...lines.filter(isWanted).slice(-MOST).map(lineOf));
    while (this.lines.children.length > MOST) this.lines.firstChild.remove();
    this.none.hidden = this.lines.children.length > 0;
    this.lines.hidden = !this.none.hidden;
    setText(this.none, `None of the ${count(this.#shown)} lines shown matches.`);
    if (this.following.getAttribute("aria-pressed") === "true") this.lines.scrollTop = this.lines.scrollHeight;
  }

  #follow(is) {
    this.following.setAttribute("aria-pressed", String(is));
    if (is) this.lines.scrollTop = this.lines.scrollHeight;
  }

  /** Who scrolls up wants to read: following ends, and begins again at the end. */
  #scrolled() {
    const left = this.lines.scrollHeight - this.lines.clientHeight - this.lines.scrollTop;
    this.following.setAttribute("aria-pressed", String(left < 24));
  }

  async #loadMore() {
    this.earlier.disabled = true;
    try {
      const { log } = await api("log", { last: MOST }, { of: this.id });
      this.#more = log.lines;
      this.earlier.hidden = true;
      this.#redraw();
    } catch (error) {
      setText(this.earlier, error.message);
    }
  }
}

function lineOf({ wall, level, text }) {
  return el("div", { class: `log-line ${CLASSES[level] ?? ""}` }, el("time", { title: wall ? moment(wall) : "" }, wall ? moment(wall).slice(11) : ""), el("span", { class: "log-level" }, level === "INFO" ? "" : (level ?? "").toLowerCase()), el("span", { class: "log-text" }, text));
}
