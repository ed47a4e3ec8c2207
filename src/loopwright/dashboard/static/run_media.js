// Images, texts and tables that a run logged, at the step that a slider says. It follows the newest step until it is moved.

import { api, isLive, mediaUrl } from "./api.js";
import { el, fill, icon, setText } from "./dom.js";
import { count, number } from "./format.js";
import { url } from "./url.js";

const KINDS = { image: "images", text: "texts", table: "tables" };
const LARGER = 4; // small images are shown so many times as large as they are, at most
const ROWS = 100; // of a table
const FEW = 4; // images that are shown in one row, however narrow it is
const CELL = 144; // px of one of many images

const ORDER = Object.keys(KINDS);
const shown = ({ media }) => media.filter(({ kind, items }) => kind in KINDS && items.length).sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || a.name.localeCompare(b.name, "en", { numeric: true }));

export const mediaSection = {
  key: "media", parts: ["media"], isShown: (detail) => shown(detail).length > 0, make: (context) => new MediaView(context),
  title(detail) {
    const words = ORDER.filter((kind) => shown(detail).some((group) => group.kind === kind)).map((kind) => KINDS[kind]);
    const text = words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0];
    return text[0].toUpperCase() + text.slice(1);
  },
};

class MediaView {
  #blocks = new Map(); // name and kind → Block
  #steps = [];

