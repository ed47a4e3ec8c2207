// The only way to data: no other module may fetch anything. In a report (one file without a server) the answers are in
// the file itself, and `report.js` picks them out.

import { report, reportAnswer, reportMedia } from "./report.js";

/** True where runs can change while the page is open. */
export const isLive = report === null;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The address of an answer, for downloads. `query` may hold lists: {run: ["a", "b"]}. */
export function address(path, query = {}) {
  const params = new URLSearchParams();
  for (const [key, entry] of Object.entries(query)) {
    for (const item of Array.isArray(entry) ? entry : [entry]) if (item !== null && item !== undefined) params.append(key, item);
  }
  const text = params.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

/** The address of a picture of a run. */
export function mediaUrl(run, id) {
  return isLive ? address(`media/${encodeURIComponent(run)}/${encodeURIComponent(id)}`) : reportMedia(run, id);
}

/**
 * Get an answer of the server: `await api("curves", {run: ["a", "b"], name: "loss"})`, `await api("run", {}, {of: id})`.
 * `of` is a run's id, which becomes a part of the path. An `ApiError` says in a sentence what went wrong.
 */
export async function api(path, query = {}, { of = null, signal = null } = {}) {
  if (!isLive) return reportAnswer(path, query, of);
  const place = of === null ? path : `${path}/${encodeURIComponent(of)}`;
  let response;
  try {
    response = await fetch(address(place, query), { signal, cache: "no-cache", headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is `loopwright ui` still running?");
  }
  if (response.ok) return response.json();
  throw new ApiError(response.status, await explain(response));
}

async function explain(response) {
  try {
    const answer = await response.json();
    return answer.error ?? `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status} ${response.statusText}.`;
  }
}

/**
 * Follow changes by server-sent events, one connection per page. `query()` gives the query anew at every connection, so
 * that it continues at the last cursor; `handlers` are by the event's name; `onstate("open" | "lost")`.
 * Closed while the tab is hidden.
 */
export function live(query, handlers, onstate = () => {}) {
  if (!isLive) return { restart() {}, close() {} };
  let source = null;
  let failures = 0;
  let timer = null;

  function connect() {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(address("live", query()));
    source.onopen = () => { failures = 0; onstate("open"); };
    source.onerror = () => { // the browser's own retry would ask with the query of the first time
      disconnect();
      failures = Math.min(failures + 1, 6);
      onstate("lost");
      timer = setTimeout(connect, 500 * 2 ** (failures - 1));
    };
    for (const [name, handle] of Object.entries(handlers)) source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }

  function disconnect() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  const visibility = () => (document.hidden ? disconnect() : connect());
  document.addEventListener("visibilitychange", visibility);
  connect();
  return {
    /** Connect anew with what `query()` says now. */
    restart() { disconnect(); connect(); },
    close() {
      disconnect();
      document.removeEventListener("visibilitychange", visibility);
    },
  };
}
