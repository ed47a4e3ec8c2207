// Which panels there are for a set of metric names: training and evaluation of one metric share a panel, panels with the
// same prefix share a group. A metric without a partner keeps its whole name.

const EVALUATION = /^(eval|evaluation|val|valid|validation|test|dev|holdout|heldout)[_/](.+)$/;
const TRAINING = /^(train|training)[_/](.+)$/;
const SIDE = /(^|[_/])(lr|learning_rate|seconds|time|memory|samples_per_second|rate|throughput|scale|norm)/;

/** `{base, isEval, word}` of a name: "eval_loss" and "loss" have the base "loss". */
export function baseOf(name) {
  const evaluation = EVALUATION.exec(name);
  if (evaluation) return { base: evaluation[2], isEval: true, word: evaluation[1] };
  const training = TRAINING.exec(name);
  return { base: training ? training[2] : name, isEval: false, word: "" };
}

/** Groups `[{title, panels: [{base, names: [{name, kind}]}]}]` in the order to show them. */
export function panelsOf(names) {
  const panels = new Map();
  for (const name of [...names].sort((a, b) => baseOf(a).isEval - baseOf(b).isEval || a.localeCompare(b))) {
    const { base, isEval, word } = baseOf(name);
    if (!panels.has(base)) panels.set(base, { base, names: [] });
    const { names: members } = panels.get(base);
    const evaluations = members.filter((member) => member.kind !== "line").length;
    members.push({ name, word: word || "train", kind: isEval ? ["dash", "dot"][Math.min(evaluations, 1)] : "line" });
  }
  for (const panel of panels.values()) if (panel.names.length === 1) panel.base = panel.names[0].name;
  return grouped([...panels.values()]);
}

function grouped(panels) {
  const prefixOf = prefixes(panels);
  const groups = new Map();
  for (const panel of panels) {
    const title = prefixOf(panel.base);
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(panel);
  }
  const sorted = [...groups].map(([title, members]) => ({ title, panels: members.sort(byRank) }));
  return sorted.sort((a, b) => (a.title === "" ? -1 : b.title === "" ? 1 : a.title.localeCompare(b.title)));
}

/** What stands before the first "/"; else before the first "_" where three metrics or more share it. */
function prefixes(panels) {
  const numbers = new Map();
  for (const { base } of panels) if (/^[^/_]+_/.test(base)) numbers.set(base.split("_")[0], (numbers.get(base.split("_")[0]) ?? 0) + 1);
  return (base) => {
    if (base.includes("/")) return base.slice(0, base.indexOf("/"));
    const first = base.split("_")[0];
    return numbers.get(first) >= 3 ? first : "";
  };
}

function byRank(a, b) {
  const rank = ({ base, names }) => (base === "loss" ? 0 : SIDE.test(base) ? 3 : names.length > 1 || names[0].kind !== "line" ? 1 : 2);
  return rank(a) - rank(b) || a.base.localeCompare(b.base, "en", { numeric: true });
}
