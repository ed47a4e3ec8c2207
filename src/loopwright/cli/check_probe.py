"""What is looked at while a tiny run trains: losses, gradients, weights, and what steps do to their batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..callback import Callback
from ..checkpoint import read_checkpoint, write_checkpoint
from .check_data import finite, leaves, same

if TYPE_CHECKING:
    from ..metrics.result import StepResult
    from ..trainer import Trainer


class Probe(Callback):
    """Sees every step and update, and changes nothing."""

    precedence = 1

    def __init__(self) -> None:
        self.names: set[str] = set()  # of what steps measure
        self.changed_inputs: list[str] = []
        self.nonfinite: str | None = None
        self.without_gradient: list[str] = []
        self.has_learned = False
        self.largest_rate = 0.0
        self.is_finite = True
        self._before: dict[str, Tensor] = {}
        self._batch: Any = None
        self._reached: set[str] = set()

    def on_train_start(self, trainer: Trainer) -> None:
        self._before = {name: param.detach().clone() for name, param in _named(trainer)}

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self._batch = {key: [leaf.clone() for leaf in leaves(value)] for key, value in _parts(batch).items()}

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.names |= {"loss", *result.metrics}
        loss = float(result.loss.detach().sum()) if isinstance(result.loss, Tensor) else 0.0
        if not math.isfinite(loss):
            self.nonfinite = self.nonfinite or f"the loss of step {trainer.progress.step} is {loss}"
        now = _parts(batch)
        for key, before in self._batch.items():
            if key in now and not same(before, leaves(now[key])) and key not in self.changed_inputs:
                self.changed_inputs.append(key)

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._reached |= {name for name, param in _named(trainer) if param.grad is not None}
        rates = [float(group.get("lr", 1.0)) for group in trainer.optimizers[optimizer].param_groups]
        self.largest_rate = max(self.largest_rate, *rates)

    def on_loop_end(self, trainer: Trainer) -> None:
        now = dict(_named(trainer))
        self.without_gradient = [name for name in now if name not in self._reached]
        self.has_learned = any(
            name not in self._before or not same([self._before[name]], [param.detach()]) for name, param in now.items()
        )
        self.is_finite = all(finite(param.detach()) for param in now.values())


class SavesEach(Callback):
    """Saves the state of every callback by itself, so that one whose state cannot be is known by name."""

    precedence = 1

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_done = False

    def on_update_end(self, trainer: Trainer) -> None:
        if self._is_done:
            return
        self._is_done = True
        for number, callback in enumerate(trainer.run.callbacks):
            self._save(callback, self._folder / str(number))

    def _save(self, callback: Callback, path: Path) -> None:
        """Errors that are about a state name the callback it belongs to."""
        try:
            state = callback.state_dict()
            write_checkpoint(path, {"state": state}, {})
            read_checkpoint(path)
        except Exception as error:
            raise UnsavableStateError(callback, error) from error


class UnsavableStateError(Exception):
    """The state of a callback cannot be written to a checkpoint."""

    def __init__(self, owner: Callback, error: Exception) -> None:
        super().__init__(f"the state of {type(owner).__name__} cannot be saved: {error}")
        self.owner = owner


def repeated_loss(trainer: Trainer, batch: Any) -> tuple[float, float]:
    """The losses of one batch evaluated twice: the very same object, in eval mode and with the same generators."""
    import torch

    from ..data.random import preserved_rng
    from ..metrics.result import StepResult

    batch = deepcopy(batch)
    losses = []
    for _ in range(2):
        with trainer._eval_mode(), torch.no_grad(), preserved_rng(), trainer.runtime.autocast:
            result = StepResult.of(trainer.eval_step(batch), trainer.run.window.size)
        losses.append(float(result.loss.sum()) if isinstance(result.loss, Tensor) else math.nan)
    return losses[0], losses[1]


def _named(trainer: Trainer) -> list[tuple[str, Any]]:
    """The parameters that are to be trained."""
    models = trainer.models.values()
    return [item for model in models for item in model.named_parameters() if item[1].requires_grad]


def _parts(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {str(key): value for key, value in batch.items()}
    items = batch if isinstance(batch, list | tuple) else [batch]
    return {f"part {number}": item for number, item in enumerate(items)}
