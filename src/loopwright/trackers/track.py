"""The callback that sends a run to a tracker, and the thread on which it does, so that nothing that
is slow or fails is in the way of training."""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from time import time
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..callback import Callback
from ..data.random import preserved_rng
from ..errors import (
    ConfigurationError,
    Interrupted,
    MissingExtraError,
    check_arguments,
    check_number,
)
from ..metrics.media import Images, Media
from ..run.reading import settings_of
from .tracker import EndState, Setting, TrackedRow, TrackedRun, Tracker

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter
    from ..metrics.rows import StepRow
    from ..run.schema import Level

logger = logging.getLogger("loopwright")

METHODS = {"start": ["run"], "log": ["rows"], "log_media": ["media"], "finish": ["state", "reason"]}
Action: TypeAlias = Callable[[], None]
Item: TypeAlias = Action | list[TrackedRow]
MOST_BYTES = 256 << 20  # that wait
ROW_BYTES = 2000  # of a row with its metrics, about
LONGEST = 500  # characters of a setting
SAVE_SECONDS = 1.0  # that a resume point waits for what was logged before it


class Track(Callback):
    """Sends a run to a tracker: metrics of steps and epochs, media, the config, and how the run
    ended.

    Only the first process does. The tracker works on a thread of its own with what log points read
    anyway: a step costs nothing more. A tracker that fails is reported once and never stops a run.

    Args:
        tracker: An object with the methods of `Tracker`.
        every: Send every n-th step only. Epochs are all sent.
        truncates: Whether `tracker.start(run)` removes what the tracker has after `run.step` and
            `run.epoch`. It is then called after a rewind too. Otherwise rows that the tracker has
            already are left out.

    >>> from loopwright.trackers import CSV, Track
    >>> issubclass(CSV, Track)
    True
    """

    precedence = 1  # after the callbacks that log metrics
    package: ClassVar[str] = ""  # that the tracker needs
    timeout = 60.0  # seconds to wait at the end of training for the tracker to finish

    def __init__(self, tracker: Tracker, *, every: int = 1, truncates: bool = False) -> None:
        self.label = type(tracker if type(self) is Track else self).__name__
        if type(self) is Track:
            _check_methods(tracker, self.label)
        if self.package and find_spec(self.package) is None:
            raise MissingExtraError(
                "tracker-extra",
                f"{self.label} needs {self.package}: pip install 'loopwright[{self.package}]'.",
            )
        check_number(f"{self.label}(every", every, least=1, of="steps")
        self.tracker = tracker
        self.every = every
        self.truncates = truncates
        # an interface that trains in several calls sets it, and calls `finish` itself
        self.is_kept_open = False
        self._background: Background | None = None
        self._run: TrackedRun | None = None
        self._memory: dict[str, Any] = {}
        self._path: Path | None = None  # of the memory
        # the last step of each kind that a tracker without truncation has
        self._floor: dict[str, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._media: list[Media] = []  # of which the rows were not read yet
        self._has_warned = False
        self._has_failed = False
        self._is_slow = False

    def prepare(self) -> None:
        """Import what the tracker needs, in the main thread, since a process that forks must not be
        importing."""
        if self.package:
            import_module(self.package)

    # Events

    def on_train_start(self, trainer: Trainer) -> None:
        self.begin(trainer, trainer.progress.epoch)

    def begin(self, trainer: Trainer, epoch: int) -> None:
        """Begin to track a run, or go on; `epoch` is the number of complete epochs whose rows were
        sent before."""
        if not trainer.runtime.is_main:
            return
        run = self._describe(trainer, epoch)
        if self._background is not None and self.is_kept_open:
            return
        self.finish("interrupted")  # a call before, which nothing has ended
        self._reset()
        self._run = run
        try:
            with preserved_rng():  # imports draw from Python's generator, too
                self.prepare()
        except Exception as error:
            self._fail(error)
            return
        if self.is_kept_open:
            atexit.register(self._finish_at_exit)
        self._background = Background(self.label, self._write, self._warn)
        self._background.add(partial(self._start, run))

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        if self._background is None:
            return
        offset = time() - rows[-1].seconds
        sent = [
            TrackedRow(
                "step",
                row.step,
                row.update,
                row.epoch,
                row.samples,
                row.seconds,
                offset + row.seconds,
                row.values,
            )
            for row in rows
            if row.step % self.every == 0
        ]
        self._add_rows(sent)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.log_epoch(trainer, trainer.progress.epoch, metrics)

    def on_media(self, trainer: Trainer, media: Media) -> None:
        """Keep media for the next log point: trackers want steps in their order, and rows of
        earlier ones come then."""
        if self._background is not None:
            self._media.append(media)

    def _add_rows(self, rows: list[TrackedRow]) -> None:
        """Send rows, and the media that wait, each after the rows up to its own step."""
        waiting = self._media
        self._media = []
        for media in waiting:
            earlier = [row for row in rows if row.step <= media.step]
            rows = [row for row in rows if row.step > media.step]
            self._add(earlier, ROW_BYTES * len(earlier))
            content = media.content
            size = sum(map(len, content.files)) if isinstance(content, Images) else ROW_BYTES
            self._add(partial(self._write_media, media), size)
        self._add(rows, ROW_BYTES * len(rows))

    def _add(self, item: Item, num_bytes: int) -> None:
        if self._background is not None and not self._background.add(item, num_bytes):
            self._say(
                f"The tracker {self.label} is slower than the run and is missing a part of it; "
                f"training continues. Send fewer steps: `{self.label}(..., every={10 * self.every})`."
            )

    def on_rewind(self, trainer: Trainer) -> None:
        if self._background is not None and self._run is not None:
            progress = trainer.progress
            self._media = [media for media in self._media if media.step <= progress.step]
            self._run = replace(self._run, step=progress.step, epoch=progress.epoch)
            self._background.add(partial(self._rewind, self._run))

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        """Let what was logged be written first, so that a run that is killed and resumed lacks
        nothing."""
        if self._background is not None and not self._is_slow:
            self._is_slow = not self._background.wait(SAVE_SECONDS)  # it is waited for only once
        return ()

    def on_train_end(self, trainer: Trainer) -> None:
        progress = trainer.progress
        # a limit ended the epoch early
        if progress.in_epoch and len(trainer.history) > progress.epoch:
            self.log_epoch(trainer, progress.epoch + 1, trainer.history.epochs[-1])
        if self.is_kept_open:
            return
        self.finish("finished" if trainer.stop_reason is None else "stopped", trainer.stop_reason)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._finish_with(error)

    # What interfaces call too

    def log_epoch(self, trainer: Trainer, epoch: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of an epoch, at the last step that was trained."""
        at = trainer.progress
        steps = trainer.history.steps
        step = at.step or epoch  # the steps of a loop that the user wrote may not be counted
        values = {
            f"epoch/{name}" if name in steps else name: value for name, value in metrics.items()
        }
        row = TrackedRow("epoch", step, at.update, epoch, at.sample, at.seconds, time(), values)
        self._add_rows([row])

    def finish(self, state: EndState, reason: str | None = None) -> None:
        """Let the tracker finish, and wait for it no longer than `timeout`."""
        self._add_rows([])
        background = self._background
        self._background = None
        if background is None:
            return
        atexit.unregister(self._finish_at_exit)
        background.add(partial(self._finish, state, reason))
        if not background.close(self.timeout):
            self._say(
                f"{self.label} has not finished after {self.timeout:g} s, so its record may lack "
                "the end of the run. To wait longer, set the tracker's attribute `timeout`."
            )

    def _finish_at_exit(self) -> None:
        """Finish with the program, where nothing did before; an exception that ends the program is
        its reason."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._finish_with(error)

    def _finish_with(self, error: BaseException | None) -> None:
        if error is None:
            self.finish("finished")
        elif isinstance(error, KeyboardInterrupt | Interrupted):
            self.finish("interrupted", _signal_name(error))
        else:
            self.finish("failed", f"{type(error).__name__}: {error}")

    # On the thread

    def _start(self, run: TrackedRun) -> None:
        if not run.is_resumed:
            run.memory.pop("written", None)
        try:
            self.tracker.start(run)
        except BaseException as error:
            self._fail(error)
            return
        # as `start` corrects it
        self._floor = {} if self.truncates else dict(run.memory.get("written", {}))
        self._remember()
        if run.folder is not None and self._floor.get("step", run.step) < run.step:
            self._write(self._lost_rows(run, run.folder))

    def _lost_rows(self, run: TrackedRun, folder: Path) -> list[TrackedRow]:
        """The rows up to the resume point that a kill has taken from the tracker, as the run's own
        metrics have them."""
        from ..run.directory import METRICS
        from ..run.metrics_view import MetricsView

        view = MetricsView(folder / METRICS)
        of_steps = view.names_of("step")
        found: dict[tuple[int, bool], list[Any]] = {}
        levels: tuple[Level, ...] = ("step", "epoch")
        for level in levels:
            for name in view.names_of(level):
                is_shared = level == "epoch" and name in of_steps
                for *place, value in zip(*view.columns(name, level).values(), strict=True):
                    step = place[0] or 0
                    if not self._floor["step"] < step <= run.step or value is None:
                        continue
                    if level == "epoch" or step % self.every == 0:
                        row = found.setdefault((step, level == "epoch"), [level, *place, {}])
                        row[-1][f"epoch/{name}" if is_shared else name] = value
        return [TrackedRow(*found[key]) for key in sorted(found)]

    def _rewind(self, run: TrackedRun) -> None:
        if self.truncates:
            self._start(run)
        else:
            self._floor = dict(self._memory.get("written", {}))

    def _write(self, rows: list[TrackedRow]) -> None:
        new = [row for row in rows if row.step > self._floor.get(row.kind, -1)]
        if new and not self._has_failed:
            self.tracker.log(new)
            self._note({row.kind: row.step for row in new})

    def _write_media(self, media: Media) -> None:
        if media.step > self._floor.get("media", -1) and not self._has_failed:
            self.tracker.log_media(media)
            self._note({"media": media.step})

    def _finish(self, state: EndState, reason: str | None) -> None:
        if not self._has_failed:
            self.tracker.finish(state, reason)
            self._remember()

    def _note(self, written: dict[str, int]) -> None:
        if not self.truncates:
            self._memory["written"] = self._memory.get("written", {}) | written
            self._remember()

    def _remember(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(".draft")
            draft.write_text(json.dumps(self._memory))
            os.replace(draft, self._path)

    # Failing

    def _fail(self, error: BaseException) -> None:
        self._has_failed = True
        self._warn(error)

    def _warn(self, error: BaseException) -> None:
        what = "is off for this run" if self._has_failed else "is missing a part of this run"
        self._say(
            f"The tracker {self.label} failed and {what}; training continues. "
            f"{type(error).__name__}: {error}"
        )

    def _say(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", text)

    # The run

    def _describe(self, trainer: Trainer, epoch: int) -> TrackedRun:
        step = trainer.progress.step
        directory = trainer.run.files.directory
        folder = None if directory is None else directory.path
        if folder is not None:
            self._path = folder / "artifacts" / "trackers" / f"{self._own_name(trainer)}.json"
            self._memory = _read(self._path)
        elif step == epoch == 0:
            self._path = None
            self._memory = {}
        facts = trainer._core._facts()
        # the settings that `run.json` would have
        manifest = {"fingerprint": trainer.run.files.fingerprint or _components(trainer), **facts}
        config = {key: _plain(value) for key, value in settings_of(manifest, None).items()}
        return TrackedRun(
            name=facts.get("name") or (folder.name if folder is not None else "run"),
            config=config,
            tags=tuple(facts.get("tags") or ()),
            step=step,
            epoch=epoch,
            folder=folder,
            memory=self._memory,
        )

    def _own_name(self, trainer: Trainer) -> str:
        """The label, numbered where the run has several trackers of the kind."""
        same = [c for c in trainer.run.callbacks if isinstance(c, Track) and c.label == self.label]
        number = next((at for at, other in enumerate(same, start=1) if other is self), 1)
        return self.label if number == 1 else f"{self.label}-{number}"


class Background:
    """Calls actions in order on a daemon thread; rows that wait are written together.

    Args:
        name: The name of the thread.
        write: Called with the rows that have come since the last time.
        on_error: Called with each exception of an action; the next action follows.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[TrackedRow]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._write = write
        self._on_error = on_error
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._num_bytes = 0  # that wait
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, item: Item, num_bytes: int = 0) -> bool:
        """Let an action be called, or rows be written, after what waits; False, and nothing of it,
        where too much waits."""
        if num_bytes and self._num_bytes + num_bytes > MOST_BYTES:
            return False
        self._num_bytes += num_bytes
        self._queue.put(item)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer than so many seconds."""
        is_written = threading.Event()
        self._queue.put(is_written.set)
        return is_written.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Wait as `wait` does, and end the thread once nothing waits."""
        is_written = self.wait(seconds)
        self._queue.put(None)
        return is_written

    def _run(self) -> None:
        while True:
            for item in self._take():
                if item is None:
                    return
                try:
                    if isinstance(item, list):
                        self._write(item)
                    else:
                        item()
                except BaseException as error:
                    # a tracker may raise anything, SystemExit too, and training goes on
                    self._on_error(error)

    def _take(self) -> list[Item | None]:
        """What waits, with rows that follow each other as one item."""
        items = [self._queue.get()]
        while not self._queue.empty():
            item = self._queue.get()
            last = items[-1]
            if isinstance(last, list) and isinstance(item, list):
                last.extend(item)
            else:
                items.append(item)
        self._num_bytes = 0
        return items


def _components(trainer: Trainer) -> dict[str, Any]:
    """The settings of a trainer whose program was not described, since it has no run directory."""
    found: dict[str, Any] = {
        name: getattr(trainer, name) for name in ("accumulate", "clip_norm", "clip_value", "seed")
    }
    found["precision"] = trainer.runtime.precision
    for name, model in trainer.models.items():
        found[f"{name}.kind"] = type(model).__qualname__
    for name, optimizer in trainer.optimizers.items():
        found[name] = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        found |= {f"{name}.{option}": value for option, value in optimizer.defaults.items()}
    return found


def _plain(value: object) -> Setting:
    if isinstance(value, str | int | float | bool) or value is None:
        return value[:LONGEST] if isinstance(value, str) else value
    return repr(value)[:LONGEST]


def _check_methods(tracker: object, label: str) -> None:
    for name, arguments in METHODS.items():
        method = getattr(tracker, name, None)
        if isinstance(tracker, type) or not callable(method):
            raise ConfigurationError(
                "not-a-tracker",
                f"{tracker!r:.80} is no tracker with a method {name!r}: a tracker is an object with "
                "start(run), log(rows), log_media(media) and finish(state, reason).",
            )
        check_arguments(method, arguments, f"{label}.{name}")


def _signal_name(error: BaseException) -> str:
    """The signal that an exception stands for."""
    code = error.code if isinstance(error, Interrupted) else None
    return signal.Signals(code - 128 if isinstance(code, int) else signal.SIGINT).name


def _read(path: Path) -> dict[str, Any]:
    """What a tracker noted in an earlier process; nothing where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
