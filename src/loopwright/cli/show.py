"""`loopwright show [RUN]`: the facts, metrics and checkpoints of a run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..checkpoint.layout import read_limited
from ..run.config_file import MAX_BYTES
from ..run.reading import CONFIG, RunView
from .exits import FOUND, OK
from .output import (
    BOLD,
    RED,
    age_of,
    age_text,
    number_text,
    print_json,
    printable,
    progress_text,
    run_as_json,
    size_text,
    styled,
    time_text,
)
from .selection import find_run

FACTS = {  # entries of the manifest that have a line of their own
    *(
        "id",
        "name",
        "tags",
        "created",
        "updated",
        "state",
        "reason",
        "progress",
        "command",
        "format",
        "seed",
        "seed_source",
    ),
    *(
        "changes",
        "watched",
        "metric_modes",
        "eval_keys",
        "git_commit",
        "git_dirty",
        "device",
        "platform",
        "python",
        "torch",
    ),
    *("door", "arguments", "num_parameters", "planned", "compiled"),
    "loopwright",
}
MAX_TEXT = 200
LOG = "log.txt"


def show_command(options: argparse.Namespace) -> int:
    run = find_run(options.name, options.root)
    if options.json:
        print_json(
            {
                **run_as_json(run),
                "metrics": _metrics_as_json(run),
                "manifest": run.manifest,
                "config": run.config,
                "profile": run.profile,
            }
        )
    elif options.config:
        return _print_config(run)
    else:
        _print_run(run, is_full=options.all)
    return FOUND if run.problems or run.state in ("failed", "crashed", "unreadable") else OK


def _print_config(run: RunView) -> int:
    path = run.path / CONFIG
    if not path.is_file():
        print(printable(f"{run.path} has no {CONFIG}: a program started this run, not a run file."))
        return FOUND
    print(printable(read_limited(path, MAX_BYTES).decode(errors="replace"), keep="\n"), end="")
    return OK


def _print_run(run: RunView, *, is_full: bool) -> None:
    print(styled(printable(str(run.path)), BOLD))
    _print_overview(run)
    _print_facts(run, is_full=is_full)
    _print_metrics(run)
    _print_checkpoints(run)
    _print_profile(run)
    for problem in run.problems:
        print(styled(printable(problem), RED))


def _print_overview(run: RunView) -> None:
    from ..dashboard.overview import sentences

    events = run.metrics.events() if run.epoch_names or not run.problems else []
    print(printable(" ".join(sentences(run, events))))


def _print_facts(run: RunView, *, is_full: bool) -> None:
    manifest = run.manifest
    because = f": {run.reason}" if run.reason else ""
    hint = (
        ": its process ended without recording a reason; start the same program or command to "
        "resume it"
        if run.state == "crashed"
        else because
    )
    facts: dict[str, str | None] = {
        "name": run.name,
        "id": run.id,
        "state": f"{run.state}{hint}",
        "progress": progress_text(run.progress),
        "started": _moment_text(run.started, f"{age_text(age_of(run))} ago"),
        "ended": _moment_text(run.ended),
        "time": time_text(run.seconds),
        "tags": ", ".join(run.tags) or None,
        "command": _command_text(manifest.get("command")),
        "code": _code_text(manifest),
        "seed": _seed_text(manifest),
        "device": _text(manifest.get("device")),
        "interface": _text(manifest.get("door")),
        "compile": _compile_text(manifest.get("arguments"), manifest.get("compiled")),
        "parameters": _size_text(manifest.get("num_parameters")),
        "versions": ", ".join(
            f"{key} {manifest[key]}" for key in ("loopwright", "torch", "python") if key in manifest
        )
        or None,
        "platform": _text(manifest.get("platform")),
        "changes": _changes_text(manifest.get("changes")),
        "config": f"{CONFIG} (--config prints it)" if (run.path / CONFIG).is_file() else None,
        "log": LOG if (run.path / LOG).is_file() else None,
    }
    others = {key: _short(value) for key, value in manifest.items() if key not in FACTS}
    lines = {key: value for key, value in {**facts, **others}.items() if value is not None}
    width = max(map(len, lines))
    for key, value in lines.items():
        text = value if is_full or len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}... (--all)"
        print(printable(f"  {key:<{width}}  {text}"))
    if is_full:
        _print_entries(
            {key: value for key, value in manifest.items() if isinstance(value, dict | list)}
        )


def _seed_text(manifest: Mapping[str, Any]) -> str | None:
    """The seed, and where it is from, which runs of earlier versions do not record."""
    text = number_text(manifest.get("seed"))
    source = manifest.get("seed_source")
    sources = {
        "default": "the default",
        "seed_everything": "from seed_everything",
        "argument": "given as `seed`",
    }
    return f"{text}, {sources[source]}" if text is not None and source in sources else text


def _print_entries(entries: Mapping[str, Any]) -> None:
    for title, entry in entries.items():
        print()
        print(styled(printable(title), BOLD))
        pairs = entry.items() if isinstance(entry, dict) else enumerate(entry)
        for key, value in pairs:
            print(printable(f"  {key}: {value}"))


def _print_metrics(run: RunView) -> None:
    from .output import print_fitted

    rows = []
    unknown = []
    for name in run.epoch_names:
        points = run.metrics.epochs(name)
        best = run.best.get(name)
        unknown += [name] if run.mode_of(name) is None else []
        values = (
            ["-", "-"]
            if best is None
            else [f"{number_text(best.value)} ({best.mode})", str(best.epoch)]
        )
        rows.append([name, number_text(points[-1].value), *values, str(len(points))])
    if rows:
        print()
        print_fitted(["METRIC", "LAST", "BEST", "AT EPOCH", "EPOCHS"], rows, right="1234")
    if unknown:
        names = ", ".join(unknown)
        print(
            printable(
                f"No best value of {names}: their names do not say whether smaller or larger is "
                "better."
            )
        )


def _print_checkpoints(run: RunView) -> None:
    found = run.checkpoints()
    if not found:
        return
    from .output import print_fitted

    rows = []
    for info in found:
        metric = "-" if info.metric is None else f"{info.metric[0]} {number_text(info.metric[1])}"
        verdict = "ok" if info.is_sound else "damaged"
        rows.append([f"{info.path.parent.name}/{info.name}", metric, size_text(info.size), verdict])
    print()
    print_fitted(["SAVED", "METRIC", "SIZE", "STATE"], rows, right="2")


def _print_profile(run: RunView) -> None:
    if run.profile is None:
        return
    from ..profiling.report import Report

    report = Report.from_dict(run.profile)
    print()
    for line in report.lines():
        print(printable(line))
    if run.progress.step is not None and report.last_step < run.progress.step:
        print(f"Measured up to step {report.last_step:,} of {run.progress.step:,}.")


def _size_text(noted: object) -> str | None:
    """ "1,000 (10 trainable)"."""
    total, trainable = (
        (noted.get("total"), noted.get("trainable")) if isinstance(noted, dict) else (None, None)
    )
    if type(total) is not int or type(trainable) is not int:
        return None
    return f"{total:,}" + ("" if trainable == total else f" ({trainable:,} trainable)")


def _compile_text(arguments: object, noted: object) -> str | None:
    """ "step: eager (not faster: ...); graphs 1, recompilations 0, seconds of compiling 8.1", or
    "model"."""
    given = arguments.get("compile") if isinstance(arguments, dict) else None
    if not isinstance(noted, dict) or not noted.get("choice"):
        return _text(given)
    numbers = {
        "graphs": "graphs",
        "recompilations": "recompilations",
        "seconds of compiling": "seconds",
    }
    counts = ", ".join(f"{title} {noted.get(name, 0)}" for title, name in numbers.items())
    return f"{given or 'step'}: {noted['choice']} ({noted.get('reason')}); {counts}"


def _metrics_as_json(run: RunView) -> dict[str, Any]:
    """All epochs of all metrics."""
    return {
        name: [
            {"epoch": p.at, "update": p.update, "value": p.value} for p in run.metrics.epochs(name)
        ]
        for name in run.epoch_names
    }


def _moment_text(moment: datetime | None, more: str = "") -> str | None:
    if moment is None:
        return None
    local = moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{local} ({more})" if more else local


def _command_text(command: object) -> str | None:
    import shlex

    return shlex.join(map(str, command)) if isinstance(command, list) else _text(command)


def _code_text(manifest: Mapping[str, Any]) -> str | None:
    commit = manifest.get("git_commit")
    if commit is None:
        return None
    dirty = {"True": ", with uncommitted changes", "False": ""}
    return f"{commit}{dirty.get(str(manifest.get('git_dirty')), ', maybe changed')}"


def _changes_text(noted: object) -> str | None:
    """Changes that the program made in the middle of the run: "at update 96: optimizer.lr 0.01 ->
    0.003"."""
    changes = (
        [change for change in noted if isinstance(change, dict)] if isinstance(noted, list) else []
    )
    return (
        "; ".join(
            f"at update {change.get('update')}: {_pairs_text(change.get('values'))}"
            for change in changes
        )
        or None
    )


def _pairs_text(values: object) -> str:
    pairs = (
        [(key, pair) for key, pair in values.items() if isinstance(pair, list)]
        if isinstance(values, dict)
        else []
    )
    return ", ".join(f"{key} {' -> '.join(map(str, pair))}" for key, pair in pairs)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _short(value: object) -> str | None:
    if isinstance(value, dict | list):
        return (
            f"{len(value)} {'entry' if len(value) == 1 else 'entries'} (--all)" if value else None
        )
    return _text(value)
