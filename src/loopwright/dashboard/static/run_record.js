// What a run left and what it ran with: checkpoints, config, environment, manifest.

import { api, isLive } from "./api.js";
import { el, fill, setText } from "./dom.js";
import { age, count, moment, number, value } from "./format.js";
import { copyButton } from "./run_head.js";

// --- checkpoints

export const checkpointSection = {
  key: "checkpoints", title: () => "Checkpoints", parts: ["checkpoints"], isShown: ({ checkpoints }) => checkpoints.length > 0, make: (context) => new CheckpointView(context),
};

class CheckpointView {
  constructor({ id }) {
    this.id = id;
    this.verify = el("button", { class: "button", type: "button", title: "Read the files and compare their hashes with those recorded when they were saved", onclick: () => this.#verify() }, "Verify contents");
    this.tools = isLive && this.verify;
    this.body = el("tbody");
    const head = ["Name", "Update", "Epoch", "Metric", "Size", "Saved", "Validity"].map((title, index) => el("th", { scope: "col", class: [1, 2, 4].includes(index) ? "number" : "" }, title));
    this.problem = el("p", { class: "hint is-bad", role: "alert" });
    this.element = el("div", {}, el("div", { class: "small-table-frame card", tabindex: 0, role: "region", "aria-label": "Checkpoints" }, el("table", { class: "small-table is-roomy" }, el("thead", {}, el("tr", {}, head)), this.body)), this.problem);
  }

  update({ checkpoints }) {
    const known = this.verified ?? new Map();
    fill(this.body, checkpoints.map((one) => this.#row(known.get(one.name)?.created === one.created ? known.get(one.name) : one)));
  }

  #row(one) {
    return el("tr", {}, el("th", { scope: "row" }, el("span", { class: "mono" }, one.name), el("span", { class: "faint" }, one.kind === "resume" ? " resume point" : " model")), el("td", { class: "number" }, count(one.update)), el("td", { class: "number" }, count(one.epoch)),
      el("td", {}, one.metric ? `${one.metric.name} ${number(one.metric.value)}` : "", one.is_best && el("span", { class: "pill good" }, "best")), el("td", { class: "number" }, size(one.size)), el("td", { title: moment(one.created) }, age(one.created)), el("td", {}, validity(one)));
  }

  async #verify() {
    this.verify.disabled = true;
    setText(this.verify, "Reading the files…");
    setText(this.problem, "");
    try {
      const { checkpoints } = await api("checkpoints", { verify: 1 }, { of: this.id });
      this.verified = new Map(checkpoints.map((one) => [one.name, one]));
      this.update({ checkpoints });
    } catch (error) {
      setText(this.problem, error.message);
    }
    this.verify.disabled = false;
    setText(this.verify, "Verify contents");
  }
}

function validity({ is_sound: isSound, is_verified: isVerified, problems }) {
  if (!isSound) return [el("span", { class: "pill bad" }, "damaged"), el("div", { class: "hint is-bad" }, problems.join(" "))];
  return isVerified ? el("span", { class: "pill good", title: "The hashes of all files match" }, "verified") : el("span", { class: "pill", title: "All files exist and have the recorded size; their contents were not read" }, "complete");
}

export function size(bytes) {
  if (typeof bytes !== "number") return "–";
  const [unit, divisor] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, least]) => bytes >= least) ?? ["B", 1];
  return `${(bytes / divisor).toFixed(divisor > 1 && bytes / divisor < 100 ? 1 : 0)} ${unit}`;
}

// --- config

const LARGE = 16; // entries of one card

export const configSection = {
  key: "config", title: () => "Config", parts: ["config", "config_text", "changes", "summary"], isShown: ({ summary, changes }) => Object.keys(summary.config ?? {}).length > 0 || changes.length > 0,
  make: () => new ConfigView(),
};

class ConfigView {
  constructor() {
    this.text = "";
    this.tools = copyButton(() => this.text, "config");
    this.element = el("div");
  }

  update({ summary, config, config_text: text, settings: noted, changes }) {
    const settings = text && config ? Object.fromEntries(flat(config)) : noted ?? summary.config ?? {};
    const signature = JSON.stringify([settings, text, changes]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.text = text ?? JSON.stringify(settings, null, 2);
    fill(this.element, changes.length > 0 && el("ul", { class: "changes card" }, changes.map((change) => el("li", {}, change))), cards(groups(Object.entries(settings))),
      text && el("details", { class: "raw" }, el("summary", {}, "As a file"), el("pre", { class: "command" }, text)));
  }
}

/** Flat keys by their first part; those of a large group by their second as well, and so on. What has none comes first. */
function groups(entries, prefix = "") {
  const found = new Map([["", []]]);
  for (const [key, entry] of entries) {
    const at = key.indexOf(".");
    const title = at < 0 ? "" : key.slice(0, at);
    if (!found.has(title)) found.set(title, []);
    found.get(title).push([key.slice(at + 1), entry]);
  }
  return [...found].filter(([, members]) => members.length).flatMap(([title, members]) => {
    const name = [prefix, title].filter(Boolean).join(".");
    return title && members.length > LARGE ? groups(members, name) : [[name, members]];
  });
}

const cards = (all) => el("div", { class: "entry-cards" }, all.map(([title, entries]) => el("section", { class: "card entry-card" }, title && el("h3", {}, title), entryList(entries))));

const entryList = (entries) => el("dl", { class: "entries" }, entries.map(([key, entry]) => [el("dt", {}, key), el("dd", {}, value(entry))]));

// --- environment and manifest

export const environmentSection = {
  key: "environment", title: () => "Environment", parts: ["environment", "data"], isShown: ({ environment }) => environment.length > 0,
  make() {
    const element = el("div");
    return { element, update({ environment, data }) {
      const many = environment.filter(({ entries }) => entries.length > 14);
      const few = environment.filter(({ entries }) => entries.length <= 14).map(({ title, entries }) => [title, entries]);
      const known = data ? [["Data", flat(data)]] : [];
      fill(element, cards([...few, ...known]), many.map(({ title, entries }) => el("details", { class: "raw" }, el("summary", {}, `${title} (${count(entries.length)})`), el("div", { class: "card entry-card is-long" }, entryList(entries)))));
    } };
  },
};

export const manifestSection = {
  key: "manifest", title: () => "Manifest", parts: ["manifest"], isShown: ({ manifest }) => Object.keys(manifest).length > 0,
  make() {
    const text = el("pre", { class: "command" });
    let current = "";
    return {
      element: el("details", { class: "raw" }, el("summary", {}, "run.json, as the run wrote it"), text), tools: copyButton(() => current, "manifest"),
      update({ manifest }) { current = JSON.stringify(manifest, null, 2); setText(text, current); },
    };
  },
};

/** Nested entries under dotted keys; lists stay whole. */
function flat(data, prefix = "") {
  return Object.entries(data).flatMap(([key, entry]) => (entry && typeof entry === "object" && !Array.isArray(entry) ? flat(entry, `${prefix}${key}.`) : [[`${prefix}${key}`, entry]]));
}
