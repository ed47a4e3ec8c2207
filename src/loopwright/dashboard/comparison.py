"""Several runs side by side: what their configs differ in, where their metrics diverge, and what a
sweep varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import LoopwrightError
from ..metrics.best import headline
from ..run.changes import MISSING, short_keys
from ..run.compare import OWN, compare_metrics, compare_parts
from ..run.reading import Run
from .answers import Refusal
from .folder import RunEntry

Json = dict[str, Any]
MAX_RUNS = 20
MAX_VALUES = 50  # of a parameter that are listed
# of the largest to the smallest value of a parameter that is drawn on a logarithmic axis
LOG_RATIO = 50.0


def compare(runs: Mapping[str, Run]) -> Json:
    """Differences between runs; the metrics of the first are compared with those of each other
    run."""
    if not 2 <= len(runs) <= MAX_RUNS:
        raise Refusal(400, f"Name 2 to {MAX_RUNS} runs to compare, not {len(runs)}.")
    (first, ours), *others = runs.items()
    divergences: list[Json] = []
    ignored: set[str] = set()
    for second, theirs in others:
        names = {"first": first, "second": second}
        try:
            found, left_out = compare_metrics(ours, theirs)
        except LoopwrightError as error:
            divergences.append({**names, "level": None, "sentence": str(error)})
            continue
        ignored.update(left_out)
        divergences += [{**names, **divergence.as_json()} for divergence in found]
    return {
        "runs": list(runs),
        "differences": compare_parts(list(runs.values())),
        "divergences": divergences,
        "ignored": sorted(ignored),
    }


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
