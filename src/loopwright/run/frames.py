"""The runs of a folder for notebooks and scripts: a sequence, and a table of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..text import counted, nearest
from .metrics_view import Columns
from .reading import Run, newest_first


class Runs(list[Run]):
    """Runs of a folder, the newest first, as `loopwright runs` lists them.

    `runs[0]` is the newest, `runs["first"]` the one with that name, id or folder, `runs[:3]` are
    the newest three.
    """

    def __init__(self, runs: Iterable[Run], root: str | os.PathLike[str]) -> None:
        super().__init__(runs)
        self.root = Path(root)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return Runs(super().__getitem__(which), self.root)
        return self._named(which) if isinstance(which, str) else super().__getitem__(which)

    def __repr__(self) -> str:
        listed = "".join(f"\n  {self._short(run)}: {run.state}" for run in self[:20])
        more = f"\n  and {len(self) - 20} more" if len(self) > 20 else ""
        return f"{counted(len(self), 'run')} in {self.root}{listed}{more}"

    def table(self) -> Columns:
        """A row for each run: its name, state, best value, and everything it was given."""
        rows = [self._row(run) for run in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return Columns({name: [row.get(name) for row in rows] for name in names})

    def _row(self, run: Run) -> dict[str, Any]:
        name = run.main_metric
        best = None if name is None else run.best_of(name)
        row = {
            "path": self._short(run),
            "name": run.name,
            "state": run.state,
            "started": run.started,
            "seconds": run.seconds,
            "epoch": run.progress.epoch,
            "update": run.progress.update,
            "metric": name,
            "best": best and best.value,
            "best_epoch": best and best.epoch,
        }
        return row | {f"config.{key}": value for key, value in run.settings.items()}

    def _named(self, text: str) -> Run:
        names = {}
        fitting = []
        for run in self:
            own = (run.name, run.id, run.path.name, self._short(run))
            names.update(dict.fromkeys(own))
            if text in own:
                fitting.append(run)
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            paths = ", ".join(self._short(run) for run in fitting)
            raise KeyError(
                f"{text!r} is the name of {len(fitting)} runs; choose one by its path: {paths}."
            )
        raise KeyError(f"There is no run {text!r} in {self.root}: {nearest(text, list(names))}")

    def _short(self, run: Run) -> str:
        return os.path.relpath(run.path, self.root)


def runs(root: str | os.PathLike[str] = "runs") -> Runs:
    """The runs in a folder and its subfolders, the newest first.

    Args:
        root: The folder, or a run directory.

    Returns:
        A sequence of `Run`, which has `metrics(name)`, `config`, `events`, `best()` and more;
        `runs(...).table()` is a table of all.

    >>> import tempfile
    >>> import loopwright
    >>> from loopwright.run import RunManifest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RunManifest.collect(name="first").changed(state="finished").write(f"{folder}/run.json")
    ...     [(run.name, run.state) for run in loopwright.runs(folder)]
    [('first', 'finished')]
    """
    folder = Path(root)
    if not folder.is_dir():
        raise ConfigurationError(
            "no-runs-folder",
            f"There is no folder {str(root)!r} (in {Path.cwd()}): name the folder that contains "
            "the runs, as in `loopwright.runs('runs')`.",
        )
    return Runs(newest_first(folder), folder)
