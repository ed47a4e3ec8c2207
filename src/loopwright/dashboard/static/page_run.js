// One run: what it is, how it went, what it left.

import { el, fill } from "./dom.js";

export const runPage = {
  path: "run", title: "Run", isInNavigation: false,
  mount(root) {
    fill(root, el("div", { class: "page-head" }, el("h1", {}, "Run")));
    return { unmount() {} };
  },
};
