// A folder of runs: metrics against parameters.

import { el, fill } from "./dom.js";

export const sweepPage = {
  path: "sweep", title: "Sweep", isInNavigation: true,
  mount(root) {
    fill(root, el("div", { class: "page-head" }, el("h1", {}, "Sweep")));
    return { unmount() {} };
  },
};
