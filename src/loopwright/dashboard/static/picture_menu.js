// The menu that saves a chart as a picture.

import { download } from "./chart.js";
import { el, icon, menu } from "./dom.js";

/** A button with the ways to save the chart that `chartOf()` gives; `title` stands above the picture. */
export function pictureMenu(chartOf, title) {
  const save = (format) => async () => download(await chartOf().image(format, { title }), `${title}.${format}`);
  const choices = () => [["png", "Picture (PNG)"], ["svg", "Drawing (SVG)"]].map(([format, text]) => el("button", { class: "choice", type: "button", onclick: save(format) }, text));
  return menu(icon("download"), choices, { button: { class: "button plain icon-only", "aria-label": "Export", title: "Export" } });
}
