"""The callbacks that ship: they report, end runs, keep models, save states, limit batches and average
weights."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...checkpoint import CheckpointStore
from ...checkpoint.manifest import check_directory, check_inside, local_path
from ...data.stream import LimitedStream
from ...errors import ConfigurationError, NonFiniteLossError, check_number
from ...metrics.best import BestSoFar, WatchedMetric
from .schedulers import WSDLrScheduler
from .tracking import CallbackHandler as CallbackHandler
from .tracking import CallbackNotFoundError as CallbackNotFoundError
from .tracking import StopTrainingError as StopTrainingError
from .tracking import TrainerCallback as TrainerCallback
from .tracking import num_recorded, values_since
from .utils import ModelEma as ModelEma

if TYPE_CHECKING:
    from ...data.open import Stream
    from .trainer import Trainer

BAR_WIDTH = 30
REDRAW_SECONDS = 0.1
PREFIX = "ema_model_"
# names of training states that `SaveTrainingStateCallback` writes
SAVED = re.compile(r"(epoch|step)_\d+|final|interrupted|requested")


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
            shown = value.item() if is_scalar else value
            trainer.print(f"{name}:", f"{shown:.6g}" if isinstance(shown, float) else shown)

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

    label = ""  # of the bar that is drawn, if one is
    total: int | None = None
    count = 0
    drawn = 0.0

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._begin(trainer, "train", trainer._core.run.epoch_length())

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        stream = trainer._core.run.data.eval_stream
        if not self.label and stream is not None:  # that of an epoch stays
            self._begin(trainer, "eval", stream.num_batches)

    def _begin(self, trainer: Trainer, label: str, total: int | None) -> None:
        if sys.stdout.isatty() and trainer.run_config.is_local_process_zero:
            self.label = label
            self.total = total
            self.count = 0

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]
        self.count += 1
        now = monotonic()
        if self.label and now - self.drawn >= REDRAW_SECONDS:
            self.drawn = now
            filled = BAR_WIDTH * self.count // max(self.total or 0, 1)
            bar = f"[{'=' * filled:<{BAR_WIDTH}}] " if self.total else ""
            self._draw(f"{self.label} {bar}{self.count}/{self.total or '?'}")

    def on_eval_step_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]
        if self.label == "eval":
            self.on_train_step_end(trainer)

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.label:
            self.label = ""
            self._draw("")

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.label == "eval":
            self.on_train_epoch_end(trainer)

    on_stop_training_error = on_train_epoch_end

    def _draw(self, text: str) -> None:
        """Write over the line of the terminal."""
        sys.stdout.write(f"\r{text}\x1b[K")
        sys.stdout.flush()


class TerminateOnNaNCallback(TrainerCallback):
    """Ends training with `NonFiniteLossError` when a loss, a gradient or a learning rate is NaN or
    infinite, before it reaches the weights; and a run whose evaluation loss is not finite.

    On an accelerator, where reading every loss would hold the device up, a fused optimizer leaves
    such a step out by itself and training ends at the next log point; other optimizers cost a read
    before each step.
    """

    # the guard of the core looks at training, since this callback is there

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._check(trainer, "eval_loss_epoch")

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._check(trainer, "evaluation_loss")

    def _check(self, trainer: Trainer, name: str) -> None:
        history = trainer.run_history
        if name not in history.get_metric_names():
            return
        loss = float(history.get_latest_metric(name))
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                "evaluation-not-finite",
                f"{name} is {loss} in epoch {history.current_epoch}: check the weights and the "
                "evaluation data. Without TerminateOnNaNCallback, such a loss is only recorded.",
            )


def check_evaluates(trainer: Trainer, what: str) -> None:
    """Refuse a run without evaluation data, which a callback needs."""
    if trainer.eval_dataset is None:
        raise ConfigurationError(
            "nothing-evaluated",
            f"{what}, but this run evaluates nothing: pass `eval_dataset=` to `train`.",
        )


class MetricWatcher(TrainerCallback):
    """Base class of callbacks that look for the best value of a metric, by the core's one rule, and
    may save the model that has it.

    Without `greater_is_better`, the name of the metric says which values are better.
    """

    watch_metric: str = "eval_loss_epoch"
    greater_is_better: bool | None = None
    reset_on_train: bool = True
    early_stopping_threshold: float = 0.0
    save_path: str | Path | None = None
    save_optimizer: bool = True
    save_scheduler: bool = True

    def __post_init__(self) -> None:
        self.greater_is_better = self.watched.mode == "max"

    @cached_property
    def watched(self) -> WatchedMetric:
        """The metric with its best value so far."""
        given = {None: "auto", True: "max", False: "min"}[self.greater_is_better]
        return WatchedMetric(
            self.watch_metric,
            given,
            type(self).__name__,
            "greater_is_better",
            choices=("False", "True"),
            min_delta=self.early_stopping_threshold,
        )

    @property
    def best_metric(self) -> float | None:
        """The best value so far."""
        return self.watched.so_far.value

    @property
    def best_metric_epoch(self) -> int | None:
        """The epoch of the best value."""
        return self.watched.so_far.at or None

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.reset_on_train:
            self.watched.so_far = BestSoFar()
        if self.watch_metric == "eval_loss_epoch":
            check_evaluates(trainer, f"{type(self).__name__} watches 'eval_loss_epoch'")
        if self.save_path is not None and not trainer._overrides("save_checkpoint"):
            check_directory(self.save_path, "save_path")

    def improves(self, trainer: Trainer) -> bool:
        """Whether the latest value is the best so far, which it then is."""
        value = float(trainer.run_history.get_latest_metric(self.watch_metric))
        return self.watched.add(value, trainer.run_history.current_epoch)

    def save(self, trainer: Trainer) -> None:
        """Write the model as it is now, with the value that made it the best."""
        assert self.save_path is not None
        about = {"epoch": self.best_metric_epoch, self.watch_metric: self.best_metric}
        trainer.save_checkpoint(
            self.save_path,
            checkpoint_kwargs=about,
            save_optimizer=self.save_optimizer,
            save_scheduler=self.save_scheduler,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"best_metric": self.best_metric, "best_metric_epoch": self.best_metric_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watched.so_far = BestSoFar(state["best_metric"], state["best_metric_epoch"] or 0)


@dataclass(eq=False, repr=False)
class EarlyStoppingCallback(MetricWatcher):
    """Ends training when a metric has not improved for `early_stopping_patience` epochs in a
    row."""

    early_stopping_patience: int = 1
    early_stopping_threshold: float = 0.01
    watch_metric: str = "eval_loss_epoch"
    greater_is_better: bool | None = None
    reset_on_train: bool = True

    def __post_init__(self) -> None:
        check_number("early_stopping_patience", self.early_stopping_patience, least=1, of="epochs")
        super().__post_init__()

    @property
    def early_stopping_patience_counter(self) -> int:
        """How many epochs in a row have not improved the metric."""
        return self.watched.so_far.num_bad

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.improves(trainer)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            value = float(trainer.run_history.get_latest_metric(self.watch_metric))
            raise StopTrainingError(f"Stopping training: {self.watched.standstill(value)}")

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counter": self.early_stopping_patience_counter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.watched.so_far = replace(self.watched.so_far, num_bad=state["counter"])


@dataclass(eq=False, repr=False)
class SaveBestModelCallback(MetricWatcher):
    """Writes a checkpoint whenever a metric is better than before, and loads the best when training
    ends."""

    save_path: str | Path = "best_model.pt"
    watch_metric: str = "eval_loss_epoch"
    greater_is_better: bool | None = None
    reset_on_train: bool = True
    save_optimizer: bool = True
    save_scheduler: bool = True
    load_saved_checkpoint: bool = True

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.improves(trainer):
            self.save(trainer)

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.load_saved_checkpoint and self.best_metric is not None:
            trainer.print(
                f"Loading the model of epoch {self.best_metric_epoch}, {self.watch_metric}: "
                f"{self.best_metric:.6g}"
            )
            trainer.load_checkpoint(
                self.save_path,
                load_optimizer=self.save_optimizer,
                load_scheduler=self.save_scheduler,
            )


@dataclass(eq=False, repr=False)
class SaveTrainingStateCallback(TrainerCallback):
    """Writes training states to directories in `save_dir`, which `train(resume_from=...)` takes.

    They are written every n epochs or training steps, at the end or when a signal ends the run, and
    when SIGUSR1 requests one; with `max_checkpoints` only the latest are kept.
    """

    save_dir: str | Path = "training_state"
    save_every_n_epochs: int | None = None
    save_every_n_steps: int | None = None
    save_at_end: bool = True
    max_checkpoints: int | None = None

    def __post_init__(self) -> None:
        for name in ("save_every_n_epochs", "save_every_n_steps", "max_checkpoints"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=1, otherwise="None")

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        names = None if trainer._overrides("save_training_state") else SAVED
        check_inside(Path(self.save_dir), names, "save_dir")

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]
        step = trainer._core.progress.step + 1
        if self.save_every_n_steps is not None and step % self.save_every_n_steps == 0:
            trainer._core.after_update(lambda: self.save(trainer, f"step_{step}"))

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        epoch = trainer.run_history.current_epoch
        if self.save_every_n_epochs is not None and epoch % self.save_every_n_epochs == 0:
            self.save(trainer, f"epoch_{epoch}")

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.save_at_end:
            self.save(trainer, "final")

    def save_interrupted_run(self, trainer: Trainer) -> None:
        """Called when SIGTERM or SIGINT ends the run after an update, instead of its end."""
        if self.save_at_end:
            self.save(trainer, "interrupted")

    def save_requested_run(self, trainer: Trainer) -> None:
        """Called after the update in which SIGUSR1 came."""
        self.save(trainer, "requested")

    def save(self, trainer: Trainer, name: str) -> None:
        """Write a state under this name, then remove the oldest beyond `max_checkpoints`."""
        trainer.save_training_state(Path(self.save_dir, name))
        if self.max_checkpoints is not None and trainer.run_config.is_world_process_zero:
            CheckpointStore(Path(self.save_dir), keep=self.max_checkpoints).prune()

    @property
    def latest(self) -> Path | None:
        """The newest sound state in `save_dir`, to be passed to `train(resume_from=...)`."""
        found = CheckpointStore(Path(self.save_dir), keep=sys.maxsize).newest()
        return None if found is None else found.path


class RecordRunCallback(TrainerCallback):
    """Records training runs in `run_dir`: metrics of steps and epochs, events, logged images, and
    how they ended.

    Nothing of it is needed to resume a run; `SaveTrainingStateCallback` writes that. A run that is
    resumed with `train(resume_from=...)` is one record with what it continues. Where the directory
    holds another run, the first free of `run_dir-2`, `run_dir-3` and so on is taken.
    """

    run_dir: Path = Path("runs/lifecycle")  # for subclasses that do not call `super().__init__()`

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = local_path(run_dir, "run_dir")


@dataclass(eq=False, repr=False)
class LimitBatchesCallback(TrainerCallback):
    """Uses the first batches of every epoch only, in training and in evaluation, to try a program
    out.

    Every trainer gets one when the environment variable PT_ACC_LIMIT_BATCHES is set to a number.
    """

    num_batches: int

    @classmethod
    def of_environment(cls) -> list[LimitBatchesCallback]:
        """The limit that the environment sets, if it does."""
        given = os.environ.get("PT_ACC_LIMIT_BATCHES", "none")
        return [] if given.lower() == "none" else [cls(int(given))]

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        return LimitedStream(stream, self.num_batches)


@dataclass(eq=False, repr=False)
class LimitEvalStepsCallback(TrainerCallback):
    """Uses the first batches of evaluations only; by default only in evaluations inside training
    epochs."""

    num_eval_steps: int
    limit_intermediate_only: bool = True

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        if is_training or (self.limit_intermediate_only and not is_intermediate):
            return stream
        return LimitedStream(stream, self.num_eval_steps)


@dataclass(eq=False, repr=False)
class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluates after every `eval_every_n_steps` training steps; the loss is recorded as
    `intermediate_eval_loss`.

    Training goes on as if nothing had happened: modes and random numbers are what they were.
    """

    eval_every_n_steps: int

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        check_evaluates(trainer, "StepBasedEvaluationCallback evaluates inside epochs")

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]
        if (trainer._core.progress.step + 1) % self.eval_every_n_steps == 0:
            trainer._run_eval_epoch(trainer._eval_dataloader)


