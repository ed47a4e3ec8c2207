"""Which directory a run goes to: one of its own, or that of the unfinished run it continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoint.destination import local_path
from ...errors import ConfigurationError
from ...run.reading import RunView
from .config import UNITS

ROOT = "runs"

CHANGEABLE = {"name", "output_path", "resume", "tags", "vars", "sweep", "trainer.num_workers", "trainer.save_on_sigint"}
CHANGEABLE |= {f"trainer.max_{unit}" for unit in UNITS}
CHANGEABLE |= {f"trainer.{what}_every_n_{unit}" for what in ("log", "track") for unit in UNITS}
ABSENT = object()


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run goes, what it goes on from besides what is there, and what to say about it."""

    path: Path
    is_new: bool
    resume: str | Path = "auto"
    remark: str | None = None


def choose(
    output_path: str | None, name: str, run_id: str, resume: bool | str | Path, config: Mapping[str, Any]
) -> Destination:
    """The directory for this config. A run that another process writes, or of another config, is never continued."""
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
        if not changed:
            return Destination(run.path, is_new=False, remark=None if is_over else f"Continuing {shown(run.path)}.")
        keys = ", ".join(changed[:4])
        remark = remark or f"{shown(run.path)} was started with another config ({keys}): this is a new run."
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


def shown(path: Path) -> Path:
    """A path for a person: from here, where it is below."""
    here, path = Path.cwd(), path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _named(path: Path, home: Path) -> Destination:
    """The run or checkpoint that somebody asked to go on from."""
    if (path / "run.json").is_file():
        return Destination(path, is_new=False, remark=f"Continuing {shown(path)}.")
    if not path.exists():
        raise ConfigurationError(
            f"resume: {str(path)!r} does not exist: name a run directory or a checkpoint, or use 'auto' or false."
        )
    return Destination(home, is_new=True, resume=path, remark=f"Going on from {shown(path)} in a run of its own.")


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Keys of the settings that make two configs different runs; how long and what it is called do not."""
    before, after = flatten(earlier), flatten(now)
    keys = [*after, *(key for key in before if key not in after)]
    return [key for key in keys if not is_changeable(key) and before.get(key, ABSENT) != after.get(key, ABSENT)]


def is_changeable(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in CHANGEABLE for count in range(1, len(parts) + 1))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A tree as dotted keys with their scalars."""
    if isinstance(tree, Mapping):
        items: Any = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
