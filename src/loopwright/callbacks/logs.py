"""Callbacks that log what training does: learning rates, gradient norms, and throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..callback import Callback
from .interval import Interval

if TYPE_CHECKING:
    from ..callback import Trainer


class LearningRateLog(Callback):
    """Logs the learning rate that each step was taken with, and the last one of every epoch.

    It is called `lr`, or `lr/<optimizer>/<group>` where there is more than one. With an interval,
    only the steps that end one are logged, or only the epochs.

    Args:
        every_n_epochs: Log the rate of every n-th epoch only, and of no step.
        every_n_updates: Log the step of every n-th update only.
        every_n_samples: Log the step that completes n more samples only.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import LearningRateLog
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[LearningRateLog()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=2, batch_size=4)
    >>> list(history.steps["lr"]), history["lr"]
    ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1])
    """

    def __init__(
        self,
        *,
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        self.interval: Interval | None = None
        if (every_n_epochs, every_n_updates, every_n_samples) != (None, None, None):
            self.interval = Interval(
                type(self).__name__, every_n_epochs, every_n_updates, every_n_samples
            )
        by_update: tuple[str, ...] = ("on_update_end", "on_rewind")
        ignored = by_update if self.interval is None else ("on_train_step_end",)
        is_by_epoch = self.interval is not None and self.interval.unit == "epoch"
        self.ignored_events = (*ignored, *by_update) if is_by_epoch else ignored
        self._rates: dict[str, float | Tensor] = {}

    def on_train_start(self, trainer: Trainer) -> None:
        if self.interval is not None:
            self.interval.begin(trainer.progress)

    def on_rewind(self, trainer: Trainer) -> None:
        if self.interval is not None:
            self.interval.begin(trainer.progress)

    def on_update_end(self, trainer: Trainer) -> None:
        if self.interval is not None and self.interval.is_due_after_update(trainer.progress):
            trainer.log_step(self._rates)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        """Before the step, because afterwards schedulers have moved on to the next rate."""
        self._rates = learning_rates(trainer)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        trainer.log_step(self._rates)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        interval = self.interval
        if (
            interval is None
            or interval.unit != "epoch"
            or interval.is_due_after_epoch(trainer.progress.epoch + 1)
        ):
            trainer.log(self._rates)

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = dict(state["rates"])


def learning_rates(trainer: Trainer) -> dict[str, float | Tensor]:
    """The learning rate of every parameter group of every optimizer, by name."""
    rates = {
        f"lr/{name}/{number}": group["lr"]
        for name, optimizer in trainer.optimizers.items()
        for number, group in enumerate(optimizer.param_groups)
        if "lr" in group
    }
    # a tensor is changed in place by the next step of its scheduler
    rates = {
        name: rate.detach().clone() if isinstance(rate, Tensor) else rate
        for name, rate in rates.items()
    }
    return {"lr": next(iter(rates.values()))} if len(rates) == 1 else rates


class GradientNormLog(Callback):
    """Logs the norm of each optimizer's gradients, before clipping, at the step that ends in its
    update.

    It is called `grad_norm`, or `grad_norm/<optimizer>` where there are several; the epoch's row
    has the mean. Where `clip_norm` computes the norm anyway, that one is used. No host sync is
    needed.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import GradientNormLog
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[GradientNormLog()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=1, batch_size=4)
    >>> len(history.steps["grad_norm"]), history.last("grad_norm") > 0
    (2, True)
    """

    def __init__(self) -> None:
        self._norms: dict[str, Tensor | None] = {}

    def metric_names(self, known: set[str]) -> set[str]:
        return {"grad_norm"}

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        update = trainer.run.updates.by_name[optimizer]
        if update.clip_norm is not None and update.clip_value is None and not update.is_joined:
            self._norms[optimizer] = None
            return
        grads = [param.grad for param in update.params if param.grad is not None]
        self._norms[optimizer] = torch.nn.utils.get_total_norm(grads)

    def on_update_end(self, trainer: Trainer) -> None:
        updates = trainer.run.updates.by_name
        values = {
            name: updates[name].norm if norm is None else norm for name, norm in self._norms.items()
        }
        self._norms = {}
        is_only = len(updates) == 1
        trainer.log_step(
            {"grad_norm" if is_only else f"grad_norm/{name}": norm for name, norm in values.items()}
        )

    def on_rewind(self, trainer: Trainer) -> None:
        self._norms = {}


class Throughput(Callback):
    """Adds `samples_per_second` and `steps_per_second` of the training part of each epoch to its
    row.

    The time of evaluations is left out. Both are measured on the clock, so the metrics of two runs
    are no longer identical where this is used.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import Throughput
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[Throughput()], progress="silent"
    ... )
    >>> history = trainer.train(data, num_epochs=1, batch_size=4)
    >>> history.last("samples_per_second") > history.last("steps_per_second")
    True
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {"sample": 0, "step": 0, "seconds": 0.0}

    def metric_names(self, known: set[str]) -> set[str]:
        return {"samples_per_second", "steps_per_second"}

    def on_epoch_start(self, trainer: Trainer) -> None:
        progress = trainer.progress
        self._began = {
            "sample": progress.sample,
            "step": progress.step,
            "seconds": progress.seconds,
        }

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        progress = trainer.progress
        seconds = progress.seconds - self._began["seconds"]
        if seconds > 0:
            samples = progress.sample - self._began["sample"]
            steps = progress.step - self._began["step"]
            trainer.log(
                {"samples_per_second": samples / seconds, "steps_per_second": steps / seconds}
            )

    def state_dict(self) -> dict[str, Any]:
        return {"began": dict(self._began)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._began = dict(state["began"])
