"""The callbacks that ship: they end runs, keep models, save states, limit batches and average
weights."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ...callbacks.ema import averaged_parameters, move_averages, paired_groups
from ...callbacks.nonfinite import parameter_name
from ...checkpoint import CheckpointStore
from ...checkpoint.manifest import check_directory, check_inside, local_path
from ...data.stream import LimitedStream
from ...errors import ConfigurationError, NonFiniteLossError, check_number
from ...metrics.best import BestSoFar, WatchedMetric
from ...text import counted
from .events import (
    CallbackHandler,
    CallbackLike,
    CallbackNotFoundError,
    StopTrainingError,
    TrainerCallback,
)
from .reporting import (
    LogMetricsCallback,
    PrintMetricsCallback,
    PrintProgressCallback,
    ProgressBarCallback,
)

if TYPE_CHECKING:
    from ...data.open import Stream
    from .trainer import Trainer

__all__ = [
    "CallbackHandler",
    "CallbackLike",
    "CallbackNotFoundError",
    "ConvertSyncBatchNormCallback",
    "EarlyStoppingCallback",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "ModelEma",
    "ModelEmaCallback",
    "MoveModulesToDeviceCallback",
    "PrintMetricsCallback",
    "PrintProgressCallback",
    "ProgressBarCallback",
    "RecordRunCallback",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "StepBasedEvaluationCallback",
    "StopTrainingError",
    "SyncBatchNormCallback",
    "TerminateOnNaNCallback",
    "TrainerCallback",
    "WSDCheckpointCallback",
    "get_default_callbacks",
]

PREFIX = "ema_model_"
# names of training states that `SaveTrainingStateCallback` writes
SAVED = re.compile(r"(epoch|step)_\d+|final|interrupted|requested")


class TerminateOnNaNCallback(TrainerCallback):
    """Ends training when a loss, a gradient or a learning rate is NaN or infinite, before it
    reaches the weights.

    `train` raises `NonFiniteLossError`.

    On an accelerator, where reading every loss would hold the device up, a fused optimizer leaves
    such a step out by itself and training ends at the next log point; other optimizers cost a read
    before each step.
    """

    triggered: str = ""  # what was not finite, once something was
    _modules: Mapping[str, nn.Module] = MappingProxyType({})

    # as a guard of updates
    is_final: bool = True
    is_immediate: bool = False

    def refuse(self, what: str) -> None:
        self.triggered = what
        raise StopTrainingError(f"Stopping training: {what}")

    def name_of(self, param: nn.Parameter) -> str:
        return parameter_name(self._modules, param)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.triggered = ""
        self._modules = trainer._core.modules

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """The program must not go on as if the model were trained."""
        if self.triggered:
            raise NonFiniteLossError(
                "not-finite",
                f"Training was stopped: {self.triggered}. The weights are those of the previous "
                "update. Lower the learning rate, pass `gradient_clip_value=`, or look at the "
                "data; without TerminateOnNaNCallback, training continues.",
            )

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        loss = _latest(trainer, "evaluation_loss")
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                "evaluation-not-finite",
                f"The evaluation loss is {loss}: check the weights and the evaluation data. "
                "Without TerminateOnNaNCallback, such a loss is only recorded.",
            )

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        loss = batch_output["loss"]
        if trainer.run_config.is_distributed:
            return  # the flag is all-reduced with the gradients
        if isinstance(loss, Tensor) and loss.is_cpu and not math.isfinite(loss.item()):
            self.refuse(
                f"the training loss is {loss.item()} in epoch {trainer.run_history.current_epoch}"
            )

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        loss = _latest(trainer, "eval_loss_epoch")
        if not math.isfinite(loss):
            self.refuse(
                f"the evaluation loss is {loss} in epoch {trainer.run_history.current_epoch}"
            )


def _latest(trainer: Trainer, name: str) -> float:
    """The last value of a metric; 0 where none was recorded."""
    history = trainer.run_history
    return float(history.get_latest_metric(name)) if name in history.get_metric_names() else 0.0


def check_evaluates(trainer: Trainer, what: str) -> None:
    """Refuse a run without evaluation data, which a callback needs."""
    if trainer.eval_dataset is None:
        raise ConfigurationError(
            "nothing-evaluated",
            f"{what}, but this run evaluates nothing: pass `eval_dataset=` to `train`.",
        )


class MetricWatcher(TrainerCallback):
    """Base class of callbacks that look for the best value of a metric, by the core's one rule.

    Without `greater_is_better`, the name of the metric says which values are better.
    """

    watch_metric: str = "eval_loss_epoch"
    greater_is_better: bool | None = None
    reset_on_train: bool = True
    threshold: float = 0.0

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
            min_delta=self.threshold,
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

    def improves(self, trainer: Trainer) -> bool:
        """Whether the latest value is the best so far, which it then is."""
        value = float(trainer.run_history.get_latest_metric(self.watch_metric))
        return self.watched.add(value, trainer.run_history.current_epoch)

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
    def threshold(self) -> float:  # type: ignore[override]
        return self.early_stopping_threshold

    @property
    def early_stopping_patience_counter(self) -> int:
        """How many epochs in a row have not improved the metric."""
        return self.watched.so_far.num_bad

    def why_over(self) -> str | None:
        if self.early_stopping_patience_counter < self.early_stopping_patience:
            return None
        return (
            f"Nothing to train: the resumed run has already ended, because {self.watch_metric} "
            f"had not improved for {counted(self.early_stopping_patience_counter, 'epoch')}. "
            "Raise early_stopping_patience to continue."
        )

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

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        if not trainer._overrides("save_checkpoint"):
            check_directory(self.save_path, "save_path")

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.improves(trainer):
            about = {"epoch": self.best_metric_epoch, self.watch_metric: self.best_metric}
            trainer.save_checkpoint(
                self.save_path,
                checkpoint_kwargs=about,
                save_optimizer=self.save_optimizer,
                save_scheduler=self.save_scheduler,
            )

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
            value = getattr(self, name)
            if value is not None:
                check_number(f"SaveTrainingStateCallback({name}", value, least=1, otherwise="None")

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        names = None if trainer._overrides("save_training_state") else SAVED
        check_inside(Path(self.save_dir), names, "save_dir")

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
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


class LimitBatchesCallback(TrainerCallback):
    """Uses the first batches of every epoch only, in training and in evaluation, to try a program
    out.

    Every trainer gets one when the environment variable PT_ACC_LIMIT_BATCHES is set to a number.
    """

    ENVIRONMENT: ClassVar[str] = "PT_ACC_LIMIT_BATCHES"

    def __init__(self, num_batches: int) -> None:
        check_number("LimitBatchesCallback(num_batches", num_batches, least=1)
        self.num_batches = num_batches

    @classmethod
    def from_environment(cls) -> LimitBatchesCallback:
        given = os.environ[cls.ENVIRONMENT]
        if not given.isdecimal():
            raise ConfigurationError(
                "batch-limit-variable",
                f"{cls.ENVIRONMENT}={given!r}: set it to a number of batches, or unset it.",
            )
        return cls(int(given))

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        return LimitedStream(stream, self.num_batches)


class LimitEvalStepsCallback(TrainerCallback):
    """Uses the first batches of evaluations only; by default only in evaluations inside training
    epochs."""

    def __init__(self, num_eval_steps: int, limit_intermediate_only: bool = True) -> None:
        check_number("LimitEvalStepsCallback(num_eval_steps", num_eval_steps, least=1)
        self.num_eval_steps = num_eval_steps
        self.limit_intermediate_only = limit_intermediate_only

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        if is_training or (self.limit_intermediate_only and not is_intermediate):
            return stream
        return LimitedStream(stream, self.num_eval_steps)


class StepBasedEvaluationCallback(TrainerCallback):
    """Evaluates after every `eval_every_n_steps` training steps; the loss is recorded as
    `intermediate_eval_loss`.

    Training goes on as if nothing had happened: modes and random numbers are what they were.
    """

    def __init__(self, eval_every_n_steps: int) -> None:
        name = "StepBasedEvaluationCallback(eval_every_n_steps"
        check_number(name, eval_every_n_steps, least=1)
        self.eval_every_n_steps = eval_every_n_steps

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        check_evaluates(trainer, "StepBasedEvaluationCallback evaluates inside epochs")

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        core = trainer._core
        if (core.progress.step + 1) % self.eval_every_n_steps == 0:
            with core.intermediate():
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


SyncBatchNormCallback = ConvertSyncBatchNormCallback


class ModelEma(nn.Module):
    """A copy of a model in eval mode whose weights follow the original's; buffers are taken over as
    they are."""

    module: nn.Module

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        check_number("ModelEma(decay", decay, least=0, most=1, is_whole=False)
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the average computes."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the averages towards the model's weights by 1 - decay of the distance."""
        groups = paired_groups(averaged_parameters(model), averaged_parameters(self.module))
        move_averages(groups, 1 - self.decay)
        _copy(self.module.buffers(), model.buffers())

    @torch.no_grad()
    def set(self, model: nn.Module) -> None:
        """Take over the model's weights as they are."""
        _copy(self.module.parameters(), model.parameters())
        _copy(self.module.buffers(), model.buffers())


