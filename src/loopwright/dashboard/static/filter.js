// The filter of the table: words, and conditions on columns such as lr>0.01, state=running, -tag=old, model~conv.

const OPERATORS = ["!=", ">=", "<=", "=", ">", "<", "~"];

/** Read a filter: a list of `{isNot, key, operator, value}` (key null: a word anywhere). Quotes hold spaces together. */
export function parseFilter(text) {
  const terms = text.match(/(?:"[^"]*"?|[^\s"])+/g) ?? [];
  return terms.map((term) => {
    const isNot = term.startsWith("-") && term.length > 1;
    const plain = (isNot ? term.slice(1) : term).replaceAll('"', "");
    const place = plain.search(/[=<>~]|!=/);
    const operator = place > 0 ? OPERATORS.find((one) => plain.startsWith(one, place)) : null;
    if (!operator) return { isNot, key: null, operator: null, value: plain.toLowerCase() };
    return { isNot, key: plain.slice(0, place), operator, value: plain.slice(place + operator.length) };
  });
}

/** The column that a key names: the whole key, or the end of it where only one column ends so. */
export function columnNamed(key, keys) {
  if (keys.includes(key)) return key;
  const ending = keys.filter((one) => one.endsWith(`.${key}`) || one.toLowerCase() === key.toLowerCase());
  const settings = ending.filter((one) => !one.startsWith("last."));
  const found = settings.length ? settings : ending;
  return found.length === 1 ? found[0] : null;
}

/**
 * Make a test of rows: `{test(row), problem}`. `keys` are the columns, `valueOf(row, key)` their values, `textOf(row)` all
 * that a plain word may be in. A condition on an unknown column is a `problem` in a sentence, and no row is hidden by it.
 */
export function makeFilter(text, { keys, valueOf, textOf }) {
  const problems = [];
  const tests = parseFilter(text).map((term) => {
    if (!term.key) return (row) => textOf(row).includes(term.value) !== term.isNot;
    const key = columnNamed(term.key, keys);
    if (!key) {
      problems.push(unknown(term.key, keys));
      return () => true;
    }
    return (row) => compare(valueOf(row, key), term.operator, term.value) !== term.isNot;
  });
  return { test: (row) => tests.every((test) => test(row)), problem: problems.join(" ") || null };
}

function unknown(key, keys) {
  const scored = keys.map((one) => [likeness(key, one.slice(one.lastIndexOf(".") + 1)), one]).filter(([score]) => score >= 0.4);
  const near = scored.sort(([a], [b]) => b - a).slice(0, 2).map(([, one]) => one);
  return `There is no column “${key}”${near.length ? `: is it ${near.join(" or ")}?` : ". Columns are config keys such as optimizer.lr, and state, name, device."}`;
}

/** How many pairs of letters two words share: 1 for all, 0 for none. */
function likeness(first, second) {
  const pairs = (word) => new Set([...word.toLowerCase()].slice(1).map((letter, index) => word.toLowerCase()[index] + letter));
  const [a, b] = [pairs(first), pairs(second)];
  return (2 * [...a].filter((pair) => b.has(pair)).length) / (a.size + b.size || 1);
}

function compare(actual, operator, wanted) {
  const list = Array.isArray(actual) ? actual : [actual];
  if (operator === "!=") return list.every((one) => !isEqual(one, wanted));
  if (operator === "=") return list.some((one) => isEqual(one, wanted));
  if (operator === "~") return list.some((one) => String(one ?? "").toLowerCase().includes(wanted.toLowerCase()));
  const limit = Number(wanted);
  if (wanted === "" || Number.isNaN(limit)) return true; // the number is still being typed
  return list.some((one) => typeof one === "number" && { ">": one > limit, "<": one < limit, ">=": one >= limit, "<=": one <= limit }[operator]);
}

function isEqual(actual, wanted) {
  if (typeof actual === "number" && wanted !== "" && Number(wanted) === actual) return true;
  return String(actual ?? "").toLowerCase() === wanted.toLowerCase();
}
