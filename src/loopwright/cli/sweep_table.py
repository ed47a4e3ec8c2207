"""How `loopwright sweep` prints its runs: a table with the best first, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..metrics.best import Mode, ranked
from .output import RED, number_text, print_json, printable, styled
from .run_text import progress_text, time_text

if TYPE_CHECKING:
    from .sweep_runs import Result, Task


def print_results(results: Sequence[Result], metric: str, mode: Mode, folder: Path, *, as_json: bool) -> None:
    """All runs, best first; those without a value last, and what went wrong with those that failed."""
    ordered = ranked(results, lambda result: result.value, mode)
    if as_json:
        print_json(_as_dict(ordered, metric, mode, folder))
        return
    if not ordered:
        print("No run has ended yet.")
        return
    from .tables import print_fitted

    titles = short_keys(ordered[0].task.chosen)
    header = [*(title.upper() for title in titles.values()), metric.upper(), "STATE", "PROGRESS", "TIME", "RUN"]
    rows = [
        [
            *(number_text(result.task.chosen.get(key)) for key in titles),
            number_text(result.value),
            result.state,
            "-" if result.progress is None else progress_text(result.progress),
            time_text(result.seconds),
            str(result.task.path),
        ]
        for result in ordered
    ]
    print()
    print_fitted(header, rows, right=str(len(titles)), fold=str(len(titles) + 4))
    for result in ordered:
        if result.error is not None:
            more = f"\n  (all it said: {folder / 'output' / result.task.path.name}.txt)"
            print(styled(printable(f"{chosen_text(result.task.chosen)}: {result.error}{more}", keep="\n"), RED))


def print_tasks(tasks: Sequence[Task], *, as_json: bool) -> None:
    """What would be trained."""
    if as_json:
        print_json([{"name": task.name, "chosen": task.chosen, "path": str(task.path)} for task in tasks])
        return
    from .tables import print_fitted

    titles = short_keys(tasks[0].chosen)
    rows = [[*(number_text(task.chosen[key]) for key in titles), str(task.path)] for task in tasks]
    print_fitted([*(title.upper() for title in titles.values()), "RUN"], rows, fold=str(len(titles)))


def chosen_text(chosen: Mapping[str, Any]) -> str:
    titles = short_keys(chosen)
    return " ".join(f"{titles[key]}={number_text(value)}" for key, value in chosen.items())


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Each key by as many of its last parts as tell it from the others."""
    known = list(keys)
    short: dict[str, str] = {}
    for key in known:
        parts = key.lstrip("+").split(".")
        endings = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other.lstrip("+") for other in known if other != key]
        short[key] = next((end for end in endings if not any(f".{other}".endswith(f".{end}") for other in others)), key)
    return short


def _as_dict(ordered: Sequence[Result], metric: str, mode: Mode, folder: Path) -> dict[str, Any]:
    runs = [
        {
            "name": result.task.name,
            "chosen": result.task.chosen,
            "path": str(result.task.path),
            "state": result.state,
            "value": result.value,
            "error": result.error,
            "seconds": result.seconds,
        }
        for result in ordered
    ]
    best = next((run for run in runs if run["value"] is not None), None)
    return {"folder": str(folder), "metric": metric, "mode": mode, "best": best, "runs": runs}
