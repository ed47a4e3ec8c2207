"""Callbacks that watch a loss or a metric: they stop the run, or keep the best model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ....callbacks.nonfinite import parameter_name
from ....checkpoint.manifest import check_directory
from ....errors import ConfigurationError, NonFiniteLossError
from ....metrics.best import BestSoFar, Mode, direction_of
from ....metrics.progress import counted
from .events import StopTrainingError, TrainerCallback

if TYPE_CHECKING:
    from ..trainer import Trainer


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

    @property
    def is_final(self) -> bool:
        return True

    @property
    def is_immediate(self) -> bool:
        return False

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
                f"Training was stopped: {self.triggered}. The weights are those of the previous "
                "update. Lower the learning rate, pass `gradient_clip_value=`, or look at the "
                "data; without TerminateOnNaNCallback, training continues."
            )

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        loss = _latest(trainer, "evaluation_loss")
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"The evaluation loss is {loss}: check the weights and the evaluation data. "
                "Without TerminateOnNaNCallback, such a loss is only recorded."
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


class MetricWatcher(TrainerCallback):
    """The best value of a metric so far, where an improvement is more than `threshold` better; NaN
    never is one.

    Without `greater_is_better`, smaller values are, of a metric whose name says so; of others it
    has to be said.
    """

    watch_metric: str = (
        "eval_loss_epoch"  # values here are for subclasses that do not call `super().__init__()`
    )
    greater_is_better: bool = False
    reset_on_train: bool = True
    threshold: float = 0.0
    best_metric: float | None = None
    best_metric_epoch: int | None = None

    def __init__(
        self,
        watch_metric: str,
        greater_is_better: bool | None,
        reset_on_train: bool,
        threshold: float = 0.0,
    ) -> None:
        self.watch_metric = watch_metric
        self.greater_is_better = _is_greater_better(
            watch_metric, greater_is_better, type(self).__name__
        )
        self.reset_on_train = reset_on_train
        self.threshold = threshold
        self.best_metric = None
        self.best_metric_epoch = None

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.reset_on_train:
            self.reset()
        if self.watch_metric == "eval_loss_epoch" and trainer.eval_dataset is None:
            raise ConfigurationError(
                f"{type(self).__name__} watches 'eval_loss_epoch', but this run evaluates "
                "nothing: pass `eval_dataset=`, or watch 'train_loss_epoch'."
            )

    def reset(self) -> None:
        self.best_metric = None
        self.best_metric_epoch = None

    def improves(self, trainer: Trainer) -> bool:
        """Whether the latest value is the best so far, which it then is."""
        return self.compare_latest(trainer).num_bad == 0

    def compare_latest(self, trainer: Trainer, num_bad: int = 0) -> BestSoFar:
        """Compare the latest value with the best so far, after `num_bad` values that were no
        improvement."""
        value = float(trainer.run_history.get_latest_metric(self.watch_metric))
        before = BestSoFar(self.best_metric, self.best_metric_epoch or 0, num_bad)
        mode: Mode = "max" if self.greater_is_better else "min"
        after = before.after(value, trainer.run_history.current_epoch, mode, self.threshold)
        if after.num_bad == 0:
            self.best_metric = after.value
            self.best_metric_epoch = after.at
        return after

    def state_dict(self) -> dict[str, Any]:
        return {"best_metric": self.best_metric, "best_metric_epoch": self.best_metric_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best_metric = state["best_metric"]
        self.best_metric_epoch = state["best_metric_epoch"]


class EarlyStoppingCallback(MetricWatcher):
    """Ends training when a metric has not improved for `early_stopping_patience` epochs in a
    row."""

    threshold: float = 0.01
    early_stopping_patience: int = 1
    early_stopping_patience_counter: int = 0

    def __init__(
        self,
        early_stopping_patience: int = 1,
        early_stopping_threshold: float = 0.01,
        watch_metric: str = "eval_loss_epoch",
        greater_is_better: bool | None = None,
        reset_on_train: bool = True,
    ) -> None:
        if early_stopping_patience < 1:
            raise ConfigurationError(
                f"early_stopping_patience={early_stopping_patience}: use 1 or more epochs."
            )
        super().__init__(watch_metric, greater_is_better, reset_on_train, early_stopping_threshold)
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_patience_counter = 0

    def reset(self) -> None:
        super().reset()
        self.early_stopping_patience_counter = 0

    def why_over(self) -> str | None:
        if self.early_stopping_patience_counter < self.early_stopping_patience:
            return None
        return (
            f"Nothing to train: the resumed run has already ended, because {self.watch_metric} "
            f"had not improved for {counted(self.early_stopping_patience_counter, 'epoch')}. "
            "Raise early_stopping_patience to continue."
        )

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        so_far = self.compare_latest(trainer, self.early_stopping_patience_counter)
        self.early_stopping_patience_counter = so_far.num_bad
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            best = "never a number" if self.best_metric is None else f"best {self.best_metric:.6g}"
            raise StopTrainingError(
                f"Stopping training: {self.watch_metric} has not improved for "
                f"{counted(self.early_stopping_patience_counter, 'epoch')} ({best}, in epoch "
                f"{self.best_metric_epoch})"
            )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counter": self.early_stopping_patience_counter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.early_stopping_patience_counter = state["counter"]


class SaveBestModelCallback(MetricWatcher):
    """Writes a checkpoint whenever a metric is better than before, and loads the best when training
    ends."""

    save_path: str | Path = "best_model.pt"
    save_optimizer: bool = True
    save_scheduler: bool = True
    load_saved_checkpoint: bool = True

    def __init__(
        self,
        save_path: str | Path = "best_model.pt",
        watch_metric: str = "eval_loss_epoch",
        greater_is_better: bool | None = None,
        reset_on_train: bool = True,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        load_saved_checkpoint: bool = True,
    ) -> None:
        super().__init__(watch_metric, greater_is_better, reset_on_train)
        self.save_path = save_path
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.load_saved_checkpoint = load_saved_checkpoint

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        if not trainer._overrides("save_checkpoint"):
            check_directory(self.save_path, "save_path")

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.improves(trainer):
            trainer.save_checkpoint(
                self.save_path,
                checkpoint_kwargs={
                    "epoch": self.best_metric_epoch,
                    self.watch_metric: self.best_metric,
                },
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


def _is_greater_better(metric: str, given: bool | None, owner: str) -> bool:
    """As the user said; where nothing is said, smaller values are better, unless the name of the
    metric says more."""
    if given is not None:
        return given
    direction = direction_of(metric)
    if direction == "min":
        return False
    if direction == "max":
        raise ConfigurationError(
            f"{owner} watches {metric!r}, and its name says that larger values are better, but "
            "the default is to look for the smallest: pass greater_is_better=True, or "
            "greater_is_better=False if you mean that."
        )
    raise ConfigurationError(
        f"{owner} watches {metric!r}, and this name does not say whether smaller or larger values "
        "are better: pass greater_is_better=True or greater_is_better=False."
    )
