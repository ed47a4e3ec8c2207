"""Run directories as other programs read them: state, progress, metrics. Nothing here writes or
imports torch."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..checkpoint.layout import read_json, read_limited
from ..errors import CheckpointError, ConfigurationError
from ..metrics.best import Mode, direction_of, headline
from .config_file import read_config
from .directory import is_held_here
from .metrics_view import BestValue, MetricsView, Point
from .profile_file import read_profile
from .run_progress import COUNTS, RunProgress, limit_of, seconds_left

if TYPE_CHECKING:
    from ..checkpoint import CheckpointInfo


# `struct flock` of fcntl(2): where the kind of lock, the start, the length and the process are
# differs by system.
_IS_BSD = sys.platform == "darwin"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock in this file; None where the file system cannot say.

    The lock is looked at and not tried: a trainer that starts at this moment is not refused because
    of us.
    """
    if is_held_here(path):  # opening and closing the file would drop our own lock
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _lock_query())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return _kind(answer) != fcntl.F_UNLCK


def lock_host(path: Path) -> str | None:
    """The machine of the process that took the lock last."""
    if is_held_here(path):
        return os.uname().nodename
    try:
        words = read_limited(path).decode(errors="replace").split()
    except (CheckpointError, OSError):
        return None
    return words[3] if len(words) == 4 and words[:3:2] == ["process", "on"] else None


def _lock_query() -> bytes:
    """The `struct flock` that asks who would block a write lock on the whole file."""
    if _IS_BSD:
        return _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _kind(answer: bytes) -> int:
    kind: int = _FLOCK.unpack(answer)[3 if _IS_BSD else 0]
    return kind


RunState: TypeAlias = Literal[
    "running", "crashed", "finished", "stopped", "interrupted", "failed", "unreadable"
]
STATES: tuple[RunState, ...] = (
    "running",
    "crashed",
    "finished",
    "stopped",
    "interrupted",
    "failed",
    "unreadable",
)
MANIFEST = "run.json"
CONFIG = "config.yaml"
LOCK = ".lock"
METRICS = "metrics.sqlite"
FRESH_SECONDS = 600.0  # a run on another machine that wrote so recently is taken to be alive


