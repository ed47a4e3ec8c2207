"""Recording a run in its directory: step and epoch metrics as they come, and how the run ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..errors import CheckpointError, Interrupted

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter
    from ..metrics.best import Mode
    from ..metrics.rows import StepRow
    from ..run import MetricsStore
    from ..run.manifest import State, WorkTree


logger = logging.getLogger("loopwright")


class RunRecorder(Callback):
    """Writes metrics and the state of the run to `run_dir`; what a resumed run measures again is replaced.

    A trainer with a `run_dir` has one without being given it.

    Args:
        on_error: Whether a failed write ends training ("raise") or is reported and tried again later ("warn").

    >>> from loopwright.callbacks import RunRecorder
    >>> RunRecorder(on_error="warn").on_error
    'warn'
    """

    def __init__(self, on_error: Literal["raise", "warn"] = "raise") -> None:
        self.on_error = on_error
        self._metrics: MetricsStore | None = None
        self._tree: WorkTree | None = None  # while git is at work
        self._waiting: list[Callable[[], None]] = []
        self._modes: dict[str, Mode | None] = {}  # of the metrics that epochs have had so far

    def on_train_start(self, trainer: Trainer) -> None:
        from ..run import MetricsStore, RunManifest, update_manifest
        from ..run.manifest import WorkTree

        assert trainer.run.directory is not None
        with trainer.run.directory.starting():
            if trainer.run.directory.has_run:
                update_manifest(
                    trainer.run.directory.manifest_path,
                    state="running",
                    fingerprint=trainer.run.fingerprint,
                    change=_accepted(trainer),
                )
            else:
                self._tree = WorkTree(Path.cwd()).ask()
                manifest = RunManifest.collect(
                    device=str(trainer.runtime.device),
                    seed=trainer.seed,
                    tree=self._tree,
                    fingerprint=trainer.run.fingerprint,
                )
                manifest.write(trainer.run.directory.manifest_path)
        self._waiting = []
        self._metrics = MetricsStore(trainer.run.directory.metrics_path)
        if trainer.run.directory.metrics_path.exists():
            self._metrics.truncate(step=trainer.progress.step, epoch=trainer.progress.epoch)
        self._warn_of_gap(trainer, self._metrics)

    def _warn_of_gap(self, trainer: Trainer, metrics: MetricsStore) -> None:
        """Warn where the history of a resumed run has metrics that the file lacks: it was lost, or is new."""
        last = max((series.steps[-1] for series in trainer.history.steps.values() if series.steps), default=0)
        recorded = metrics.last_step() if last and metrics.path.exists() else 0
        if recorded < last:
            logger.warning(
                "%s has no metrics of steps %d to %d, which were recorded before this run was resumed. Its history has "
                "them and training goes on exactly; what is read from the file (`loopwright show`, plots) lacks them. "
                "If you have a copy of the file, put it back before you start the program.",
                *(metrics.path, recorded + 1, last),
            )

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        self._store("add_steps", rows)
        if self._tree is not None and self._tree.is_answered and trainer.run.directory is not None:
            self._write(partial(_note, trainer.run.directory.manifest_path, **self._found_by_git()))

    def on_rewind(self, trainer: Trainer) -> None:
        self._store("truncate", step=trainer.progress.step, epoch=trainer.progress.epoch)

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        self._store("flush")
        return ()

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._add_epoch(trainer, trainer.progress.epoch, metrics)
        if not metrics.keys() <= self._modes.keys():
            assert trainer.run.directory is not None
            self._write(partial(_note, trainer.run.directory.manifest_path, **self._directions(trainer, metrics)))

    def _directions(self, trainer: Trainer, metrics: Iterable[str]) -> dict[str, Any]:
        """What readers have to know to rank by these metrics: which values are better, and what evaluations are."""
        directions = trainer.run.directions
        self._modes |= {name: directions.of(name) for name in (*directions.given, *metrics)}
        known = {name: mode for name, mode in self._modes.items() if mode is not None}
        return {"metric_modes": known, "eval_keys": sorted(directions.eval_keys), "watched": directions.watched}

    def on_train_end(self, trainer: Trainer) -> None:
        if trainer.progress.in_epoch and len(trainer.history) > trainer.progress.epoch:
            self._add_epoch(trainer, trainer.progress.epoch + 1, trainer.history.epochs[-1])
        self._store("flush")
        self._close(trainer, "finished" if trainer.stop_reason is None else "stopped", trainer.stop_reason)

    def _add_epoch(self, trainer: Trainer, epoch: int, metrics: Mapping[str, float]) -> None:
        at = trainer.progress
        self._store("add_epoch", epoch, at.update, metrics, step=at.step, samples=at.sample, seconds=at.seconds)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            self._close(trainer, "interrupted", trainer.run.signals.name)
        else:
            self._close(trainer, "failed", f"{type(error).__name__}: {error}")

    def _found_by_git(self) -> dict[str, Any]:
        """The state of the working tree, once; waits for git if it is still running."""
        tree, self._tree = self._tree, None
        return {} if tree is None else {"git_dirty": tree.is_dirty}

    def _store(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the store, which keeps what it cannot write and tries again."""
        try:
            if self._metrics is not None:
                getattr(self._metrics, method)(*arguments, **options)
        except CheckpointError as error:
            if self.on_error == "raise":
                raise
            logger.warning("%s", error)

    def _write(self, action: Callable[[], None] | None = None) -> None:
        """Write earlier actions that failed, then this one, in their order."""
        if action is not None:
            self._waiting.append(action)
        try:
            while self._waiting:
                self._waiting[0]()
                del self._waiting[0]
        except (CheckpointError, OSError) as error:
            if self.on_error == "raise":
                self._waiting = []
                raise
            logger.warning("%s", error)

    def _close(
        self,
        trainer: Trainer,
        state: State,
        reason: str | None,
    ) -> None:
        assert trainer.run.directory is not None
        found = self._found_by_git()
        if trainer.run.directory.has_run:
            progress = {
                name: getattr(trainer.progress, name) for name in ("epoch", "step", "update", "sample", "seconds")
            }
            names = trainer.history.epochs[-1] if trainer.history.epochs else ()
            found |= self._directions(trainer, names)
            changes = {"state": state, "reason": reason, "progress": progress, **found}
            self._write(partial(_note, trainer.run.directory.manifest_path, **changes))
        if self._metrics is not None:
            try:
                self._metrics.close()
            except CheckpointError as error:
                logger.warning("%s", error)


def _accepted(trainer: Trainer) -> dict[str, Any] | None:
    """What the program has changed in the run since it was last started, once, and from which update on."""
    changes, trainer.run.accepted = trainer.run.accepted, []
    values = {change.key: [change.first, change.second] for change in changes}
    return {"update": trainer.progress.update, "values": values} if values else None


def _note(path: Path, **changes: Any) -> None:
    from ..run import update_manifest

    update_manifest(path, **changes)
