"""Several runs side by side: what their configs differ in, where their metrics diverge, and what a
sweep varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import LoopwrightError
from ..metrics.best import headline
from ..run.changes import MISSING, short_keys
from ..run.compare import OWN, Divergence, compare_metrics, described_parts
from ..run.reading import Run
from .answers import Refusal
from .folder import RunEntry

Json = dict[str, Any]
CHANGE = ("name", "first", "second")
MAX_RUNS = 20
MAX_VALUES = 50  # of a parameter that are listed
# of the largest to the smallest value of a parameter that is drawn on a logarithmic axis
LOG_RATIO = 50.0


def compare(runs: Sequence[tuple[str, Run]]) -> Json:
    """Differences between runs; the metrics of the first are compared with those of each other
    run."""
    if not 2 <= len(runs) <= MAX_RUNS:
        raise Refusal(400, f"Name 2 to {MAX_RUNS} runs to compare, not {len(runs)}.")
    parts = [described_parts(run) for _, run in runs]
    differences = {
        part: _differences(part, [described[part] for described in parts]) for part in parts[0]
    }
    known = [part for part in parts[0] if any(described[part] for described in parts)]
    divergences, ignored = _divergences(runs)
    return {
        "runs": [name for name, _ in runs],
        "differences": [entry for found in differences.values() for entry in found],
        "same": [part for part in known if not differences[part]],
        "unknown": [part for part in parts[0] if part not in known],
        "divergences": divergences,
        "ignored": ignored,
    }


def _differences(part: str, described: Sequence[dict[str, object]]) -> list[Json]:
    """The values of a part that are not the same in all runs."""
    found = []
    for key in dict.fromkeys(key for values in described for key in values):
        has = [key in values for values in described]
        values = [values.get(key) for values in described]
        if not all(has) or any(repr(value) != repr(values[0]) for value in values):
            found.append({"part": part, "key": key, "values": values, "has": has})
    return found


def _divergences(runs: Sequence[tuple[str, Run]]) -> tuple[list[Json], list[str]]:
    first_name, first = runs[0]
    found: list[Json] = []
    ignored: set[str] = set()
    for name, run in runs[1:]:
        try:
            divergences, left_out = compare_metrics(first, run)
        except LoopwrightError as error:
            found.append(
                {"first": first_name, "second": name, "level": None, "sentence": str(error)}
            )
            continue
        ignored.update(left_out)
        for divergence in divergences:
            changes = [dict(zip(CHANGE, change, strict=True)) for change in divergence.changes]
            found.append(
                {
                    **asdict(divergence),
                    "first": first_name,
                    "second": name,
                    "is_same": divergence.is_same,
                    "changes": changes,
                    "sentence": sentence(first_name, name, divergence),
                }
            )
    return found, sorted(ignored)


def sentence(first: str, second: str, divergence: Divergence) -> str:
    """Where two runs diverge, as a sentence."""
    unit = divergence.level.removesuffix("s")
    count = f"{divergence.num_same:,} {unit if divergence.num_same == 1 else divergence.level}"
    if divergence.at is not None:
        values = "; ".join(f"{c.key} {c.first!r} and {c.second!r}" for c in divergence.changes[:3])
        before = f"are identical for {count}, and differ" if divergence.num_same else "part"
        return f"{first} and {second} {before} at {unit} {divergence.at:,}: {values}."
    if not divergence.num_same:
        return f"{first} and {second} have no {divergence.level} in common."
    ends = divergence.ends
    longer = ""
    if ends[0] != ends[1] and None not in ends:
        longer = f" {first} continues to {unit} {ends[0]:,}, {second} to {ends[1]:,}."
    return f"{first} and {second} are identical for {count}, bit for bit.{longer}"


def sweep(entries: Iterable[RunEntry], folder: str) -> Json:
    """The runs of a folder with the parameters that vary among them, and their metrics."""
    known = list(entries)
    folders = Counter(entry.id.rpartition("/")[0] for entry in known)
    chosen = [entry.summary for entry in known if not folder or entry.id.startswith(f"{folder}/")]
    metrics = list(dict.fromkeys(name for run in chosen for name in run["best_values"]))
    main = [run["metric"]["name"] for run in chosen if run["metric"]]
    keys = _varied(chosen)
    titles = short_keys(keys)
    return {
        "folder": folder,
        "folders": [
            {"folder": "", "runs": len(known)},
            *(
                {"folder": name, "runs": count}
                for name, count in sorted(folders.items())
                if name and count > 1
            ),
        ],
        "metric": Counter(main).most_common(1)[0][0] if main else headline(metrics),
        "parameters": [
            _parameter(key, titles[key], [run["config"].get(key) for run in chosen]) for key in keys
        ],
        "metrics": [{"name": name, "mode": _mode(chosen, name)} for name in metrics],
        "rows": [_row(run, keys) for run in chosen],
    }


def _row(run: Json, keys: Sequence[str]) -> Json:
    own = {key: run["config"].get(key) for key in keys}
    return {
        "run": run["id"],
        "name": run["id"].rpartition("/")[2],
        "state": run["state"],
        "parameters": own,
        "metrics": run["best_values"],
    }


def _varied(runs: Sequence[Json]) -> list[str]:
    """The keys of configs whose values are not the same in all runs that have a config."""
    configs = [run["config"] for run in runs if run["config"]]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if key.partition(".")[0] not in OWN
        and len({repr(config.get(key, MISSING)) for config in configs}) > 1
    ]


def _parameter(key: str, title: str, values: Sequence[Any]) -> Json:
    known = [value for value in values if value is not None]
    is_number = bool(known) and all(type(value) in (int, float) for value in known)
    distinct: list[Any] = list(dict.fromkeys(map(str, values)))
    is_log = False
    if is_number:
        distinct = sorted(set(known))
        is_log = distinct[0] > 0 and distinct[-1] / distinct[0] >= LOG_RATIO
    return {
        "key": key,
        "title": title,
        "kind": "number" if is_number else "category",
        "is_log": is_log,
        "values": distinct[:MAX_VALUES],
    }


def _mode(runs: Sequence[Json], name: str) -> str | None:
    return next((run["best"][name]["mode"] for run in runs if name in run["best"]), None)
