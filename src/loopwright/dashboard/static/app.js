// The frame of the page: which module shows what, the head, keys that work everywhere.

import { isLive } from "./api.js";
import { plotly } from "./chart.js";
import { el, empty, fill, icon, setText } from "./dom.js";
import { plural } from "./format.js";
import { comparePage } from "./page_compare.js";
import { curvesPage } from "./page_curves.js";
import { runPage } from "./page_run.js";
import { runsPage } from "./page_runs.js";
import { sweepPage } from "./page_sweep.js";
import { report } from "./report.js";
import { assignColours, runs, startLive } from "./runs.js";
import { url } from "./url.js";

const PAGES = [runsPage, curvesPage, runPage, comparePage, sweepPage];
const top = document.getElementById("top");
const main = document.getElementById("main");
const banner = document.getElementById("banner");
let shown = null; // {page, view}

/** Keys of every page, for the help; a page has its own in `keys`. */
const KEYS = [["1 … 4", "runs, curves, comparison, sweep"], ["?", "this help"], ["Esc", "close, or leave a field"]];

function show() {
  const page = PAGES.find((one) => one.path === url.page) ?? runsPage;
  if (shown?.page === page && (shown.rest === url.rest || page.path !== "run")) return;
  shown?.view?.unmount?.();
  fill(main);
  main.className = `page-${page.path}`;
  shown = { page, rest: url.rest, view: page.mount(main) };
  document.title = `${page.title}${url.rest ? ` · ${url.rest}` : ""} · Loopwright`;
  scrollTo(0, 0);
  head();
}

function buildHead() {
  const links = PAGES.filter((page) => page.isInNavigation).map((page) => el("a", { data: { page: page.path } }, page.title));
  const state = isLive ? el("span", { class: "connection", id: "connection", title: "New values appear automatically" }, "live")
    : el("span", { class: "made", title: report.made ?? "" }, "report", report.made ? el("span", {}, ` of ${report.made.slice(0, 10)}`) : null);
  fill(top,
    el("a", { class: "brand", data: { page: "runs" }, "aria-label": "Loopwright: runs" }, logo(), el("span", {}, "Loopwright")),
    el("nav", { class: "nav", "aria-label": "Pages" }, links),
    el("div", { class: "top-end" }, el("span", { class: "folder" }), el("span", { class: "selected-count", title: "The selection is the same on all pages" }), state,
      el("button", { class: "button plain icon-only", type: "button", "aria-label": "Keys and help", title: "Keys (?)", onclick: help }, icon("help"))));
}

/** Bring the head up to date without touching what did not change. */
function head() {
  for (const link of top.querySelectorAll("a[data-page]")) {
    link.href = url.link(link.dataset.page);
    if (link.closest("nav") && shown?.page.path === link.dataset.page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const folder = top.querySelector(".folder");
  setText(folder, `\u200e${runs.about.root ?? ""}`);
  folder.title = runs.about.path ?? "";
  setText(top.querySelector(".selected-count"), `${plural(runs.selected.length, "run")} selected`);
}

function logo() {
  const sign = icon("logo");
  sign.classList.add("logo");
  return sign;
}

function help() {
  const own = shown?.page.keys ?? [];
  const close = () => dialog.close();
  const dialog = el("dialog", { "aria-label": "Keys" },
    el("h1", {}, "Keys"),
    el("dl", { class: "keys" }, [...own, ...KEYS].map(([key, what]) => [
      el("dt", {}, key.split(" ").map((part) => (part.length > 5 || part === "…" ? ` ${part} ` : el("kbd", {}, part)))), el("dd", {}, what)])),
    el("button", { class: "button primary", type: "button", onclick: close }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const isTyping = (target) => target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea, dialog *");

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const numbered = PAGES.filter((page) => page.isInNavigation)[Number(event.key) - 1];
  if (event.key === "?") help();
  else if (event.key === "/") document.querySelector("main input[type=search]")?.focus();
  else if (numbered) url.go(numbered.path);
  else return shown?.view?.key?.(event);
  event.preventDefault();
}

function say(text) {
  banner.hidden = !text;
  setText(banner, text ?? "");
}

function connectionChanged(state) {
  const word = document.getElementById("connection");
  word?.classList.toggle("is-lost", state === "lost");
  if (word) setText(word, state === "lost" ? "no connection" : "live");
  say(state === "lost" ? "The server does not answer: is loopwright ui still running? The values shown may be out of date. The page keeps trying." : null);
}

async function start() {
  if (url.page !== "runs") plotly().catch(() => {}); // while the runs are read; a chart says it where it cannot be had
  const waiting = setTimeout(() => fill(main, el("p", { class: "waiting" }, "Reading the runs: the first time takes the longest.")), 700);
  try {
    await runs.load();
    clearTimeout(waiting);
  } catch (error) {
    clearTimeout(waiting);
    fill(main, empty("The runs cannot be shown", error.message));
    return;
  }
  if (runs.about.is_single && url.page === "runs" && !location.hash && runs.all.length === 1) url.go("run", runs.all[0].id);
  assignColours();
  url.listen((keys) => { if (keys === null) show(); head(); });
  runs.listen((what, detail) => {
    if (what === "connection") return connectionChanged(detail);
    if (what === "selection" || what === "runs") { assignColours(); head(); }
  });
  addEventListener("keydown", keydown);
  buildHead();
  show();
  if (isLive) startLive();
}

start();
