// Numbers, durations and times as people read them.

const GROUPED = new Intl.NumberFormat("en-US");

/** A metric or a setting: about four digits, never more than needed; NaN and infinities by name. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) && size < 1e15) return GROUPED.format(value).replace("-", "−");
  if (size < 1e-4 || size >= 1e6) return value.toExponential(digits - 2).replace("e+", "e").replace("-", "−");
  return value.toPrecision(digits).replace("-", "−");
}

/** A whole number with separators: 12,345. */
export function count(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

/** Seconds as 45 s, 12 min, 3 h 20 min, 2 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long ago a moment (seconds since 1970) is: "just now", "5 min ago". */
export function age(wall, now = Date.now() / 1000) {
  if (!wall) return "–";
  const past = now - wall;
  if (past < 5) return "just now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

/** A moment as 2026-11-16 14:03:07 in the reader's time zone. */
export function moment(wall) {
  if (!wall) return "–";
  const date = new Date(wall * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Any value of a configuration in one line. */
export function value(entry) {
  if (entry === null || entry === undefined) return "–";
  if (typeof entry === "number") return number(entry, 6).replace(/(\.\d*?)0+($|e)/, "$1$2").replace(/\.($|e)/, "$1");
  if (typeof entry === "object") return JSON.stringify(entry);
  return String(entry);
}

/** "1 run", "3 runs". */
export function plural(number_, noun) {
  return `${count(number_)} ${noun}${number_ === 1 ? "" : "s"}`;
}
