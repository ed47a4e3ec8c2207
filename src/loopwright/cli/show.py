"""`loopwright show [RUN]`: the facts, metrics and checkpoints of a run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..dashboard.summary import sentences
from ..profiling.report import Report
from ..run.directory import CONFIG, LOG
from ..run.reading import Run
from ..text import counted, size
from .output import (
    BOLD,
    FOUND,
    OK,
    RED,
    age_text,
    metric_text,
    number_text,
    print_fitted,
    print_json,
    say,
    time_text,
)
from .selection import find_run

TABLES = ("packages", "hardware", "data", "config", "fingerprint")  # of which --all shows more
VERSIONS = ("loopwright", "torch", "python")
MAX_TEXT = 200


def show_command(options: argparse.Namespace) -> int:
    run = find_run(options.name, options.root)
    if options.json:
        print_json(
            {
                **run.as_json(),
                "metrics": _metrics_as_json(run),
                "manifest": run.manifest,
                "config": run.config or None,
                "profile": run.profile,
            }
        )
    else:
        _print_run(run, is_full=options.all)
    return FOUND if run.problems or run.state in ("failed", "crashed", "unreadable") else OK


def _print_run(run: Run, *, is_full: bool) -> None:
    say(str(run.path), BOLD)
    say(" ".join(sentences(run, run.happened)))
    _print_facts(run, is_full=is_full)
    _print_metrics(run)
    _print_checkpoints(run)
    _print_profile(run)
    for problem in run.problems:
        say(problem, RED)


def _print_facts(run: Run, *, is_full: bool) -> None:
    manifest = run.manifest
    state: str = run.state
    if run.state == "crashed":
        how = "its process ended without recording a reason; start the same program or command"
        state += f": {how} to resume it"
    elif run.reason:
        state += f": {run.reason}"
    code = manifest.get("git_commit")
    if code is not None and manifest.get("git_dirty") is not False:
        is_known = manifest.get("git_dirty") is True
        code = f"{code}, {'with uncommitted changes' if is_known else 'maybe changed'}"
    sizes = manifest.get("num_parameters") or {}
    versions = [f"{key} {manifest[key]}" for key in VERSIONS if key in manifest]
    started = _moment_text(run.started)
    facts: dict[str, Any] = {
        "name": run.name,
        "id": run.id,
        "state": state,
        "progress": run.progress,
        "started": started and f"{started} ({age_text(run.age)} ago)",
        "ended": _moment_text(run.ended),
        "time": time_text(run.seconds),
        "tags": ", ".join(run.tags),
        "command": run.command,
        "code": code,
        "seed": str(manifest["seed"]) if "seed" in manifest else None,
        "device": run.device,
        "interface": run.interface,
        "compile": _compile_text(manifest.get("arguments"), manifest.get("compiled")),
        "parameters": ", ".join(f"{count:,} {name}" for name, count in sizes.items()),
        "versions": ", ".join(versions),
        "platform": manifest.get("platform"),
        "changes": "; ".join(run.changes),
        "config": CONFIG if (run.path / CONFIG).is_file() else None,
        "log": LOG if (run.path / LOG).is_file() else None,
    }
    tables = ((key, manifest.get(key)) for key in TABLES)
    others = {key: f"{counted(len(value), 'value')} (--all)" for key, value in tables if value}
    lines = {key: str(value) for key, value in {**facts, **others}.items() if value}
    width = max(map(len, lines))
    for key, value in lines.items():
        text = value if is_full or len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}... (--all)"
        say(f"  {key:<{width}}  {text}")
    if is_full:
        _print_entries(
            {key: value for key, value in manifest.items() if isinstance(value, dict | list)}
        )


def _print_entries(entries: Mapping[str, Any]) -> None:
    for title, entry in entries.items():
        print()
        say(title, BOLD)
        pairs = entry.items() if isinstance(entry, dict) else enumerate(entry)
        for key, value in pairs:
            say(f"  {key}: {value}")


def _print_metrics(run: Run) -> None:
    rows = []
    for name in run.epoch_names:
        points = run.metrics.epochs(name)
        best = run.best_of(name)
        values = ["-", "-"]
        if best is not None:
            values = [f"{number_text(best.value)} ({best.mode})", str(best.epoch)]
        rows.append([name, number_text(points[-1].value), *values, str(len(points))])
    if rows:
        print()
        print_fitted(["METRIC", "LAST", "BEST", "AT EPOCH", "EPOCHS"], rows, right="1234")
    if unknown := [name for name in run.epoch_names if run.mode_of(name) is None]:
        why = "their names do not say whether smaller or larger is better"
        say(f"No best value of {', '.join(unknown)}: {why}.")


def _print_checkpoints(run: Run) -> None:
    rows = []
    for info in run.checkpoints():
        verdict = "ok" if info.is_sound else "damaged"
        name = f"{info.path.parent.name}/{info.name}"
        rows.append([name, metric_text(info), size(info.size), verdict])
    if rows:
        print()
        print_fitted(["SAVED", "METRIC", "SIZE", "STATE"], rows, right="2")


def _print_profile(run: Run) -> None:
    if run.profile is None:
        return
    report = Report.from_dict(run.profile)
    print()
    for line in report.lines():
        say(line)
    if run.progress.step is not None and report.last_step < run.progress.step:
        print(f"Measured up to step {report.last_step:,} of {run.progress.step:,}.")


def _compile_text(arguments: object, noted: object) -> str | None:
    """ "step: eager (not faster: ...)", or "model"."""
    given = arguments.get("compile") if isinstance(arguments, dict) else None
    if not isinstance(noted, dict) or not noted.get("choice"):
        return given and str(given)
    return f"{given or 'step'}: {noted['choice']} ({noted.get('reason')})"


def _metrics_as_json(run: Run) -> dict[str, Any]:
    """All epochs of all metrics."""
    return {
        name: [
            {"epoch": p.at, "update": p.update, "value": p.value} for p in run.metrics.epochs(name)
        ]
        for name in run.epoch_names
    }


def _moment_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