  constructor({ id }) {
    this.id = id;
    this.slider = el("input", { type: "range", min: 0, step: 1, class: "step-slider", "aria-label": "Step of the images", oninput: () => this.#choose(Number(this.slider.value)) });
    this.place = el("output", { class: "step-place" });
    this.before = el("button", { class: "button icon-only", type: "button", "aria-label": "Earlier", title: "Earlier (←)", onclick: () => this.#move(-1) }, turned());
    this.after = el("button", { class: "button icon-only", type: "button", "aria-label": "Later", title: "Later (→)", onclick: () => this.#move(1) }, icon("chevron"));
    this.newest = el("button", { class: "button", type: "button", title: "Show the newest step, and follow it (n)", onclick: () => this.#newest() }, "Newest");
    this.bar = el("div", { class: "step-bar" }, this.before, this.slider, this.after, this.place, this.newest);
    this.blocks = el("div", { class: "media-blocks" });
    this.element = el("div", {}, this.bar, this.blocks);
    this.undo = url.listen((keys) => { if (keys?.includes("at")) this.#show(); });
  }

  destroy() {
    this.undo();
    this.dialog?.close();
  }

  /** The index of the step to show. */
  get index() {
    const chosen = url.get("at");
    if (chosen === null) return this.#steps.length - 1;
    return Math.max(0, this.#steps.findLastIndex((step) => step <= Number(chosen)));
  }

  #choose(index) { url.set({ at: this.#steps[index] }); }
  #newest() { url.set({ at: null }); }
  #move(by) { this.#choose(Math.min(this.#steps.length - 1, Math.max(0, this.index + by))); }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps && !event.target.closest?.("button, a, input, [role=img]")) this.#move(steps[event.key]);
    else if (event.key === "n") this.#newest();
    else return false;
    return true;
  }

  update(detail) {
    this.groups = shown(detail);
    this.#steps = [...new Set(this.groups.flatMap(({ items }) => items.map((item) => item.step)))].sort((a, b) => a - b);
    this.isRunning = detail.summary.state === "running";
    this.groups.forEach((group, index) => this.#blockOf(group, index));
    const keys = new Set(this.groups.map(keyOf));
    for (const [key, block] of this.#blocks) if (!keys.has(key)) { block.element.remove(); this.#blocks.delete(key); }
    this.bar.hidden = this.#steps.length < 2;
    this.#show();
  }

  #blockOf(group, index) {
    const key = keyOf(group);
    if (!this.#blocks.has(key)) {
      const block = new Block(this.id, group, (position) => this.#enlarge(block, position));
      this.#blocks.set(key, block);
    }
    const { element } = this.#blocks.get(key);
    if (this.blocks.children[index] !== element) this.blocks.insertBefore(element, this.blocks.children[index] ?? null);
    this.#blocks.get(key).items = group.items;
  }

  #show() {
    const { index } = this;
    const step = this.#steps[index];
    this.slider.max = this.#steps.length - 1;
    this.slider.value = index;
    const example = this.groups.flatMap(({ items }) => items).find((item) => item.step === step);
    const text = `step ${count(step)}${typeof example?.epoch === "number" ? `, epoch ${number(example.epoch)}` : ""}`;
    this.slider.setAttribute("aria-valuetext", text);
    setText(this.place, text);
    this.before.disabled = index === 0;
    this.after.disabled = index === this.#steps.length - 1;
    const isFollowing = url.get("at") === null;
    this.newest.setAttribute("aria-pressed", String(isFollowing));
    setText(this.newest, isFollowing && this.isRunning && isLive ? "Following" : "Newest");
    for (const block of this.#blocks.values()) block.show(step);
    this.drawDialog?.();
  }

  /** One image as large as the window allows; the arrow keys go through the steps there too. */
  #enlarge(block, position) {
    const picture = el("img", { alt: "" });
    const title = el("h2");
    const note = el("span", { class: "muted" });
    const dialog = el("dialog", { class: "picture", "aria-label": block.name }, el("header", {}, title, note, el("span", { class: "space" }), el("button", { class: "button plain icon-only", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))), picture);
    this.dialog = dialog;
    this.drawDialog = () => {
      const item = block.at.find((one) => one.position === position) ?? block.at[0];
      if (!item) return;
      setText(title, [block.name, item.caption].filter(Boolean).join(": "));
      setText(note, this.place.textContent);
      picture.src = mediaUrl(this.id, item.id);
    };
    picture.addEventListener("load", () => picture.classList.toggle("is-small", picture.naturalWidth < 400));
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) { event.preventDefault(); this.#move(by); }
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => { dialog.remove(); this.drawDialog = null; });
    document.body.append(dialog);
    this.drawDialog();
    dialog.showModal();
  }
}

const keyOf = ({ name, kind }) => `${kind}\n${name}`;

function turned() {
  const sign = icon("chevron");
  sign.classList.add("is-turned");
  return sign;
}

/** What one name shows at a step: a row of images, a text, or a table. */
class Block {
  #asked = null;

  constructor(run, { name, kind }, onopen) {
    Object.assign(this, { run, name, kind, onopen, items: [], at: [] });
    this.note = el("span", { class: "hint" });
    this.body = el("div", { class: `media-${kind}` });
    if (kind === "image") new ResizeObserver(() => this.#columns()).observe(this.body);
    this.element = el("article", { class: `media-block is-${kind}`, "aria-label": name, data: { name } }, el("header", {}, el("h3", {}, name), this.note), this.body);
  }

  show(step) {
    const last = this.items.findLast((item) => item.step <= step)?.step ?? this.items[0].step;
    this.at = this.items.filter((item) => item.step === last);
    setText(this.note, last === step ? "" : `from step ${count(last)}`);
    if (this.kind === "image") this.#images();
    else this.#content();
    this.#prefetch(last);
  }

  #images() {
    const { body } = this;
    while (body.children.length > this.at.length) body.lastChild.remove();
    while (body.children.length < this.at.length) body.append(this.#figure(body.children.length));
    body.classList.toggle("is-many", this.at.length > FEW);
    this.#columns();
    this.at.forEach((item, index) => {
      const figure = body.children[index];
      const picture = figure.querySelector("img");
      const address = mediaUrl(this.run, item.id);
      if (picture.getAttribute("src") !== address) picture.src = address;
      picture.alt = `${this.name}${item.caption ? `, ${item.caption}` : ""}, step ${item.step}`;
      setText(figure.querySelector("figcaption"), item.caption ?? "");
    });
  }

  /** A few images stand in one row. Of many, those that belong together do: the columns are a multiple of their number. */
  #columns() {
    const together = this.at.length > FEW ? period(this.at.map(({ caption }) => caption ?? "")) : this.at.length;
    const fitting = this.at.length > FEW ? Math.max(1, Math.floor(this.body.clientWidth / (together * CELL))) : 1;
    this.body.style.setProperty("--images", Math.min(this.at.length, together > 1 ? together * fitting : Math.max(2, fitting)));
  }

  #figure(index) {
    const picture = el("img", { loading: "lazy", decoding: "async" });
    picture.addEventListener("load", () => {
      const { naturalWidth: width } = picture;
      picture.style.maxWidth = `${Math.max(112, LARGER * width)}px`;
      picture.classList.toggle("is-small", width < 200);
      picture.classList.remove("is-lost");
    });
    picture.addEventListener("error", () => picture.classList.add("is-lost"));
    return el("figure", {}, el("button", { class: "picture-button", type: "button", "aria-label": `Enlarge ${this.name}`, onclick: () => this.onopen(this.at[index].position) }, picture), el("figcaption", {}));
  }

  /** Have the neighbours ready, so that the slider shows them at once. */
  #prefetch(step) {
    if (this.kind !== "image" || !isLive || url.get("at") === null) return;
    const later = this.items.find((item) => item.step > step);
    const earlier = this.items.findLast((item) => item.step < step);
    for (const item of [later, earlier]) if (item) new Image().src = mediaUrl(this.run, item.id);
  }

  async #content() {
    const item = this.at.at(-1);
    if (this.#asked === item.id) return;
    this.#asked = item.id;
    try {
      const content = await contentOf(this.run, this.name, item);
      if (this.#asked === item.id) fill(this.body, this.kind === "text" ? content : tableOf(content));
    } catch (error) {
      if (this.#asked === item.id) fill(this.body, el("p", { class: "hint is-bad" }, error.message));
      this.#asked = null;
    }
  }
}

/** After how many images their captions repeat, but for numbers: 3 for input, output, target, input, ... */
function period(captions) {
  const words = captions.map((caption) => caption.replaceAll(/\d+/g, ""));
  const repeats = (length) => captions.length % length === 0 && new Set(words.slice(0, length)).size === length && words.every((word, index) => word === words[index % length]);
  return [2, 3, 4, 5, 6].find(repeats) ?? 1;
}

const contents = new Map(); // address → content; what was logged at a step does not change

async function contentOf(run, name, item) {
  const key = `${run}\n${item.id}\n${item.wall}`;
  if (contents.size > 500) contents.clear();
  if (!contents.has(key)) contents.set(key, isLive ? (await api(`media/${encodeURIComponent(run)}/${item.id}`)).content : await fromReport(run, name, item));
  return contents.get(key);
}

/** A report holds some of many contents: the one at this step, or the last before it. */
async function fromReport(run, name, item) {
  const { items } = await api("contents", { name }, { of: run });
  return (items.findLast((one) => one.step <= item.step) ?? items[0]).content;
}

function tableOf({ columns, rows }) {
  const isNumber = columns.map((_, index) => rows.some((row) => typeof row[index] === "number") && rows.every((row) => row[index] === null || typeof row[index] === "number"));
  const cell = (entry) => (entry === null ? "–" : typeof entry === "number" ? number(entry) : String(entry));
  return [el("div", { class: "small-table-frame", tabindex: 0, role: "region", "aria-label": "Table" }, el("table", { class: "small-table" },
    el("thead", {}, el("tr", {}, columns.map((column, index) => el("th", { scope: "col", class: isNumber[index] ? "number" : "" }, String(column))))),
    el("tbody", {}, rows.slice(0, ROWS).map((row) => el("tr", {}, row.map((entry, index) => el("td", { class: isNumber[index] ? "number" : "" }, cell(entry)))))))),
  rows.length > ROWS && el("p", { class: "hint" }, `The first ${ROWS} of ${count(rows.length)} rows.`)];
}