def _copy(own: Iterable[Tensor], other: Iterable[Tensor]) -> None:
    for mine, theirs in zip(own, other, strict=True):
        mine.copy_(theirs)


class ModelEmaCallback(SaveBestModelCallback):
    """Averages the weights after every optimizer update, evaluates the average after each epoch,
    saves the best.

    Its metrics are recorded with `ema_model_` in front of their names. Put it before callbacks that
    log metrics. Its evaluations call only the `callbacks` given here; without evaluation the
    average is saved every epoch.
    """

    # for subclasses that do not call `super().__init__()`, too
    save_path = "ema_model.pt"
    watch_metric = f"{PREFIX}eval_loss_epoch"
    save_optimizer = False
    load_saved_checkpoint = False
    decay: float = 0.99
    evaluate_during_training: bool = True
    ema_model: ModelEma | None = None
    _model_ema: Callable[..., ModelEma] = ModelEma
    _handler: CallbackHandler | None = None
    _num_averaged: int = 0

    def __init__(
        self,
        decay: float = 0.99,
        evaluate_during_training: bool = True,
        save_path: str | Path = "ema_model.pt",
        watch_metric: str = f"{PREFIX}eval_loss_epoch",
        greater_is_better: bool | None = None,
        model_ema: Callable[..., ModelEma] = ModelEma,
        callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (),
    ) -> None:
        super().__init__(
            save_path,
            watch_metric,
            greater_is_better,
            save_optimizer=False,
            load_saved_checkpoint=False,
        )
        self.decay = decay
        self.evaluate_during_training = evaluate_during_training
        self._model_ema = model_ema
        self._handler = CallbackHandler(callbacks)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        if self.evaluate_during_training:
            check_evaluates(trainer, "ModelEmaCallback has evaluate_during_training=True")
        self.ema_model = self._model_ema(
            trainer.get_model(keep_torch_compile=False), decay=self.decay
        )
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
                super().on_training_run_epoch_end(trainer)
            else:
                trainer.save_checkpoint(self.save_path, save_optimizer=False)

    def state_dict(self) -> dict[str, Any]:
        average = None if self.ema_model is None else self.ema_model.module.state_dict()
        return super().state_dict() | {"average": average, "num_averaged": self._num_averaged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_averaged = state["num_averaged"]
        if self.ema_model is not None and state["average"] is not None:
            self.ema_model.module.load_state_dict(state["average"])

    @contextmanager
    def _in_place(self, trainer: Trainer) -> Iterator[None]:
        """The average as the trainer's model, its metrics under their prefix, and only its own
        callbacks listening."""
        assert self.ema_model is not None
        history = trainer.run_history
        model = trainer.model
        handler = trainer.callback_handler
        prefix = history.metric_name_prefix
        trainer.model = self.ema_model.module
        trainer.callback_handler = self._handler or CallbackHandler(())
        history.set_metric_name_prefix(PREFIX)
        try:
            yield
        finally:
            trainer.model = model
            trainer.callback_handler = handler
            history.set_metric_name_prefix(prefix)


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
    last_checkpoint_step: int | None = field(default=None, init=False)
    decay_fraction: float | None = field(default=None, init=False)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if not hasattr(trainer.scheduler, "get_checkpoint_steps"):
            raise ConfigurationError(
                "not-a-wsd-scheduler",
                "WSDCheckpointCallback saves when a WSDLrScheduler decays, but the scheduler is "
                f"{type(trainer.scheduler).__name__}: pass "
                "`create_scheduler_fn=WSDLrScheduler.create_scheduler_fn()`.",
            )
        self.decay_fraction = trainer.scheduler.decay_phase_ratio
        if self.initial_checkpoint is not None:
            path = Path(self.initial_checkpoint)
            is_state = path.suffix != ".pt"
            load = trainer.load_training_state if is_state else trainer.load_checkpoint
            self.last_checkpoint_step = load(path).get("step")
            trainer.print(f"Loaded {path}, saved after {self.last_checkpoint_step} updates")

    def on_train_step_end(self, trainer: Trainer, step: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        self._save_if_due(trainer)
        # this batch ends an update, after which another one is done
        if trainer._core.run.window.is_last is True:
            trainer._core.after_update(lambda: self._save_if_due(trainer))

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._save_if_due(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"last_checkpoint_step": self.last_checkpoint_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_checkpoint_step = state["last_checkpoint_step"]

    def _save_if_due(self, trainer: Trainer) -> None:
        """Save if a decay begins or ends after the updates that are done, once."""
        done = trainer.scheduler.get_current_step() + 1
        phase = trainer.scheduler.get_phase_info(done)
        is_before = done == phase["pre_decay_step"]
        if done == self.last_checkpoint_step or not (is_before or done == phase["period_end"]):
            return
        self.last_checkpoint_step = done
        kind = "wsd_pre_decay" if is_before else "wsd_post_decay"
        path = Path(self.save_dir, f"checkpoint_{done}_{kind}{'' if is_before else '.pt'}")
        about = {
            "step": done,
            "checkpoint_type": kind,
            "total_steps": trainer.run_config.max_num_train_steps,
            "decay_fraction": self.decay_fraction,
            "timestamp": datetime.now().isoformat(),
        }
        if is_before:
            trainer.save_training_state(path, checkpoint_kwargs=about)
        else:
            trainer.save_checkpoint(
                path,
                save_optimizer=self.save_optimizer,
                save_scheduler=self.save_scheduler,
                checkpoint_kwargs=about,
            )
        trainer.print(f"Saved {path.name}")


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
