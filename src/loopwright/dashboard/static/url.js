// All state of the page is in the address, behind the #: it survives a reload and can be sent to somebody.
// `#/curves?runs=a,b&x=step`: the page, what it shows (`#/run/<id>`), and settings. Settings that are at their default are left out.

const listeners = new Set();
let current = parse();

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  return { page: page || "runs", rest: decode(rest.join("/")), params: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a % that somebody typed
  }
}

/** A setting as text; in a list, a comma inside of an entry must not be taken for the end of it. */
function written(entry) {
  if (!Array.isArray(entry)) return String(entry);
  return entry.map((item) => String(item).replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
}

function changed(changes) {
  const params = new URLSearchParams(current.params);
  for (const [key, entry] of Object.entries(changes)) {
    if (entry === null || entry === undefined) params.delete(key);
    else params.set(key, written(entry));
  }
  return params;
}

function write(page, rest, params) {
  const query = params.toString().replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3D", "=");
  return `#/${page}${rest ? `/${encodeURIComponent(rest)}` : ""}${query ? `?${query}` : ""}`;
}

export const url = {
  get page() { return current.page; },
  get rest() { return current.rest; },
  get(key, otherwise = null) { return current.params.get(key) ?? otherwise; },
  list(key) { return current.params.get(key)?.split(",").filter(Boolean).map(decode) ?? null; },

  /** Change settings: `url.set({x: "wall", zoom: null})`; null takes one away. `replace` leaves no entry in the history. */
  set(changes, { replace = true } = {}) {
    const address = write(current.page, current.rest, changed(changes));
    if (address === write(current.page, current.rest, current.params)) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    current = parse();
    for (const listener of listeners) listener(Object.keys(changes));
  },

  /** The address of another page with today's settings: the selection goes along. */
  link(page, rest = "", changes = {}) {
    return write(page, rest, changed(changes));
  },

  go(page, rest = "", changes = {}) { location.hash = url.link(page, rest, changes).slice(1); },

  /** Call `listener(keys)` after every change; keys is null when it leads to another page. */
  listen(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

/** The settings in which two addresses of the same page differ; null where they are of different pages. */
function difference(before, now) {
  if (before.page !== now.page || before.rest !== now.rest) return null;
  return [...new Set([...before.params.keys(), ...now.params.keys()])].filter((key) => before.params.get(key) !== now.params.get(key));
}

window.addEventListener("hashchange", () => { // a link, the browser's Back, or an address that was typed
  const keys = difference(current, (current = parse()));
  for (const listener of listeners) listener(keys);
});
