"""Recording a run in its directory: metrics, events, media and log lines as they come, and how the
run ended."""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..callback import Callback
from ..errors import CheckpointError, ConfigurationError, Interrupted
from .interval import cut_epoch

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter
    from ..metrics.best import Mode
    from ..metrics.media import Media
    from ..metrics.rows import StepRow
    from ..run import MetricsStore, RunDirectory
    from ..run.manifest import State, WorkTree


logger = logging.getLogger("loopwright")

COUNTED = ("epoch", "step", "update", "sample", "seconds")
Existing = Literal["number", "continue", "replace"]
MAX_LINES = 10_000  # that wait to be taken; older ones are dropped
Line = tuple[str, str, float]  # level, text, seconds since 1970


class RunRecorder(Callback):
    """Writes metrics, events and the state of the run to `run_dir`; what a resumed run measures
    again is replaced.

    A trainer with a `run_dir` has one without being given it. With a `directory` of its own it only
    records: nothing is saved to resume from, and the program trains as it does without it.

    Args:
        on_error: Whether a failed write ends training ("raise") or is reported and tried again
            later ("warn").
        directory: Where to record a run whose trainer has no `run_dir`.
        existing: What to do where that directory holds a run: record in the first free of `name-2`,
            `name-3` and so on ("number"); or go on with it if training does, and otherwise number
            ("continue"), or move it to a folder inside ("replace").

    >>> from loopwright.callbacks import RunRecorder
    >>> RunRecorder(on_error="warn").on_error
    'warn'
    """

    # whether the end of a `train` call is not the end of the run
    spans_calls: ClassVar[bool] = False

    def __init__(
        self,
        on_error: Literal["raise", "warn"] = "raise",
        *,
        directory: str | Path | None = None,
        existing: Existing = "number",
    ) -> None:
        self.on_error = on_error
        self.own_path = None if directory is None else Path(directory)
        self.existing: Existing = existing
        self._directory: RunDirectory | None = None
        self._metrics: MetricsStore | None = None
        self._is_open = False  # whether a `train` call is under way
        self._has_started = False
        self._has_left = False  # whether the end by a signal is recorded
        self._left: tuple[int, ...] | None = None  # `_state_of` the end of the last `train` call
        self._tree: WorkTree | None = None  # while git is at work
        self._unwritten: dict[str, Any] = {}  # changes of the manifest that could not be written
        self._modes: dict[str, Mode | None] = {}  # of the metrics that epochs have had so far
        self._lines = LineCollector()

    def on_train_start(self, trainer: Trainer) -> None:
        try:
            self._begin(trainer)
        except (ConfigurationError, CheckpointError, OSError) as error:
            if self.own_path is None:
                raise
            logger.warning("This run is not recorded: %s", error)
            if self._directory is not None:
                self._directory.unlock()
            self._directory = None
            self._metrics = None

    def _begin(self, trainer: Trainer) -> None:
        from ..run import MetricsStore

        directory = trainer.run.files.directory
        if self.own_path is not None:
            directory = self._open_own(trainer, self.own_path)
        assert directory is not None
        self._directory = directory
        self._unwritten = {}
        self._is_open = True
        self._has_left = False
        with directory.starting():
            self._write_manifest(trainer, directory)
        self._metrics = MetricsStore(directory.metrics_path)
        at = trainer.progress
        is_resumed = at.step > 0 and not self._has_started
        if directory.metrics_path.exists() and _state_of(directory, trainer) != self._left:
            # after the resume point that this process continues, or after the call before
            was_finished = None if self._has_started else trainer.run.call.was_finished
            self._metrics.truncate(step=at.step, epoch=at.epoch, is_finished=was_finished)
        if is_resumed:
            # with SQLite, which a first step does without
            from ..run.metrics_view import MetricsView

            # items of the resumed step are numbered behind those before the resume point
            for event in MetricsView(directory.metrics_path).events():
                if event.kind == "checkpoint" and event.update == at.update:
                    # events of early versions have no counts
                    trainer.run.media.count_on(at.step, event.detail.get("media") or {})
        if not (self._has_started and self.spans_calls):
            where = f"at epoch {at.epoch + 1}, update {at.update}" if at.step else ""
            detail = {"call": at.call, "process": os.getpid()}
            self._add_event(trainer, "resumed" if is_resumed else "started", where, detail)
        self._has_started = True
        self._lines.start()

    def _open_own(self, trainer: Trainer, path: Path) -> RunDirectory:
        """The directory of this recorder alone, locked."""
        from ..run import RunDirectory

        if self._directory is not None:  # a later `train` call
            return self._directory.lock()
        goes_on = self.existing != "number" and trainer.progress.step > 0
        if not goes_on and self.existing != "replace":
            directory = RunDirectory.fresh(path, records_only=True)
            trainer.run.say(f"This run is recorded in {directory.path}.")
            return directory
        directory = RunDirectory(path, records_only=True).lock()
        if not goes_on and directory.has_run:
            earlier = directory.set_aside()
            trainer.run.say(
                f"{directory.path} contained the record of an earlier run, which was moved to "
                f"{earlier.name}."
            )
        return directory

    def _write_manifest(self, trainer: Trainer, directory: RunDirectory) -> None:
        from ..run import RunManifest, update_manifest
        from ..run.manifest import WorkTree

        files = trainer.run.files
        facts = trainer._facts()
        if directory.has_run:
            # what the program has changed since it was last started, once
            changed = {change.key: [change.first, change.second] for change in files.accepted}
            files.accepted = []
            update_manifest(
                directory.manifest_path,
                state="running",
                fingerprint=files.fingerprint,
                change={"update": trainer.progress.update, "values": changed} if changed else None,
                facts=facts,
            )
            return
        self._tree = WorkTree(Path.cwd()).ask()
        manifest = RunManifest.collect(
            device=str(trainer.runtime.device),
            seed=trainer.seed,
            seed_source=trainer._seed.source,
            tree=self._tree,
            fingerprint=files.fingerprint,
        )
        manifest.changed(facts=facts).write(directory.manifest_path)

    # What is recorded

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        if self._metrics is None:
            return
        self._write(self._metrics.add_steps, rows)
        self._add_notes(trainer)
        if self._tree is not None and self._tree.is_answered:
            self._note(**self._found_by_git())

    def on_media(self, trainer: Trainer, media: Media) -> None:
        if self._metrics is None or self._directory is None:
            return
        # before or after a `train` call nothing is locked, unless an experiment of several is
        locks = not self._is_open and not self._directory.is_locked
        if locks:
            self._directory.lock()
        try:
            self._write(self._metrics.add_media, media)
            if not self._is_open:
                self._write(self._metrics.close)
        finally:
            if locks:
                self._directory.unlock()

    def on_rewind(self, trainer: Trainer) -> None:
        if self._metrics is None:
            return
        place = trainer.progress
        self._write(self._metrics.truncate, step=place.step, epoch=place.epoch)
        self._add_event(trainer, "rewind", f"to update {place.update}")
        self._add_notes(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._add_epoch(trainer, trainer.progress.epoch, metrics)
        if not metrics.keys() <= self._modes.keys():
            self._note(**self._directions(trainer, metrics))
        self._add_notes(trainer)

    def _add_epoch(self, trainer: Trainer, epoch: int, metrics: Mapping[str, float]) -> None:
        if self._metrics is None or self._directory is None:
            return
        update, step, _, samples, seconds = trainer.run.place()
        self._write(
            self._metrics.add_epoch,
            epoch,
            update,
            dict(metrics),
            step=step,
            samples=samples,
            seconds=seconds,
        )
        if not self._directory.log_path.exists():  # that log has lines for epochs
            text = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self._write(self._metrics.add_log_line, "INFO", f"epoch {epoch}  {text}".rstrip())

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        """A resume point is complete only with all that was recorded before it."""
        if self._metrics is not None and self._is_open:
            self._add_notes(trainer)
            progress = trainer.progress
            counts = trainer.run.media.counts_at()
            detail = {"finished": progress.call_finished, "media": counts}
            self._add_event(trainer, "checkpoint", detail=detail)
            self._write(self._metrics.flush)
        return ()

    def _add_event(
        self, trainer: Trainer, kind: str, text: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        assert self._metrics is not None
        self._write(self._metrics.add_event, kind, text, place=trainer.run.place(), detail=detail)

    def _add_notes(self, trainer: Trainer) -> None:
        """Take the lines and events since the last time: those of the run, and those of Python's
        log."""
        metrics = self._metrics
        notes = trainer.run.notes
        if metrics is None:
            return
        for level, text, wall in self._lines.take():
            self._write(metrics.add_log_line, level, text, wall=wall)
        while notes:
            note = notes.popleft()
            if note.kind == "line":
                self._write(metrics.add_log_line, "INFO", note.text, wall=note.wall)
                continue
            self._write(
                metrics.add_event,
                note.kind,
                note.text,
                place=note.place,
                wall=note.wall,
                detail=note.detail,
            )
            if note.kind == "compiled":
                self._note(facts={"compiled": dict(note.detail)})

    def _directions(self, trainer: Trainer, metrics: Iterable[str]) -> dict[str, Any]:
        """What readers have to know to rank by these metrics: which values are better, and what
        evaluations are."""
        directions = trainer.run.metrics.directions
        self._modes |= {name: directions.of(name) for name in (*directions.given, *metrics)}
        known = {name: mode for name, mode in self._modes.items() if mode is not None}
        return {
            "metric_modes": known,
            "eval_keys": sorted(directions.eval_keys),
            "watched": directions.watched,
        }

    # The end

    def on_loop_end(self, trainer: Trainer) -> None:
        """Add the row of an epoch that a limit cut short, before the last resume point is saved."""
        if row := cut_epoch(trainer):
            self._add_epoch(trainer, trainer.progress.epoch + 1, row)

    def on_train_end(self, trainer: Trainer) -> None:
        if self._metrics is not None:
            self._write(self._metrics.flush)  # which ends training if it fails
        self._close(trainer, *_ending(trainer))
        if self._directory is not None and self._directory.metrics_path.exists():
            self._left = _state_of(self._directory, trainer)

    def finish_again(self, trainer: Trainer) -> None:
        """Note the end of a run that was killed between its last resume point and the end of the
        call."""
        from ..run import MetricsStore, RunManifest
        from ..run.metrics_store import END_EVENTS
        from ..run.metrics_view import MetricsView

        directory = trainer.run.files.directory
        if directory is None or not directory.has_run:  # a user may have removed the manifest
            return
        if RunManifest.read(directory.manifest_path).state in ("finished", "stopped"):
            return
        self._directory = directory
        self._metrics = MetricsStore(directory.metrics_path)
        state, reason = _ending(trainer)
        events = MetricsView(directory.metrics_path).events()
        ends = [(event.step, event.epoch) for event in events if event.kind in END_EVENTS]
        if (trainer.progress.step, trainer.progress.epoch) not in ends:
            self._add_end(trainer, state, reason, None)
        self._write(self._metrics.close)
        self._note(state=state, reason=reason, progress=_counts(trainer))

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            if not self._has_left:
                self._close(trainer, "interrupted", trainer.run.stopping.signals.name)
            return
        self._lines.add("ERROR", "".join(traceback.format_exception(error)))
        self._close(trainer, "failed", f"{type(error).__name__}: {error}", error)

    def leave(self, trainer: Trainer) -> None:
        """Record the end by a signal, while the last resume point is written; that it fails is
        recorded as well."""
        try:
            self._close(trainer, "interrupted", trainer.run.stopping.signals.name)
            self._has_left = True
        except (CheckpointError, OSError) as error:
            logger.warning("%s", error)

    def _close(
        self, trainer: Trainer, state: State, reason: str | None, error: BaseException | None = None
    ) -> None:
        directory = self._directory or trainer.run.files.directory
        found = self._found_by_git()
        self._is_open = False
        self._lines.stop()
        if directory is None:  # it could not be opened
            return
        self._directory = directory
        closing = threading.Thread(target=self._close_metrics, args=(trainer, state, reason, error))
        if state == "interrupted":  # the time may be short: both files are synced at once
            self._add_notes(trainer)
            closing.start()
        else:
            closing.run()
        try:
            # last, since `finish_again` leaves a run alone that is finished by its manifest
            if directory.has_run:
                names = trainer.history.epochs[-1] if trainer.history.epochs else ()
                found |= self._directions(trainer, names)
                self._note(state=state, reason=reason, progress=_counts(trainer), **found)
        finally:
            if closing.is_alive():
                closing.join()
        if self.own_path is not None:
            directory.unlock()

    def _close_metrics(
        self, trainer: Trainer, state: State, reason: str | None, error: BaseException | None
    ) -> None:
        if self._metrics is None:
            return
        try:
            self._add_notes(trainer)
            self._add_end(trainer, state, reason, error)
            self._metrics.close()
        except CheckpointError as problem:
            logger.warning("%s", problem)

    def _add_end(
        self, trainer: Trainer, state: State, reason: str | None, error: BaseException | None
    ) -> None:
        if self.spans_calls and state == "running":
            return
        detail = None
        if error is not None:
            detail = {"traceback": "".join(traceback.format_exception(error))}
        kind = "signal" if state == "interrupted" else state
        self._add_event(trainer, kind, reason or "", detail)

    # Writing

    def _found_by_git(self) -> dict[str, Any]:
        """The state of the working tree, once; waits for git if it is still running."""
        tree = self._tree
        self._tree = None
        return {} if tree is None else {"git_dirty": tree.is_dirty}

    def _write(self, action: Callable[..., object], *args: Any, **options: Any) -> None:
        """Write to the store, which keeps what it could not write and tries again."""
        try:
            action(*args, **options)
        except (CheckpointError, OSError) as error:
            if self.on_error == "raise":
                raise
            logger.warning("%s", error)

    def _note(self, **changes: Any) -> None:
        """Change the manifest, with earlier changes that could not be written."""
        if self._directory is None or not changes:
            return
        self._unwritten |= changes
        self._write(_update, self._directory.manifest_path, self._unwritten)


def _state_of(directory: RunDirectory, trainer: Trainer) -> tuple[int, ...]:
    """The position of the run, and the date and size of its metrics: where they are the same,
    nothing is after it."""
    file = directory.metrics_path.stat()
    return trainer.progress.step, trainer.progress.epoch, file.st_mtime_ns, file.st_size


def _ending(trainer: Trainer) -> tuple[State, str | None]:
    """The state of a run that reached its end, and what stopped it, if something did."""
    return ("finished" if trainer.stop_reason is None else "stopped"), trainer.stop_reason


def _counts(trainer: Trainer) -> dict[str, Any]:
    return {name: getattr(trainer.progress, name) for name in COUNTED}


def _update(path: Path, changes: dict[str, Any]) -> None:
    """Make changes of the manifest, which are forgotten then."""
    from ..run import update_manifest

    try:
        update_manifest(path, **changes)
    except OSError as error:
        raise CheckpointError(
            "manifest-not-written",
            f"{path} cannot be written: {error}. Check the free disk space and the permissions.",
        ) from error
    changes.clear()


class LineCollector(logging.Handler):
    """Keeps all records of Python's log and all warnings from `start` to `stop`, until they are
    taken."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)  # other threads append, too
        self._detach: Callable[[], None] | None = None
        self._shown: Callable[..., Any] | None = None  # what showed warnings before

    def start(self) -> None:
        """Collect from now on."""
        if self._detach is None:
            from ..run.directory import attach

            self._detach = attach(self)
            self._shown = warnings.showwarning
            warnings.showwarning = self._show

    def stop(self) -> None:
        """Collect no more; what was collected can still be taken."""
        if self._detach is not None:
            self._detach()
            if warnings.showwarning == self._show and self._shown is not None:
                warnings.showwarning = self._shown
            self._detach = None

    def add(self, level: str, text: str) -> None:
        """Add a line."""
        self._lines.append((level, text, time.time()))

    def take(self) -> list[Line]:
        """Return the lines since the last call, from old to new."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of Python's log."""
        try:
            text = self.format(record)
        except Exception:  # a record with wrong arguments, which other handlers report
            return
        self._lines.append((record.levelname, f"{record.name}: {text}", record.created))

    def _show(
        self,
        message: Any,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: Any = None,
    ) -> None:
        self.add("WARNING", f"{filename}:{lineno}: {category.__name__}: {message}")
        if self._shown is not None:
            self._shown(message, category, filename, lineno, file, line)
