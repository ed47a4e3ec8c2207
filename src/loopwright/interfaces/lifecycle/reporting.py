"""Output while a run trains: the progress of epochs, and metrics as they are recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .events import TrainerCallback
from .tracking import num_recorded, values_since

if TYPE_CHECKING:
    from .trainer import Trainer

BAR_WIDTH = 30
REDRAW_SECONDS = 0.1


class LogMetricsCallback(TrainerCallback):
    """Logs every metric that was recorded in the run history, once. Override `log_metrics` to send
    them elsewhere."""

    # of subclasses that do not call `super().__init__()`, too
    _num_logged: Mapping[str, int] = MappingProxyType({})

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._num_logged = num_recorded(trainer.run_history)

    on_evaluation_run_start = on_training_run_start

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        new = values_since(trainer.run_history, self._num_logged)
        self._num_logged = num_recorded(trainer.run_history)
        # added to the defaults, `PrintMetricsCallback` prints the same lines
        is_printed_elsewhere = type(self) is LogMetricsCallback and any(
            isinstance(one, PrintMetricsCallback) for one in trainer.callback_handler
        )
        if new and not is_printed_elsewhere:
            self.log_metrics(trainer, new)

    on_eval_epoch_end = on_train_epoch_end
    on_training_run_epoch_end = on_train_epoch_end
    on_evaluation_run_end = on_train_epoch_end

    def log_metrics(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        """Take the latest values. Default: print them, a line each."""
        for name, value in metrics.items():
            is_scalar = isinstance(value, Tensor) and value.numel() == 1
            number = value.item() if is_scalar else value
            trainer.print(
                f"{name}: {number:.6g}" if isinstance(number, float) else f"{name}: {number}"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_logged = dict(state["num_logged"])

    def state_dict(self) -> dict[str, Any]:
        return {"num_logged": dict(self._num_logged)}


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
        if self._bars:
            self._bars[-1].clear()
            self._bars = self._bars[:-1]

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if self._is_shown(trainer):
            stream = trainer._core.run.data.eval_stream
            self._bars = [*self._bars, _Bar("eval", None if stream is None else stream.num_batches)]

    on_eval_step_end = on_train_step_end
    on_eval_epoch_end = on_train_epoch_end

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        self._bars = []

    def _is_shown(self, trainer: Trainer) -> bool:
        return sys.stdout.isatty() and trainer.run_config.is_local_process_zero


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
