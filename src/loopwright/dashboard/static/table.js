// A table of many rows that changes while one looks at it: only cells that differ are touched.

import { el, fill, setText } from "./dom.js";

const CHUNK = 300; // rows before "show more"

/**
 * A table inside `host`.
 *
 * Options: `label`; `key(row)`; `onsort(key)`; `onopen(row)` for Enter and double click;
 * `selection: {has(id), set(ids, isSelected)}` for a column of check boxes; `groupSelect` likewise for whole groups.
 * A column is `{key, title, prefix?, align?: "number", text(row), draw?(cell, row), hint?, width?, isSticky?}`: `text` says
 * what is in the cell, `draw` fills it when that has changed.
 */
export class Table {
  #rows = new Map(); // id → {element, cells: Map(key → {cell, text}), check}
  #order = []; // ids as shown
  #columns = [];
  #active = null; // the row that the keyboard is at
  #anchor = null; // where a range of rows begins
  #limit = CHUNK;

  constructor(host, options) {
    this.options = options;
    this.head = el("tr");
    this.body = el("tbody");
    this.element = el("table", { class: "table", "aria-label": options.label ?? "Table" }, el("thead", {}, this.head), this.body);
    this.more = el("button", { class: "button", type: "button", hidden: true, onclick: () => this.#showMore() });
    host.append(el("div", { class: "table-frame", tabindex: -1 }, this.element), this.more);
    this.body.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (event) => this.#click(event));
    this.body.addEventListener("dblclick", (event) => this.#open(event.target.closest("tr")));
  }

  /** Show `groups` (`[{title, rows}]`, title null for none) with `columns`, sorted by `sort: {key, isDescending}`. */
  set({ groups, columns, sort }) {
    this.last = { groups, columns, sort };
    this.#setColumns(columns, sort);
    const order = [];
    const elements = [];
    const isGrouped = groups.some((group) => group.title !== null);
    for (const group of groups) {
      const ids = group.rows.map(this.options.key);
      if (isGrouped) elements.push(this.#groupRow(group, ids));
      for (const row of group.rows) {
        order.push(this.options.key(row));
        if (order.length <= this.#limit) elements.push(this.#row(row, isGrouped));
      }
    }
    this.#place(elements);
    this.#order = order.slice(0, this.#limit);
    this.#all = order;
    this.#forget(new Set(order));
    this.more.hidden = order.length <= this.#limit;
    setText(this.more, `Show ${order.length - this.#limit} more`);
    this.#roving();
    this.#headCheck();
  }

  #all = [];

  #showMore() {
    this.#limit += 1000;
    this.set(this.last);
  }

  #setColumns(columns, sort) {
    const signature = JSON.stringify([columns.map((column) => [column.key, column.title, column.prefix, column.align]), sort]);
    if (this.signature === signature) { this.#columns = columns; return; }
    const focused = this.head.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    if (JSON.stringify(this.#columns.map((column) => column.key)) !== JSON.stringify(columns.map((column) => column.key))) this.#rows.clear();
    this.signature = signature;
    this.#columns = columns;
    this.check = this.options.selection && el("input", { type: "checkbox", "aria-label": "Select all rows shown", onclick: () => this.options.selection.set(this.#all, this.check.checked) });
    fill(this.head, this.check && el("th", { class: "check is-sticky", scope: "col" }, this.check), columns.map((column) => this.#headCell(column, sort)));
    if (focused) this.head.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #headCell(column, sort) {
    const isSorted = sort?.key === column.key;
    const direction = isSorted ? (sort.isDescending ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: classOf(column), "aria-sort": direction },
      el("button", { type: "button", class: "sort", data: { key: column.key }, title: column.hint ?? column.key, onclick: () => this.options.onsort?.(column.key) },
        column.prefix && el("span", { class: "prefix" }, column.prefix), el("span", { class: "title" }, column.title, isSorted && el("span", { class: "arrow", "aria-hidden": "true" }, sort.isDescending ? " ↓" : " ↑"))));
  }

  #groupRow({ title, rows, detail }, ids) {
    const check = this.options.selection && el("input", { type: "checkbox", "aria-label": `Select the group ${title}`, checked: ids.every((id) => this.options.selection.has(id)), onclick: () => this.options.selection.set(ids, check.checked) });
    return el("tr", { class: "group" }, check && el("td", { class: "check is-sticky" }, check), el("th", { colspan: this.#columns.length, scope: "rowgroup" },
      el("span", { class: "group-title" }, title, el("span", { class: "faint" }, `  ${rows.length}`), detail && el("span", { class: "faint" }, `  ${detail}`))));
  }

  #row(row, isGrouped) {
    const id = this.options.key(row);
    let known = this.#rows.get(id);
    if (!known) this.#rows.set(id, known = this.#newRow(id));
    for (const column of this.#columns) {
      const entry = known.cells.get(column.key);
      const text = column.text(row);
      if (entry.text === text) continue;
      entry.text = text;
      if (column.draw) column.draw(entry.cell, row);
      else setText(entry.cell, text);
      if (!column.draw && text.length > 24) entry.cell.title = text;
    }
    const isSelected = this.options.selection?.has(id) ?? false;
    if (known.check && known.check.checked !== isSelected) known.check.checked = isSelected;
    if (known.isSelected !== isSelected) {
      known.isSelected = isSelected;
      known.element.classList.toggle("is-selected", isSelected);
      if (this.options.selection) known.element.setAttribute("aria-selected", String(isSelected));
    }
    known.element.classList.toggle("is-grouped", isGrouped);
    return known.element;
  }

  #newRow(id) {
    const cells = new Map();
    const check = this.options.selection && el("input", { type: "checkbox", tabindex: -1, "aria-label": `Select ${id}` });
    const element = el("tr", { tabindex: -1, data: { id } }, check && el("td", { class: "check is-sticky" }, check));
    for (const column of this.#columns) {
      const cell = el("td", { class: classOf(column) });
      cells.set(column.key, { cell, text: null });
      element.append(cell);
    }
    return { element, cells, check };
  }

  /** Put the rows in order; rows that are in place stay untouched, so nothing loses the focus. */
  #place(elements) {
    elements.forEach((element, index) => {
      if (this.body.children[index] !== element) this.body.insertBefore(element, this.body.children[index] ?? null);
    });
    while (this.body.children.length > elements.length) this.body.lastChild.remove();
  }

  #forget(kept) {
    for (const id of this.#rows.keys()) if (!kept.has(id)) this.#rows.delete(id);
  }

  #headCheck() {
    if (!this.check) return;
    const selected = this.#all.filter((id) => this.options.selection.has(id)).length;
    this.check.checked = selected > 0 && selected === this.#all.length;
    this.check.indeterminate = selected > 0 && selected < this.#all.length;
  }

  #roving() {
    if (!this.#order.includes(this.#active)) this.#active = this.#order[0] ?? null;
    for (const [id, { element }] of this.#rows) element.tabIndex = id === this.#active ? 0 : -1;
  }

  #move(id, isRange) {
    if (id === undefined) return;
    if (isRange && this.#anchor === null) this.#anchor = this.#active;
    if (!isRange) this.#anchor = null;
    this.#active = id;
    this.#roving();
    this.#rows.get(id)?.element.focus();
    if (isRange) this.#selectRange(this.#anchor, id);
  }

  #selectRange(from, to) {
    const [first, last] = [this.#order.indexOf(from), this.#order.indexOf(to)].sort((a, b) => a - b);
    this.options.selection?.set(this.#order.slice(Math.max(0, first), last + 1), true);
  }

  #key(event) {
    const row = event.target.closest("tr[data-id]");
    if (!row || event.target.matches("a") && event.key === "Enter") return;
    const at = this.#order.indexOf(row.dataset.id);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15, Home: -this.#order.length, End: this.#order.length };
    if (event.key in steps) this.#move(this.#order[Math.min(this.#order.length - 1, Math.max(0, at + steps[event.key]))], event.shiftKey);
    else if (event.key === " " || event.key === "x") this.options.selection?.set([row.dataset.id], !this.options.selection.has(row.dataset.id));
    else if (event.key === "Enter") this.#open(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #click(event) {
    const row = event.target.closest("tr[data-id]");
    if (!row || event.target.closest("a, button")) return;
    const { id } = row.dataset;
    const before = this.#active;
    this.#active = id;
    this.#roving();
    const isCheck = event.target.closest(".check") !== null;
    if (!this.options.selection || (!isCheck && !event.shiftKey && !event.ctrlKey && !event.metaKey)) return;
    if (event.shiftKey && before) this.#selectRange(before, id);
    else this.options.selection.set([id], !this.options.selection.has(id));
    getSelection()?.removeAllRanges();
  }

  #open(row) {
    if (row?.dataset.id) this.options.onopen?.(row.dataset.id);
  }

  /** Put the keyboard at the first row (or the last one that it was at). */
  focus() { this.#rows.get(this.#active)?.element.focus(); }
}

const classOf = (column) => `${column.align ?? ""} ${column.isSticky ? "is-sticky" : ""} ${column.class ?? ""}`.trim();
