"""Output while a run trains: the progress of epochs, and metrics as they are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..._shared import tracked
from .events import TrainerCallback

if TYPE_CHECKING:
    from ....trackers import Track
    from ..trainer import Trainer

BAR_WIDTH = 30
REDRAW_SECONDS = 0.1


class LogMetricsCallback(TrainerCallback):
    """Logs every metric that was recorded in the run history, once. Override `log_metrics` to send
    them elsewhere."""

    # of subclasses that do not call `super().__init__()`, too
    _num_logged: Mapping[str, int] = MappingProxyType({})

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._num_logged = self._recorded(trainer)

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._num_logged = self._recorded(trainer)

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._log_new(trainer)

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._log_new(trainer)

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._log_new(trainer)

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._log_new(trainer)

    def log_metrics(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        """Take the latest values. Default: print them, a line each."""
        for name, value in metrics.items():
            trainer.print(f"{name}: {_text(value)}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_logged = dict(state["num_logged"])

    def state_dict(self) -> dict[str, Any]:
        return {"num_logged": dict(self._num_logged)}

    def _log_new(self, trainer: Trainer) -> None:
        recorded = self._recorded(trainer)
        new = [
            name
            for name, count in sorted(recorded.items())
            if count != self._num_logged.get(name, 0)
        ]
        self._num_logged = recorded
        if new and not self._is_printed_elsewhere(trainer):
            self.log_metrics(
                trainer, {name: trainer.run_history.get_latest_metric(name) for name in new}
            )

    def _is_printed_elsewhere(self, trainer: Trainer) -> bool:
        """Whether this would print the lines of a `PrintMetricsCallback` that was added to the
        defaults once more."""
        is_default = type(self) is LogMetricsCallback
        return is_default and any(
            isinstance(one, PrintMetricsCallback) for one in trainer.callback_handler
        )

    def _recorded(self, trainer: Trainer) -> dict[str, int]:
        history = trainer.run_history
        return {
            name: _length(history.get_metric_values(name)) for name in history.get_metric_names()
        }


class TrackerCallback(LogMetricsCallback):
    """Lets a tracker of `loopwright.trackers` follow the runs: the losses of steps, and the metrics
    of the history.

    A tracker among the callbacks is wrapped in one. Metrics of an epoch are sent together at its
    end, and those of an evaluation inside an epoch when it ends.
    """

    def __init__(self, tracker: Track) -> None:
        self.tracker = tracker
        self._following: AbstractContextManager[None] = nullcontext()
        self._is_stopped = False

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        core = trainer._core
        self._is_stopped = False
        self._following = tracked(core.run, [self.tracker])
        self._following.__enter__()
        event, called = core.resumed_event or ("", [])
        own = next(
            name for name, callback in trainer.callback_handler.named().items() if callback is self
        )
        # the row of the epoch that is not over yet
        is_sent = event == "on_training_run_epoch_end" and own in called
        self.tracker.begin(core, core.progress.epoch + is_sent)

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Nothing: the epoch's evaluation may follow."""

    def on_eval_epoch_end(
        self, trainer: Trainer, is_intermediate: bool = False, **kwargs: Any
    ) -> None:
        if is_intermediate:
            trainer._core.run.flush()  # trackers want steps in their order
            self._log_new(trainer)

    def log_metrics(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        self.tracker.log_epoch(trainer._core, trainer.run_history.current_epoch, numbers)

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        self._is_stopped = True

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._log_new(trainer)
        self.tracker.finish("stopped" if self._is_stopped else "finished")
        self._leave()

    def run_failed(self, trainer: Trainer, error: BaseException) -> None:
        """Called when an exception, or a signal, ends the run."""
        self.tracker.on_exception(trainer._core, error)
        self._leave()

    def _leave(self) -> None:
        following = self._following
        self._following = nullcontext()
        following.__exit__(None, None, None)


class PrintMetricsCallback(LogMetricsCallback):
    """Prints the metrics that are recorded in the run history."""


class PrintProgressCallback(TrainerCallback):
    """Prints the start of a run, its epochs and its end."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.print(f"\nTraining on {trainer.device}, epochs: {trainer.run_config.num_epochs}")

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.print(f"\nEpoch {trainer.run_history.current_epoch}")

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.print("\nTraining is finished")

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.print("\nEvaluating")

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.print("Evaluation is finished")


class ProgressBarCallback(TrainerCallback):
    """Draws a progress bar of the current epoch on a terminal; elsewhere it draws nothing."""

    _bars: Sequence[_Bar] = ()  # of subclasses that do not call `super().__init__()`, too

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if self._is_shown(trainer):
            self._bars = [_Bar("train", trainer._core.run.epoch_length())]

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        if self._bars:
            self._bars[-1].advance()

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._close()

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if self._is_shown(trainer):
            stream = trainer._core.run.eval_stream
            self._bars = [*self._bars, _Bar("eval", None if stream is None else stream.num_batches)]

    def on_eval_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        if self._bars:
            self._bars[-1].advance()

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._close()

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        self._bars = []

    def _is_shown(self, trainer: Trainer) -> bool:
        return sys.stdout.isatty() and trainer.run_config.is_local_process_zero

    def _close(self) -> None:
        if self._bars:
            self._bars[-1].clear()
            self._bars = self._bars[:-1]


class _Bar:
    """One line of the terminal, written over until it is cleared."""

    def __init__(self, label: str, total: int | None) -> None:
        self.label = label
        self.total = total
        self.count = 0
        self.began = self.drawn = monotonic()

    def advance(self) -> None:
        self.count += 1
        now = monotonic()
        if now - self.drawn >= REDRAW_SECONDS:
            self.drawn = now
            sys.stdout.write(f"\r{self.text(now)}\x1b[K")
            sys.stdout.flush()

    def text(self, now: float) -> str:
        speed = f"{self.count / max(now - self.began, 1e-9):.0f} batches/s"
        if self.total is None:
            return f"{self.label} {self.count}  {speed}"
        filled = BAR_WIDTH * self.count // max(self.total, 1)
        return f"{self.label} [{'=' * filled:<{BAR_WIDTH}}] {self.count}/{self.total}  {speed}"

    def clear(self) -> None:
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()


def _text(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)


def _length(values: Iterable[Any]) -> int:
    return sum(1 for _ in values)
