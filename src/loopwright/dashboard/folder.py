"""The runs below a folder: found without leaving it, summarized again only when their files
change."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigurationError, LoopwrightError
from ..run.directory import CONFIG, LOCK, MANIFEST, METRICS
from ..run.metrics_view import MetricsView
from ..run.reading import Run
from .answers import Refusal, is_inside, plain, to_json
from .summary import damaged_summary, summarize

logger = logging.getLogger("loopwright")

Stamp = tuple[tuple[int, int], ...]
FILES = (MANIFEST, CONFIG, METRICS, f"{METRICS}-wal")
WATCHED = (*FILES, "checkpoints", "kept")  # that a summary depends on
OWN_FILES = (*FILES, LOCK)  # that are read, so none may lead elsewhere
MAX_DEPTH = 12  # of folders in folders


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of the list: its summary, and the same as JSON."""

    id: str
    path: Path
    stamp: Stamp
    summary: dict[str, Any]
    text: str = field(repr=False)
    problem: str | None = None  # why nothing of it may be read

    def is_stale(self, stamp: Stamp) -> bool:
        """Whether files have changed since, or the process of a run that was training is gone."""
        if stamp != self.stamp:
            return True
        return self.summary["state"] == "running" and state_of(self.path) != "running"


class RunsFolder:
    """The runs below a folder, or a single run.

    Args:
        root: The folder, which may not exist yet, or a run directory.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.shown = str(root)
        path = Path(root).resolve()
        self.is_single = (path / MANIFEST).is_file()
        self.root = path.parent if self.is_single else path
        self._only = path if self.is_single else None
        self._entries: dict[str, RunEntry] = {}
        self._lock = threading.Lock()  # of a scan

    def scan(self) -> dict[str, RunEntry]:
        """All runs by id, sorted by path; only those that changed are read."""
        with self._lock:
            found = self.find()
            stamps = {run: stamp_of(path) for run, path in found.items()}
            old = self._entries
            entries: dict[str, RunEntry] = {}
            for run, path in found.items():
                entry = old.get(run)
                if entry is None or entry.is_stale(stamps[run]):
                    entry = read_entry(run, path, stamps[run])
                if entry is not None:
                    entries[run] = entry
            self._entries = entries
            return dict(entries)

    def find(self) -> dict[str, Path]:
        """The directories of all runs by id; no file of them is read."""
        if self._only is not None:
            return {self._only.name: self._only} if (self._only / MANIFEST).is_file() else {}
        return {
            run_id(path.relative_to(self.root)): path
            for path in sorted(_walk(self.root, self.root, 0))
        }

    def entry(self, run: str) -> RunEntry:
        """A run by its id, as it is now.

        Raises:
            Refusal: There is no such run below the folder, or its name leads out of it.
        """
        known = self._entries.get(run)  # without the lock: a first scan of many runs takes seconds
        try:
            path = self.path_of(run)
        except Refusal:
            # a link that leads out of the folder
            if known is not None and known.problem is not None:
                return known
            raise
        stamp = stamp_of(path)
        if known is not None and not known.is_stale(stamp):
            return known
        entry = read_entry(run, path, stamp)
        if entry is None:
            raise no_run(run)
        return entry

    def run(self, run: str) -> Run:
        """A run to read from."""
        try:
            return Run(self.readable(run))
        except (ConfigurationError, OSError):
            raise no_run(run) from None

    def readable(self, run: str) -> Path:
        """The directory of a run to read from; an error says why one that is damaged cannot be
        read."""
        path = self.path_of(run)
        if problem := find_problem(path):
            raise Refusal(404, problem)
        return path

    def path_of(self, run: str) -> Path:
        """The directory of a run; links in the way to it are followed, and may not lead out of the
        folder."""
        parts = run.split("/")
        if (
            not run
            or "\0" in run
            or any(part in ("", ".", "..") or part.startswith(".") for part in parts)
        ):
            raise no_run(run)
        path = self.root.joinpath(*parts)
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise no_run(run) from None
        is_allowed = real == self._only if self._only is not None else is_inside(real, self.root)
        if not is_allowed or not (real / MANIFEST).is_file():
            raise no_run(run)
        return path


@contextmanager
def open_metrics(path: Path) -> Iterator[MetricsView]:
    """The metrics of a run directory, for one request.

    Raises:
        CheckpointError: The file is damaged, or holds rows that make no sense.
    """
    try:
        with MetricsView(path / METRICS) as metrics:
            yield metrics
    except LoopwrightError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        # no row that we have written
        logger.debug("%s contains malformed rows", path, exc_info=True)
        raise CheckpointError(
            "metrics-damaged", f"The metrics in {path} are damaged: {error}."
        ) from error


def run_id(path: Path) -> str:
    """The path of a run below the folder as text; bytes that are not UTF-8 are escaped, and then
    lead nowhere."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def no_run(run: str) -> Refusal:
    shown = run if len(run) <= 80 else f"{run[:80]}…"
    return Refusal(
        404, f"There is no run {shown!r} in this folder; it may have been moved or removed."
    )