class MoveModulesToDeviceCallback(TrainerCallback):
    """Moves every module that is an attribute of the trainer, such as a metric, to its device."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        for name, value in vars(trainer).items():
            # the trainer itself moves its model
            if isinstance(value, nn.Module) and name != "model":
                value.to(trainer.device)

    on_evaluation_run_start = on_training_run_start


class ConvertSyncBatchNormCallback(TrainerCallback):
    """Makes the model's batch norms compute their statistics over all processes, where there are
    several."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        from ...runtime.batch_norm import convert
        from ...runtime.distributed import DistributedRuntime

        if isinstance(trainer._runtime, DistributedRuntime):
            convert(trainer.get_model(keep_torch_compile=False), trainer._runtime.part)


@dataclass(eq=False, repr=False)
class ModelEmaCallback(MetricWatcher):
    """Averages the weights after every optimizer update, evaluates the average after each epoch,
    saves the best.

    Its metrics are recorded with `ema_model_` in front of their names. Put it before callbacks that
    log metrics. Its evaluations call only the `callbacks` given here; without evaluation the
    average is saved every epoch.
    """

    save_optimizer = False
    decay: float = 0.99
    evaluate_during_training: bool = True
    save_path: str | Path = "ema_model.pt"
    watch_metric: str = f"{PREFIX}eval_loss_epoch"
    greater_is_better: bool | None = None
    model_ema: Callable[..., ModelEma] = ModelEma
    callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = ()
    ema_model: ModelEma | None = field(default=None, init=False)
    _num_averaged: int = field(default=0, init=False)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        if self.evaluate_during_training:
            check_evaluates(trainer, "ModelEmaCallback has evaluate_during_training=True")
        model = trainer.get_model(keep_torch_compile=False)
        self.ema_model = self.model_ema(model, decay=self.decay)
        self._num_averaged = trainer._core.progress.update

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Average once for every update: a step that only adds to a window changes no weights."""
        num_updates = trainer._core.progress.update
        if self.ema_model is not None and num_updates > self._num_averaged:
            self._num_averaged = num_updates
            self.ema_model.update(trainer.get_model(keep_torch_compile=False))

    on_train_epoch_end = on_train_step_start

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        with self._in_place(trainer):
            if self.evaluate_during_training:
                trainer._run_eval_epoch(trainer._eval_dataloader)
            if not self.evaluate_during_training or self.improves(trainer):
                self.save(trainer)

    @cached_property
    def _handler(self) -> CallbackHandler:
        return CallbackHandler(self.callbacks)

    @contextmanager
    def _in_place(self, trainer: Trainer) -> Iterator[None]:
        """The average as the trainer's model, its metrics under their prefix, and only its own
        callbacks listening."""
        assert self.ema_model is not None
        history = trainer.run_history
        before = (trainer.model, trainer.callback_handler, history.metric_name_prefix)
        trainer.model = self.ema_model.module
        trainer.callback_handler = self._handler
        history.set_metric_name_prefix(PREFIX)
        try:
            yield
        finally:
            trainer.model, trainer.callback_handler, prefix = before
            history.set_metric_name_prefix(prefix)

    def state_dict(self) -> dict[str, Any]:
        average = None if self.ema_model is None else self.ema_model.module.state_dict()
        return super().state_dict() | {"average": average, "num_averaged": self._num_averaged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_averaged = state["num_averaged"]
        if self.ema_model is not None and state["average"] is not None:
            self.ema_model.module.load_state_dict(state["average"])


@dataclass(eq=False, repr=False)
class WSDCheckpointCallback(TrainerCallback):
    """Saves before each decay of a `WSDLrScheduler` (a training state to continue from) and after
    it (a checkpoint).

    `initial_checkpoint` is loaded when training starts: a training state from before a decay, or a
    checkpoint from after one; a path that does not exist is an error.
    """

    save_dir: str | Path = "checkpoints"
    save_optimizer: bool = True
    save_scheduler: bool = True
    initial_checkpoint: str | Path | None = None

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if not isinstance(trainer.scheduler, WSDLrScheduler):
            raise ConfigurationError(
                "not-a-wsd-scheduler",
                f"WSDCheckpointCallback needs a WSDLrScheduler, not {trainer.scheduler!r:.60}: "
                "pass `create_scheduler_fn=WSDLrScheduler.create_scheduler_fn()`.",
            )
        if self.initial_checkpoint is not None:
            is_state = Path(self.initial_checkpoint).suffix != ".pt"
            load = trainer.load_training_state if is_state else trainer.load_checkpoint
            load(self.initial_checkpoint)

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]
        if trainer._core.run.window.is_last:
            trainer._core.after_update(lambda: self._save_if_due(trainer))

    def _save_if_due(self, trainer: Trainer) -> None:
        """Save if a decay begins or ends after the updates that are done."""
        done = trainer.scheduler.get_current_step() + 1
        phase = trainer.scheduler.get_phase_info(done)
        path = Path(self.save_dir, f"checkpoint_{done}_wsd")
        if done == phase["pre_decay_step"]:
            about = {"step": done, "checkpoint_type": "wsd_pre_decay"}
            trainer.save_training_state(f"{path}_pre_decay", about)
        elif done == phase["period_end"]:
            about = {"step": done, "checkpoint_type": "wsd_post_decay"}
            trainer.save_checkpoint(
                f"{path}_post_decay.pt", about, self.save_optimizer, self.save_scheduler
            )


def get_default_callbacks(progress_bar: bool = True) -> tuple[type[TrainerCallback], ...]:
    """The callbacks that a trainer has unless it is given others, with or without the progress
    bar."""
    bar = (ProgressBarCallback,) if progress_bar else ()
    return (
        MoveModulesToDeviceCallback,
        TerminateOnNaNCallback,
        PrintProgressCallback,
        *bar,
        LogMetricsCallback,
    )