class RunView:
    """A run directory as it is read from outside: state, progress, config, metrics and checkpoints.

    Each part is read at its first use and then kept; make a new view to see later changes. Torch is
    not imported.

    Args:
        path: The run directory; an error where it holds no `run.json`.

    Example:
        >>> import tempfile
        >>> from loopwright.run import RunManifest, RunView
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RunManifest.collect(seed=0, name="first").changed(state="finished").write(f"{folder}/run.json")
        ...     run = RunView(folder)
        ...     run.name, run.state, run.best
        ('first', 'finished', {})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        # why run.json or config.yaml cannot be read, where they cannot
        self.problems: list[str] = []
        self.manifest: Mapping[str, Any] = self._read_manifest()

    @property
    def id(self) -> str:
        return str(self.manifest.get("id") or self.path.name)

    @cached_property
    def name(self) -> str:
        """The name of the run: from its manifest, its config, or its folder."""
        named = self.manifest.get("name") or (self.config or {}).get("name")
        if isinstance(named, str) and named:
            return named
        return (
            self.path.parent.name if self.path.name == self.manifest.get("id") else self.path.name
        )

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run; of a mapping, `key=value`."""
        tags = self.manifest.get("tags") or (self.config or {}).get("tags") or ()
        if isinstance(tags, Mapping):
            return tuple(f"{key}={value}" for key, value in tags.items())
        return (tags,) if isinstance(tags, str) else tuple(map(str, tags))

    @cached_property
    def state(self) -> RunState:
        """The state of the run; it has crashed where the manifest says "running" and no process
        holds the lock."""
        noted = self.manifest.get("state")
        if noted in ("finished", "stopped", "interrupted", "failed"):
            return noted  # type: ignore[no-any-return]
        if noted != "running":
            return "unreadable"
        return "running" if self._is_alive() else "crashed"

    @property
    def reason(self) -> str | None:
        """Why the run ended."""
        reason = self.manifest.get("reason")
        return None if reason is None else str(reason)

    @cached_property
    def started(self) -> datetime | None:
        return _moment(self.manifest.get("created"))

    @cached_property
    def ended(self) -> datetime | None:
        """When the run ended; of a crashed run, when it wrote last."""
        if self.state == "running":
            return None
        return (
            datetime.fromtimestamp(self.last_write, UTC)
            if self.state == "crashed"
            else self.updated
        )

    @cached_property
    def updated(self) -> datetime | None:
        return _moment(self.manifest.get("updated"))

    @property
    def last_write(self) -> float:
        """When the run wrote last, in seconds of the file system's clock."""
        names = (MANIFEST, METRICS, f"{METRICS}-wal", "checkpoints")
        return max((_modified(self.path / name) for name in names), default=0.0)

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The resolved config of the run, as in its file; None for a run that was not started from
        a config."""
        try:
            return read_config(self.path / CONFIG)
        except (CheckpointError, OSError) as error:
            self.problems.append(str(error))
            return None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run was given, under dotted names, whatever the interface: its config, and the
        program's own settings."""
        from .settings import settings_of

        return settings_of(self.manifest, self.config)

    @property
    def eta(self) -> float | None:
        """Seconds until the end of a run that is going on, at the rate since this process began;
        None if not known."""
        return seconds_left(self)

    @cached_property
    def metrics(self) -> MetricsView:
        return MetricsView(self.path / METRICS)

    @cached_property
    def best(self) -> dict[str, BestValue]:
        """The best value of every epoch metric whose mode is known.

        Empty for a run whose metrics cannot be read; `problems` then says why.
        """
        found = {name: self.best_of(name) for name in self.epoch_names}
        return {name: best for name, best in found.items() if best is not None}

    def best_of(self, name: str, mode: Mode | None = None) -> BestValue | None:
        """The best value of an epoch metric; None without values, or where its mode is not
        known."""
        mode = mode or self.mode_of(name)
        return self.metrics.best(name, mode) if mode is not None and self.epoch_names else None

    def last_of(self, name: str) -> Point | None:
        """The value of an epoch metric in the last epoch that measured it."""
        points = self.metrics.epochs(name) if self.epoch_names else []
        return points[-1] if points else None

    @cached_property
    def metric_modes(self) -> dict[str, Mode]:
        """For each metric, "min" or "max" as the run noted it."""
        noted = self.manifest.get("metric_modes")
        entries = noted.items() if isinstance(noted, dict) else ()
        return {str(name): mode for name, mode in entries if mode in ("min", "max")}

    def mode_of(self, name: str) -> Mode | None:
        """Which values of a metric are better: as the run noted it, as models were kept by it, or
        as its name says."""
        kept = {
            info.metric[0]: info.mode
            for info in self._kept
            if info.metric and name not in self.metric_modes
        }
        return self.metric_modes.get(name) or kept.get(name) or direction_of(name)

    @property
    def main_metric(self) -> str | None:
        """The metric that stands for the run: one that models were kept by if there is one, else
        any of its epochs.

        Of several it is one of an evaluation, a loss before others (see `headline`); of equal ones,
        that of the callback that comes first.
        """
        measured = dict.fromkeys((*self.watched, *self.epoch_names))
        names = [name for name in measured if name in self.epoch_names]
        kept_by = {info.metric[0] for info in self._kept if info.metric}
        return headline([name for name in names if name in kept_by] or names, self.eval_keys)

    @cached_property
    def _kept(self) -> list[CheckpointInfo]:
        return [info for info in self.checkpoints() if info.kind == "kept"]

    @property
    def eval_keys(self) -> list[str]:
        """The prefixes of metrics that callbacks measured on data of their own."""
        return self._noted_names("eval_keys")

    @property
    def watched(self) -> list[str]:
        """The metrics whose best values callbacks looked for, in the order of the callbacks."""
        return self._noted_names("watched")

    def _noted_names(self, entry: str) -> list[str]:
        noted = self.manifest.get(entry)
        return [name for name in noted if isinstance(name, str)] if isinstance(noted, list) else []

    @cached_property
    def epoch_names(self) -> list[str]:
        """The names of the metrics of epochs; empty where they cannot be read, and `problems` then
        says why."""
        try:
            return self.metrics.epoch_names
        except CheckpointError as error:
            self.problems.append(str(error))
            return []

    @cached_property
    def progress(self) -> RunProgress:
        """The progress in the manifest of an ended run; before that, the progress that metrics and
        checkpoints show."""
        counts = self._noted_counts()
        if self.state in ("running", "crashed"):
            counts = self._seen_counts() or counts
        seconds = counts.pop("seconds", None)
        whole = {name: int(value) for name, value in counts.items() if name in COUNTS}
        limit, totals = limit_of(self.manifest, self.config)
        return RunProgress(**whole, seconds=seconds, limit=limit, planned=totals)

    @property
    def seconds(self) -> float | None:
        """How long the run trained; before its end, the time since its start."""
        if self.progress.seconds is not None or self.started is None:
            return self.progress.seconds
        end = self.ended or datetime.now(UTC)
        return max((end - self.started).total_seconds(), 0.0)

    def checkpoints(self) -> list[CheckpointInfo]:
        """The resume points of the run and then its kept models, each from old to new."""
        from ..checkpoint.inspect import list_checkpoints

        return list_checkpoints(self.path)

    @cached_property
    def profile(self) -> dict[str, Any] | None:
        """Where the time went, as `Profile` wrote it (docs/profile.md); None without, or where it
        cannot be read."""
        return read_profile(self.path, self.problems)

    def _read_manifest(self) -> Mapping[str, Any]:
        path = self.path / MANIFEST
        try:
            content = read_json(path)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{self.path} is not a run directory: it has no {MANIFEST}."
            ) from None
        except (CheckpointError, OSError) as error:
            self.problems.append(str(error))
            return {}
        if not isinstance(content, dict):
            self.problems.append(f"{path} is not a run's manifest.")
            return {}
        return content

    def _is_alive(self) -> bool:
        lock = self.path / LOCK
        held = is_locked(lock)
        if held:
            return True
        is_elsewhere = held is None or lock_host(lock) not in (None, os.uname().nodename)
        # not every file system shares locks
        return is_elsewhere and time.time() - self.last_write < FRESH_SECONDS

    def _noted_counts(self) -> dict[str, float]:
        noted = self.manifest.get("progress")
        entries = noted.items() if isinstance(noted, dict) else ()
        return {name: value for name, value in entries if isinstance(value, int | float)}

    def _seen_counts(self) -> dict[str, float]:
        """The counts of a run whose manifest has no end."""
        seen: dict[str, float] = {}
        for info in self.checkpoints():
            _raise_to(seen, {name: info.meta.get(name) for name in COUNTS})
        if self.epoch_names and (epoch := self.metrics.last_epoch()):
            _raise_to(seen, {"epoch": epoch.at, "update": epoch.update})
        if not self.problems and (last := self.metrics.last_step()):
            _raise_to(seen, {"step": last[0], "update": last[1]})
        return seen

    def __repr__(self) -> str:
        return f"RunView({str(self.path)!r})"


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """The run directories in a folder and its subfolders, sorted; the folders inside a run are not
    searched.

    Args:
        root: The folder, such as "runs".

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from loopwright.run import RunManifest, find_runs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "a").mkdir()
        ...     RunManifest.collect().write(f"{folder}/a/run.json")
        ...     [path.name for path in find_runs(folder)]
        ['a']
    """
    return sorted(_walk(Path(root).absolute(), set()))


def _walk(folder: Path, seen: set[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in seen:  # links may lead in circles
        return
    seen.add(real)
    if (folder / MANIFEST).is_file():
        yield folder
        return
    try:
        inside = [
            entry.path
            for entry in os.scandir(folder)
            if entry.is_dir() and not entry.name.startswith(".")
        ]
    except (PermissionError, FileNotFoundError):  # others' folders, and those removed while we look
        return
    for path in sorted(inside):
        yield from _walk(Path(path), seen)


def _raise_to(counts: dict[str, float], others: Mapping[str, object]) -> None:
    for name, value in others.items():
        if isinstance(value, int | float):
            counts[name] = max(counts.get(name, 0), value)


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