def own_file(run: Path, name: str) -> Path | None:
    """A regular file of a run, unless there is none or it is a link that leads out of the run."""
    path = run / name
    try:
        real = path.resolve(strict=True)
        home = run.resolve()
        is_own = stat.S_ISREG(real.stat().st_mode) and is_inside(real, home)
    except (OSError, RuntimeError, ValueError):
        return None
    return real if is_own else None


def stamp_of(path: Path) -> Stamp:
    """Times and sizes of the files that a summary depends on."""
    return tuple(_time_and_size(os.path.join(path, name)) for name in WATCHED)


def _time_and_size(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def state_of(path: Path) -> str:
    """The state of a run, by its lock."""
    try:
        return Run(path).state
    except (LoopwrightError, OSError):
        return "unreadable"


def find_problem(path: Path) -> str | None:
    """Why a run must not be read: it or a file of it is a link to elsewhere, or no file."""
    home = path.resolve()
    if path.is_symlink() and not is_inside(home, path.parent.resolve()):
        return f"It is a link to {home}, outside of this folder: start `loopwright ui` there."
    for name in OWN_FILES:
        file = path / name
        if file.is_symlink() and not is_inside(file.resolve(), home):
            return f"{name} is a link that points outside of the run directory, so it is not read."
        if file.exists() and not file.is_file():
            return f"{name} is not a file."
    return None


def read_entry(run: str, path: Path, stamp: Stamp) -> RunEntry | None:
    """Summarize a run; None where it is gone. A damaged run has a summary too, which says what is
    wrong."""
    try:
        problem = find_problem(path)
        if problem:
            summary = damaged_summary(run, path, problem)
        else:
            view = Run(path)
            with view.metrics:  # opened once
                summary = summarize(run, view)
    except Exception as error:
        # files of a run may hold anything, and one run must not take the list with it
        if not (path / MANIFEST).is_file():
            return None
        problem = f"It cannot be read: {error or type(error).__name__}"
        summary = damaged_summary(run, path, problem)
    summary = plain(summary)
    return RunEntry(run, path, stamp, summary, to_json(summary), problem)


def _walk(folder: Path, root: Path, depth: int) -> Iterator[Path]:
    """The run directories below a folder; links to folders are listed where they are runs, and
    never followed."""
    if depth > 0 and os.path.isfile(folder / MANIFEST):
        yield folder
        return
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:  # others' folders, and those removed while we look
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
            yield from _walk(Path(entry.path), root, depth + 1)
        elif entry.is_symlink() and _leads_out(entry.path, root):
            yield Path(entry.path)


def _leads_out(link: str, root: Path) -> bool:
    """Whether a link leads to a run that is not in the folder, and is thus not listed elsewhere."""
    return os.path.isfile(os.path.join(link, MANIFEST)) and not is_inside(
        Path(link).resolve(), root
    )
