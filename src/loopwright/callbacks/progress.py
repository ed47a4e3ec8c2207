"""The display of progress while training: a live bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..callback import Callback
from ..errors import ConfigurationError
from ..metrics.progress import counted

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.rows import StepRow

STYLES = ("auto", "bar", "lines", "silent")


class ProgressDisplay(Callback):
    """Shows the epoch, the step in it and the latest metrics, at log points and epochs only: it costs a step nothing.

    Args:
        style: "bar", "lines", "silent", or "auto": a bar on a terminal, and lines elsewhere.
        interval: Seconds between two lines inside an epoch.

    >>> from loopwright.callbacks import ProgressDisplay
    >>> ProgressDisplay("lines", interval=60.0).style
    'lines'
    """

    def __init__(self, style: str = "auto", *, interval: float = 10.0) -> None:
        if style not in STYLES:
            raise ConfigurationError(f"progress={style!r}: use one of {', '.join(STYLES)}.")
        self.style = style
        self.interval = interval
        self._bar: Any = None
        self._task: Any = None
        self._metrics: Mapping[str, float] = {}
        self._spoken = self._epoch_began = 0.0
        self._first_sample, self._first_seconds, self._speed = 0, 0.0, ""
        self._style = style

    def on_train_start(self, trainer: Trainer) -> None:
        self._spoken = monotonic()
        self._begin_epoch(trainer)
        style = self.style
        if style == "auto":
            style = "bar" if sys.stdout.isatty() else "lines"
        self._style = style
        if style == "bar":
            self._open_bar(trainer)

    def on_epoch_start(self, trainer: Trainer) -> None:
        self._begin_epoch(trainer)
        if self._bar is not None:
            self._bar.reset(self._task, total=trainer.run.epoch_length(), description=self._epoch_label(trainer))

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        self._metrics = rows[-1]
        self._speed = self._speed_text(trainer)
        if self._bar is not None:
            self._bar.update(self._task, completed=trainer.progress.epoch_step, text=_text(self._metrics))
            self._bar.refresh()
        elif self._style == "lines" and monotonic() - self._spoken >= self.interval:
            total = trainer.run.epoch_length()
            at = f"step {trainer.progress.epoch_step}" + (f"/{total}" if total else "")
            self._line(f"{self._epoch_label(trainer)}  {at}  {_text(self._metrics)}  {self._speed}")

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        seconds = monotonic() - self._epoch_began
        self._line(f"{self._epoch_label(trainer, ended=True)}  {_text(metrics)}  {seconds:.1f} s  {self._speed}")

    def on_train_end(self, trainer: Trainer) -> None:
        self._close()
        if trainer.stop_reason is not None:
            self._line(f"Stopped after {counted(trainer.progress.update, 'update')}: {trainer.stop_reason}")

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._close()

    def _epoch_label(self, trainer: Trainer, ended: bool = False) -> str:
        total = trainer.run.limits.epochs
        epoch = trainer.progress.epoch + (not ended)
        return f"epoch {epoch}" + (f"/{total}" if total is not None else "")

    def _begin_epoch(self, trainer: Trainer) -> None:
        progress = trainer.progress
        self._epoch_began, self._speed = monotonic(), ""
        self._first_sample, self._first_seconds = progress.sample, progress.seconds

    def _speed_text(self, trainer: Trainer) -> str:
        """Samples per second of training, without evaluations."""
        samples = trainer.progress.sample - self._first_sample
        seconds = trainer.progress.seconds - self._first_seconds
        return f"{samples / seconds:,.0f} samples/s" if seconds > 0 and samples else ""

    def _line(self, text: str) -> None:
        self._spoken = monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._style != "silent":
            print(text.rstrip(), flush=True)

    def _open_bar(self, trainer: Trainer) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task(
            self._epoch_label(trainer),
            total=trainer.run.epoch_length(),
            completed=trainer.progress.epoch_step,
            text="",
        )
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _text(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
