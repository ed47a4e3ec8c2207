"""Recorded runs for notebooks and scripts: a sequence of runs, with metrics and events as plain
columns."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import ConfigurationError, MissingExtraError
from ..metrics.best import Mode
from .metrics_view import BestValue
from .reading import RunState, RunView, find_runs
from .run_progress import RunProgress

if TYPE_CHECKING:
    import pandas
    import polars


class Columns(dict[str, list[Any]]):
    """A table as a dict of lists of one length, by the names of the columns.

    >>> from loopwright.run import Columns
    >>> Columns({"step": [1, 2], "value": [0.5, 0.25]})["value"]
    [0.5, 0.25]
    """

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        super().__init__(columns)

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a frame of pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "A pandas frame needs pandas: pip install 'loopwright[frames]'."
            ) from error
        return pandas.DataFrame(self)

    def to_polars(self) -> polars.DataFrame:
        """The table as a frame of polars."""
        try:
            import polars
        except ImportError as error:
            raise MissingExtraError("A polars frame needs polars: pip install polars.") from error
        return polars.DataFrame(dict(self), strict=False, infer_schema_length=None)


class Run:
    """A recorded run, read only. What was read once stays as it was; `loopwright.runs` again sees
    what came later.

    Args:
        path: The run directory.

    >>> import tempfile
    >>> from loopwright.run import MetricsStore, Run, RunManifest, StepRow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RunManifest.collect(name="first").changed(state="finished").write(f"{folder}/run.json")
    ...     store = MetricsStore(f"{folder}/metrics.sqlite")
    ...     store.add_steps([StepRow(update=1, step=1, epoch=0, samples=8, seconds=0.1, values={"loss": 0.5})])
    ...     store.add_epoch(1, 1, {"loss": 0.5, "eval_loss": 0.25})
    ...     store.close()
    ...     run = Run(folder)
    ...     run.name, run.names, run.metrics("loss")["value"], run.best().value
    ('first', ['eval_loss', 'loss'], [0.5], 0.25)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.view = RunView(path)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.view.path

    @property
    def id(self) -> str:
        """The id that the run got when it was started."""
        return self.view.id

    @property
    def name(self) -> str:
        """The name of the run: from its manifest, its config, or its folder."""
        return self.view.name

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run."""
        return self.view.tags

    @property
    def state(self) -> RunState:
        """running, finished, stopped, interrupted, failed, crashed, or unreadable."""
        return self.view.state

    @property
    def started(self) -> datetime | None:
        """When the run was first started."""
        return self.view.started

    @property
    def progress(self) -> RunProgress:
        """How far the run got."""
        return self.view.progress

    @property
    def seconds(self) -> float | None:
        """How long the run trained."""
        return self.view.seconds

    @property
    def config(self) -> dict[str, Any]:
        """The config of the run: of its file, or as its trainer was given it; empty for a run
        without one."""
        given = self.view.manifest.get("config")
        return self.view.config or (given if isinstance(given, dict) else {})

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was given, under dotted names, whatever the interface."""
        return self.view.settings

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What `run.json` says of the run: program, machine, packages, state."""
        return self.view.manifest

    @property
    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return self.view.metrics.names()

    @property
    def events(self) -> Columns:
        """Everything that happened in the run, such as checkpoints, in the columns kind, text,
        step, wall and more."""
        events = [asdict(event) for event in self.view.metrics.events()]
        names = ("kind", "text", "step", "update", "epoch", "samples", "seconds", "wall", "detail")
        return Columns({name: [event[name] for event in events] for name in names})

    def metrics(self, name: str, *, by: Literal["step", "epoch"] | None = None) -> Columns:
        """Every value of a metric, bit for bit, and where in the run it was measured.

        Args:
            name: The metric.
            by: "step" for the values of steps, "epoch" for those of epochs; by default those of
                steps if there are any.

        Returns:
            The columns step, update, epoch, samples, seconds (of training), wall (seconds since
            1970) and value. What is not known is None, as times of runs of the first edition.
        """
        levels: tuple[Literal["step", "epoch"], ...] = ("step", "epoch") if by is None else (by,)
        found = (self.view.metrics.columns(name, level) for level in levels)
        columns = next((columns for columns in found if columns["value"]), None)
        if columns is None:
            raise ConfigurationError(self._missing(name, by))
        return Columns(columns)

    def best(self, name: str | None = None, mode: Mode | None = None) -> BestValue | None:
        """The best value of a metric of epochs, with its epoch; None where there is none.

        Args:
            name: The metric; by default the one that the run's best model was chosen by, or else
                its evaluation loss.
            mode: "min" or "max"; by default what the run noted or the metric's name says.
        """
        name = self.view.main_metric if name is None else name
        if name is None:
            return None
        if name not in self.view.epoch_names:
            raise ConfigurationError(self._missing(name, "epoch"))
        if mode is None and self.view.mode_of(name) is None:
            raise ConfigurationError(
                f"It is not known whether smaller or larger values of {name!r} are better: pass "
                "mode='min' or mode='max'."
            )
        return self.view.best_of(name, mode)

    def _missing(self, name: str, by: str | None) -> str:
        known = self.view.epoch_names if by == "epoch" else self.names
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near and near[0] != name else ""
        where = f" of {by}s" if by else ""
        return (
            f"{self.path} has no metric {name!r}{where}; it has: "
            f"{', '.join(known) or 'none yet'}.{hint}"
        )

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, name={self.name!r}, state={self.state!r})"


class Runs(Sequence[Run]):
    """Runs of a folder, the newest first, as `loopwright runs` lists them.

    `runs[0]` is the newest, `runs["first"]` the one with that name, id or folder, `runs[:3]` are
    the newest three.
    """

    def __init__(self, runs: Iterable[Run], root: str | os.PathLike[str]) -> None:
        self._runs = list(runs)
        self.root = Path(root)

    @overload
    def __getitem__(self, which: int | str) -> Run: ...
    @overload
    def __getitem__(self, which: slice) -> Runs: ...
    def __getitem__(self, which: int | str | slice) -> Run | Runs:
        if isinstance(which, slice):
            return Runs(self._runs[which], self.root)
        return self._named(which) if isinstance(which, str) else self._runs[which]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        listed = "".join(f"\n  {self._short(run)}: {run.state}" for run in self._runs[:20])
        more = f"\n  and {len(self) - 20} more" if len(self) > 20 else ""
        return f"{len(self)} {'run' if len(self) == 1 else 'runs'} in {self.root}{listed}{more}"

    def table(self) -> Columns:
        """A row for each run: its name, state, best value, and everything it was given."""
        rows = [self._row(run) for run in self._runs]
        names = dict.fromkeys(name for row in rows for name in row)
        return Columns({name: [row.get(name) for row in rows] for name in names})

    def _row(self, run: Run) -> dict[str, Any]:
        name = run.view.main_metric
        best = None if name is None else run.view.best_of(name)
        row: dict[str, Any] = {
            "path": self._short(run),
            "name": run.name,
            "state": run.state,
            "started": run.started,
        }
        row |= {"seconds": run.seconds, "epoch": run.progress.epoch, "update": run.progress.update}
        row |= {"metric": name, "best": best and best.value, "best_epoch": best and best.epoch}
        return row | {f"config.{key}": value for key, value in run.settings.items()}

    def _named(self, text: str) -> Run:
        fitting = [
            run for run in self._runs if text in (run.name, run.id, run.path.name, self._short(run))
        ]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            paths = ", ".join(self._short(run) for run in fitting)
            raise KeyError(
                f"{text!r} is the name of {len(fitting)} runs; choose one by its path: {paths}."
            )
        near = difflib.get_close_matches(
            text, [run.name for run in self._runs] + [*map(self._short, self._runs)], n=3
        )
        raise KeyError(
            f"There is no run {text!r} in "
            f"{self.root}{'; similar names: ' + ', '.join(near) if near else ''}."
        )

    def _short(self, run: Run) -> str:
        try:
            return str(run.path.relative_to(self.root.absolute()))
        except ValueError:
            return str(run.path)


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
            f"There is no folder {str(root)!r} (in {Path.cwd()}): name the folder that contains "
            "the runs, as in `loopwright.runs('runs')`."
        )
    found = [Run(path) for path in find_runs(folder)]
    newest_first = sorted(
        found, key=lambda run: (_timestamp(run.started), str(run.path)), reverse=True
    )
    return Runs(newest_first, folder)


def _timestamp(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()
