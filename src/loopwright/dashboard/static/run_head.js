// The head of a run's page: name, state, the run in words, how far it is, and the facts that people look for first.

import { el, fill, icon, setText } from "./dom.js";
import { age, count, duration, moment, number } from "./format.js";
import { statePill } from "./run_columns.js";
import { runs } from "./runs.js";
import { url } from "./url.js";

export class RunHead {
  #signature = "";

  constructor(id) {
    this.id = id;
    const at = id.lastIndexOf("/") + 1;
    this.state = el("span", { class: "run-state" });
    this.tags = el("span", { class: "run-tags" });
    this.swatch = el("span", { class: "swatch" });
    this.select = el("button", { class: "button", type: "button", onclick: () => runs.toggle(this.id) });
    this.words = el("p", { class: "lead" });
    this.problems = el("div", { class: "problem", role: "alert", hidden: true });
    this.progress = el("div", { class: "run-progress", hidden: true });
    this.facts = el("dl", { class: "facts" });
    this.origin = el("div", { class: "origin" });
    this.element = el("header", { class: "run-head" },
      el("nav", { class: "crumbs", "aria-label": "Where this run is" }, el("a", { href: url.link("runs") }, "Runs"), id.slice(0, Math.max(0, at - 1)).split("/").filter(Boolean).map((part) => [el("span", { class: "faint" }, "/"), el("span", { class: "muted" }, part)])),
      el("div", { class: "run-title" }, this.swatch, el("h1", {}, id.slice(at)), this.state, this.tags, el("div", { class: "run-actions" }, this.select, el("a", { class: "button primary", href: url.link("curves", "", { runs: [id] }) }, "Curves"))),
      this.words, this.problems, this.progress, this.facts, this.origin);
  }

  update(detail) {
    if (!detail) return;
    const { summary } = detail;
    this.#selection();
    const signature = JSON.stringify([summary.state, summary.tags, summary.reason, summary.problems]);
    if (signature !== this.#signature) {
      this.#signature = signature;
      fill(this.state, statePill(summary));
      fill(this.tags, (summary.tags ?? []).map((tag) => el("span", { class: "tag" }, tag)));
    }
    setText(this.words, detail.sentences.join(" "));
    this.#problemList(detail);
    this.#bar(summary);
    this.#factList(summary);
    this.#originLines(detail);
  }

  #selection() {
    const isSelected = runs.selected.includes(this.id);
    this.select.setAttribute("aria-pressed", String(isSelected));
    fill(this.select, isSelected && icon("check"), isSelected ? "Selected" : "Select");
    this.select.title = "The pages Curves and Compare show the selected runs";
    this.swatch.hidden = !isSelected;
    this.swatch.style.setProperty("--swatch", runs.colour(this.id));
  }

  #problemList({ problems, sentences }) {
    const said = problems.filter((problem) => !sentences.includes(problem));
    this.problems.hidden = !said.length;
    if (said.length) fill(this.problems, el("strong", {}, "Parts of this run cannot be read."), el("ul", {}, said.map((problem) => el("li", {}, problem))));
  }

  /** The run's folder is no longer there; what is shown stays. */
  gone() {
    this.problems.hidden = false;
    fill(this.problems, "The folder of this run was removed or renamed. This page shows its last known state.");
  }

  #bar({ progress, state, seconds_left: left }) {
    const fraction = progress?.fraction ?? null;
    this.progress.hidden = fraction === null || (state !== "running" && fraction >= 1) || state === "finished";
    if (this.progress.hidden) return;
    const share = `${Math.floor(100 * fraction)} %`;
    const text = state === "running" && left !== null ? `${share}, about ${duration(left)} left` : `${share} done`;
    if (!this.done) {
      this.done = el("div", { class: "done" });
      this.track = el("div", { class: "track", role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100 }, this.done);
      this.progressText = el("span", { class: "progress-text" });
      fill(this.progress, this.track, this.progressText);
    }
    this.track.classList.toggle("is-over", state !== "running");
    this.track.setAttribute("aria-valuenow", Math.round(100 * fraction));
    this.done.style.width = `${Math.min(100, 100 * fraction)}%`;
    setText(this.progressText, text);
  }

  #factList(run) {
    const facts = factsOf(run);
    const signature = facts.map(([label]) => label).join("\n");
    if (this.facts.dataset.signature !== signature) {
      this.facts.dataset.signature = signature;
      fill(this.facts, facts.map(([label]) => el("div", {}, el("dt", {}, label), el("dd", {}))));
    }
    facts.forEach(([, text, hint = ""], index) => {
      const value = this.facts.children[index].lastChild;
      setText(value, text);
      value.title = hint;
    });
  }

  #originLines({ command, path }) {
    const signature = `${command}\n${path}`;
    if (this.origin.dataset.signature === signature) return;
    this.origin.dataset.signature = signature;
    const line = (label, text) => text && el("div", {}, el("span", { class: "faint" }, label), el("code", {}, text), copyButton(text, label));
    fill(this.origin, line("Command", command), line("Folder", path));
  }
}

function factsOf(run) {
  const { progress = {}, metric: best } = run;
  const of = (unit) => (unit in (progress.limit ?? {}) ? ` of ${count(progress.limit[unit])}` : "");
  const facts = [];
  if (best) facts.push([`${best.mode === null ? "Last" : "Best"} ${best.name}`, best.value === null ? "NaN" : number(best.value), best.epoch === null ? "" : `in epoch ${best.epoch}`]);
  if (typeof run.last?.loss === "number" && best?.name !== "loss") facts.push(["Last loss", number(run.last.loss)]);
  if (progress.epoch || "epoch" in (progress.limit ?? {})) facts.push(["Epoch", `${count(progress.epoch)}${of("epoch")}`]);
  if (typeof progress.update === "number") facts.push(["Update", `${count(progress.update)}${of("update")}`]);
  if (typeof progress.sample === "number" && progress.sample) facts.push(["Samples", `${count(progress.sample)}${of("sample")}`]);
  if (run.seconds) facts.push(["Trained for", duration(run.seconds)]);
  if (run.rate) facts.push(["Speed", `${number(run.rate, 3)} updates/s`]);
  if (run.started) facts.push(["Started", age(run.started), moment(run.started)]);
  if (run.device) facts.push(["Device", run.device]);
  if (run.interface) facts.push(["Interface", run.interface]);
  return facts;
}

/** A button that copies a text; nothing where the browser does not allow it. */
export function copyButton(text, what) {
  if (!navigator.clipboard) return null;
  const button = el("button", { class: "button plain small copy", type: "button", "aria-label": `Copy: ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
    setText(button, "Copied");
    setTimeout(() => setText(button, "Copy"), 1500);
  });
  return button;
}
