"""Which directory a run goes to: one of its own, or that of the unfinished run it continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.destination import local_path
from ...errors import ConfigurationError
from ...run.changes import Change, find_changes, flatten, listed
from ...run.reading import RunView
from ...training.resume import shown
from .config import UNITS

ROOT = "runs"

CHANGEABLE = {"name", "output_path", "resume", "tags", "vars", "sweep", "trainer.num_workers", "trainer.save_on_sigint"}
CHANGEABLE |= {f"trainer.max_{unit}" for unit in UNITS}
CHANGEABLE |= {f"trainer.{what}_every_n_{unit}" for what in ("log", "track") for unit in UNITS}


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run goes, what it goes on from besides what is there, and what to say about it."""

    path: Path
    is_new: bool
    resume: str | Path = "auto"
    remark: str | None = None


def choose(
    output_path: str | None,
    name: str,
    run_id: str,
    resume: bool | str | Path,
    config: Mapping[str, Any],
    *,
    accept: str | None,
) -> Destination:
    """The directory for this config. A run that another process writes is never continued.

    Nor is one of another config, unless `accept`, which is what the way to do so is called, is None.
    """
    home = local_path(output_path, "output_path") if output_path is not None else Path(ROOT) / name / run_id
    if resume is False:
        return Destination(home, is_new=True)
    if resume not in ("auto", True):
        return _named(Path(str(resume)), home)
    remark = None
    for run in map(RunView, _runs_like(home) if output_path is not None else _runs_in(home.parent)):
        is_over = run.state in ("finished", "stopped")
        if run.state in ("running", "unreadable") or (is_over and output_path is None):
            continue
        changed = differences(run.config or {}, config)
        if not changed or accept is None:
            return Destination(run.path, is_new=False)
        remark = remark or (
            f"{shown(run.path)} was started with another config:{listed(changed)}\nThis is a new run; to go on with "
            f"that one and the new values, pass {accept}."
        )
    return Destination(home, is_new=True, remark=remark)


def _runs_in(folder: Path) -> list[Path]:
    """The runs of one name, newest first."""
    return sorted((path.parent for path in folder.glob("*/run.json")), reverse=True)


def _runs_like(home: Path) -> list[Path]:
    """The run in a directory, and those that had to go beside it, newest first."""
    numbered = [
        (int(path.name[len(home.name) + 1 :]), path)
        for path in home.parent.glob(f"{home.name}-[0-9]*")
        if path.name[len(home.name) + 1 :].isdecimal()
    ]
    paths = [*(path for _, path in sorted(numbered, reverse=True)), home]
    return [path for path in paths if (path / "run.json").is_file()]


def _named(path: Path, home: Path) -> Destination:
    """The run or checkpoint that somebody asked to go on from."""
    if (path / "run.json").is_file():
        return Destination(path, is_new=False)
    if not path.exists():
        raise ConfigurationError(
            f"resume: {str(path)!r} does not exist: name a run directory or a checkpoint, or use 'auto' or false."
        )
    return Destination(home, is_new=True, resume=path, remark=f"Going on from {shown(path)} in a run of its own.")


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The settings that make two configs different runs; how long and what it is called do not."""
    return find_changes(settings_of(earlier), settings_of(now), lambda before, after: before == after)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config makes the run what it is, as dotted keys with their scalars."""
    return {key: value for key, value in flatten(config).items() if not is_changeable(key)}


def is_changeable(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in CHANGEABLE for count in range(1, len(parts) + 1))
