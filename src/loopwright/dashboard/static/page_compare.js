// What differs between the selected runs.

import { el, fill } from "./dom.js";

export const comparePage = {
  path: "compare", title: "Compare", isInNavigation: true,
  mount(root) {
    fill(root, el("div", { class: "page-head" }, el("h1", {}, "Compare")));
    return { unmount() {} };
  },
};
