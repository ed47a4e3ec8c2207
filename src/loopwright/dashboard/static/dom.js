// Elements without markup in strings: text is always text, so that a run's name can never become HTML.

const PROPERTIES = new Set(["value", "checked", "disabled", "indeterminate", "hidden", "open", "tabIndex", "className"]);

/**
 * Make an element: `el("button", {class: "small", onclick: go, "aria-label": "Go"}, "Go", icon)`.
 * Names that start with "on" are listeners, `style` is a mapping, `data` a mapping of data attributes; null and false leave out.
 */
export function el(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) setOption(element, name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function setOption(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, entry] of Object.entries(value)) element.style.setProperty(key, entry);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (PROPERTIES.has(name)) element[name] = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set text only where it differs: a live page must not touch what did not change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const ICONS = {
  logo: "M2 3.5c2 0 2.5 8.5 5.5 8.5 2 0 2-2.6 3.3-2.6S12.5 10.5 14 10.5",
  check: "M3 8.5l3.2 3.2L13 5", chevron: "M5 3l5 5-5 5", close: "M4 4l8 8M12 4l-8 8", columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  download: "M8 2v8M4.8 7L8 10.2 11.2 7M3 13.5h10", expand: "M9.5 2.5h4v4M6.5 13.5h-4v-4M13 3L9.2 6.8M3 13l3.8-3.8",
  help: "M6 6.2a2 2 0 1 1 2.8 1.9c-.6.3-.8.7-.8 1.4M8 12v.1", search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7L14 14",
  reset: "M3 8a5 5 0 1 0 1.7-3.8M4.7 1.8v2.6h2.6", flag: "M4 14V2.5h8l-2 3 2 3H4", warning: "M8 2.5L14.5 13.5h-13zM8 6.5v3.4M8 11.6v.1",
};

/** A line icon of 16 px in the text's colour; it says nothing to a screen reader. */
export function icon(name) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" })) svg.setAttribute(key, value);
  const path = document.createElementNS(namespace, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** An empty state: what there is not, and what to do; `command` is shown as something to type. */
export function empty(title, text, command = null) {
  return el("div", { class: "empty" }, el("h2", {}, title), el("p", {}, text), command && el("pre", { class: "command" }, el("code", {}, command)));
}

/** A menu that a button opens: closes on Escape, on a click elsewhere, and gives the focus back to its button. */
export function menu(label, build, options = {}) {
  const panel = el("div", { class: "menu-panel", hidden: true });
  const button = el("button", { class: "button", type: "button", "aria-expanded": "false", "aria-haspopup": "true", ...options.button }, label);
  const holder = el("div", { class: `menu ${options.class ?? ""}` }, button, panel);
  const close = () => {
    if (panel.hidden) return;
    panel.hidden = true;
    button.setAttribute("aria-expanded", "false");
  };
  button.addEventListener("click", () => {
    if (!panel.hidden) return close();
    fill(panel, build(close));
    panel.hidden = false;
    button.setAttribute("aria-expanded", "true");
    panel.classList.toggle("to-left", holder.getBoundingClientRect().left + panel.offsetWidth > innerWidth - 8);
    panel.querySelector("input, button, a")?.focus();
  });
  holder.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || panel.hidden) return;
    event.stopPropagation();
    close();
    button.focus();
  });
  holder.addEventListener("focusout", (event) => { if (!holder.contains(event.relatedTarget) && event.relatedTarget) close(); });
  document.addEventListener("pointerdown", (event) => { if (!holder.contains(event.target)) close(); });
  return holder;
}
