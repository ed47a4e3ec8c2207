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
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeAlias

from ..callback import Callback
from ..data.random import preserved_rng
from ..errors import ConfigurationError, Interrupted, check_arguments, check_number
from ..metrics.media import Images, Media
from ..run.reading import settings_of
from .tracker import EndState, Setting, TrackedRow, TrackedRun, Tracker

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter
    from ..metrics.rows import StepRow

logger = logging.getLogger("loopwright")

METHODS = {"start": ["run"], "log": ["rows"], "log_media": ["media"], "finish": ["state", "reason"]}
Action: TypeAlias = Callable[[], None]
MOST_ROWS = 100_000  # that wait
MOST_BYTES = 256 << 20  # of media that wait
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
        timeout: Seconds to wait at the end of training for the tracker to finish.
        truncates: Whether `tracker.start(run)` removes what the tracker has after `run.step` and
            `run.epoch`. It is then called after a rewind too. Otherwise rows that the tracker has
            already are left out.

    >>> from loopwright.trackers import CSV, Track
    >>> issubclass(CSV, Track)
    True
    """

    precedence = 1  # after the callbacks that log metrics

    def __init__(
        self, tracker: Tracker, *, every: int = 1, timeout: float = 60.0, truncates: bool = False
    ) -> None:
        self.label = type(tracker if type(self) is Track else self).__name__
        if type(self) is Track:
            _check_methods(tracker, self.label)
        check_number(f"{self.label}(every", every, least=1, of="steps")
        check_number(f"{self.label}(timeout", timeout, above=0, is_whole=False, of="seconds")
        self.tracker = tracker
        self.every = every
        self.timeout = float(timeout)
        self.truncates = truncates
        # an interface that trains in several calls sets it, and calls `finish` itself
        self.is_kept_open = False
        self._background: Background | None = None
        self._run: TrackedRun | None = None
        self._media: list[Media] = []  # of which the rows were not read yet
        self._memory: dict[str, Any] = {}
        self._path: Path | None = None  # of the memory
        # the last step of each kind that a tracker without truncation has
        self._floor: dict[str, int] = {}
        self._has_warned = False
        self._has_failed = False
        self._is_slow = False

    def prepare(self) -> None:
        """Import what the tracker needs, in the main thread, since a process that forks must not be
        importing."""

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
        self._media = []
        self._run = run
        self._has_warned = False
        self._has_failed = False
        self._is_slow = False
        try:
            with preserved_rng():  # imports draw from Python's generator, too
                self.prepare()
        except Exception as error:
            self._fail(error)
            return
        if self.is_kept_open:
            atexit.register(self._finish_at_exit)
        self._background = Background(self.label, self._write, self._warn, self._warn_of_full)
        self._background.call(partial(self._start, run))

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
        waiting = self._media
        self._media = []
        for media in waiting:
            self._background.add_rows([row for row in sent if row.step <= media.step])
            sent = [row for row in sent if row.step > media.step]
            self._background.call(partial(self._write_media, media), _num_bytes(media))
        self._background.add_rows(sent)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.log_epoch(trainer, trainer.progress.epoch, metrics)

    def on_media(self, trainer: Trainer, media: Media) -> None:
        """Keep media for the next log point: trackers want steps in their order, and rows of
        earlier ones come then."""
        if self._background is not None:
            self._media.append(media)

    def _send_media(self) -> None:
        if self._background is not None:
            for media in self._media:
                self._background.call(partial(self._write_media, media), _num_bytes(media))
        self._media = []

    def on_rewind(self, trainer: Trainer) -> None:
        if self._background is not None and self._run is not None:
            progress = trainer.progress
            self._media = [media for media in self._media if media.step <= progress.step]
            self._run = replace(self._run, step=progress.step, epoch=progress.epoch)
            self._background.call(partial(self._rewind, self._run))

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
        if isinstance(error, KeyboardInterrupt | Interrupted):
            self.finish("interrupted", _signal_name(error))
        else:
            self.finish("failed", f"{type(error).__name__}: {error}")

    # What interfaces call too

    def log_epoch(self, trainer: Trainer, epoch: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of an epoch, at the last step that was trained."""
        if self._background is not None:
            self._send_media()
            at = trainer.progress
            steps = trainer.history.steps
            step = at.step or epoch  # the steps of a loop that the user wrote may not be counted
            values = {
                f"epoch/{name}" if name in steps else name: value for name, value in metrics.items()
            }
            self._background.add_rows(
                [TrackedRow("epoch", step, at.update, epoch, at.sample, at.seconds, time(), values)]
            )

    def finish(self, state: EndState, reason: str | None = None) -> None:
        """Let the tracker finish, and wait for it no longer than `timeout`."""
        self._send_media()
        background = self._background
        self._background = None
        if background is None:
            return
        atexit.unregister(self._finish_at_exit)
        background.call(partial(self._finish, state, reason))
        if not background.close(self.timeout):
            self._say(
                f"{self.label} has not finished after {self.timeout:g} s, so its record may lack "
                f"the end of the run. Pass `{self.label}(..., timeout={2 * self.timeout:g})` to "
                "wait longer."
            )

    def _finish_at_exit(self) -> None:
        """Finish with the program, where nothing did before; an exception that ends the program is
        its reason."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is None:
            self.finish("finished")
        else:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self.finish("interrupted" if is_interrupt else "failed", repr(error))

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

    def _warn_of_full(self) -> None:
        self._say(
            f"The tracker {self.label} is slower than the run and is missing a part of it; "
            f"training continues. Send fewer steps: `{self.label}(..., every={10 * self.every})`."
        )

    def _say(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", text)

    # The run

    def _describe(self, trainer: Trainer, epoch: int) -> TrackedRun:
        progress = trainer.progress
        directory = trainer.run.files.directory
        folder = None if directory is None else directory.path
        if folder is not None:
            self._path = folder / "artifacts" / "trackers" / f"{self._own_name(trainer)}.json"
            self._memory = _read(self._path)
        elif progress.step == epoch == 0:
            self._path = None
            self._memory = {}
        return describe_run(
            trainer, step=progress.step, epoch=epoch, folder=folder, memory=self._memory
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
        on_full: Called where more waits than there is room for, and what comes then is left out.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[TrackedRow]], None],
        on_error: Callable[[BaseException], None],
        on_full: Action,
    ) -> None:
        self._write = write
        self._on_error = on_error
        self._on_full = on_full
        self._changed = threading.Condition()
        self._waiting: list[Action | list[TrackedRow]] = []
        self._num_rows = 0
        self._num_bytes = 0
        self._is_busy = False
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add_rows(self, rows: list[TrackedRow]) -> None:
        """Let rows be written, unless too many wait."""
        if self._num_rows + len(rows) > MOST_ROWS:
            self._on_full()
            return
        with self._changed:
            if self._waiting and isinstance(last := self._waiting[-1], list):
                last.extend(rows)
            else:
                self._waiting.append(rows)
            self._num_rows += len(rows)
            self._changed.notify_all()

    def call(self, action: Action, num_bytes: int = 0) -> None:
        """Let an action be called after what waits, unless its bytes are too many."""
        if num_bytes and self._num_bytes + num_bytes > MOST_BYTES:
            self._on_full()
            return
        with self._changed:
            self._waiting.append(action)
            self._num_bytes += num_bytes
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer than so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, seconds)

    def close(self, seconds: float) -> bool:
        """Wait as `wait` does, and end the thread once nothing waits."""
        end = monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return self.wait(max(end - monotonic(), 0.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                items = self._waiting
                self._waiting = []
                self._num_rows = 0
                self._num_bytes = 0
                self._is_busy = True
            try:
                for item in items:
                    self._call(item)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _call(self, item: Action | list[TrackedRow]) -> None:
        try:
            if isinstance(item, list):
                self._write(item)
            else:
                item()
        except BaseException as error:
            # a tracker may raise anything, SystemExit too, and training goes on
            self._on_error(error)


def describe_run(
    trainer: Trainer, *, step: int, epoch: int, folder: Path | None, memory: dict[str, Any]
) -> TrackedRun:
    """The run of a trainer that starts or goes on at a step, with the settings that `run.json`
    would have."""
    facts = trainer._core._facts()
    name = facts.get("name") or (folder.name if folder is not None else "run")
    manifest = {"fingerprint": trainer.run.files.fingerprint or _components(trainer), **facts}
    config = {key: _plain(value) for key, value in settings_of(manifest, None).items()}
    tags = tuple(facts.get("tags") or ())
    return TrackedRun(name, config, tags, step=step, epoch=epoch, folder=folder, memory=memory)


def _components(trainer: Trainer) -> dict[str, Any]:
    """The settings of a trainer whose program was not described, since it has no run directory."""
    found: dict[str, Any] = {
        name: getattr(trainer, name) for name in ("accumulate", "clip_norm", "clip_value", "seed")
    }
    found["precision"] = trainer.runtime.precision
    for name, model in trainer.models.items():
        found[f"{name}.kind"] = type(model).__qualname__
        found[f"{name}.parameters"] = sum(param.numel() for param in model.parameters())
    for name, optimizer in trainer.optimizers.items():
        found[name] = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        found |= {
            f"{name}.{key}": value for key, value in optimizer.defaults.items() if value is not None
        }
    return found


def _plain(value: object) -> Setting:
    if isinstance(value, str | int | float | bool) or value is None:
        return value[:LONGEST] if isinstance(value, str) else value
    return repr(value)[:LONGEST]


def _check_methods(tracker: object, label: str) -> None:
    if isinstance(tracker, Track):
        raise ConfigurationError(
            "tracker-in-track",
            f"Track({label}(...)): {label} is already a callback: pass it without `Track`.",
        )
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


def _num_bytes(media: Media) -> int:
    return sum(map(len, media.content.files)) if isinstance(media.content, Images) else 1


def _read(path: Path) -> dict[str, Any]:
    """What a tracker noted in an earlier process; nothing where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
