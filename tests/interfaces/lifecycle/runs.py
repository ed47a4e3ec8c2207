"""Small trainers and listeners for the tests of the lifecycle interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import Trainer, TrainerCallback
from loopwright.interfaces.lifecycle.core import NAMES
from loopwright.interfaces.lifecycle.tracking import EVENTS

from ...loops import build_net

METHODS = [name for name in NAMES.methods if not name.startswith(("_", "get_"))]


def build_trainer(
    *,
    seed: int = 1,
    callbacks: Any = (),
    lr: float = 0.05,
    kind: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    """A quiet trainer for the `points`, the same every time."""
    model = build_net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return kind(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, **options)


def train(trainer: Trainer, data: TensorDataset, num_epochs: int = 2, **options: Any) -> Trainer:
    """Train with the seed that `train_by_hand` uses."""
    torch.manual_seed(0)
    trainer.train(data, num_epochs, **options)
    return trainer


def head(data: TensorDataset, count: int) -> TensorDataset:
    """The first samples of a data set."""
    return TensorDataset(*(tensor[:count] for tensor in data.tensors))


def recording_trainer(log: list[str]) -> type[Trainer]:
    """A trainer class that notes every stage method when it is called."""

    def noting(name: str) -> Any:
        def method(self: Trainer, *args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return getattr(Trainer, name)(self, *args, **kwargs)

        return method

    return type("RecordingTrainer", (Trainer,), {name: noting(name) for name in METHODS})


def recording_callback(log: list[str]) -> TrainerCallback:
    """A callback that notes every event."""

    def noting(name: str) -> Any:
        def method(self: TrainerCallback, trainer: Trainer, **kwargs: Any) -> None:
            log.append(name)

        return method

    kind = type("RecordingCallback", (TrainerCallback,), {name: noting(name) for name in EVENTS})
    callback = kind()
    assert isinstance(callback, TrainerCallback)
    return callback


def each(event: str, action: Any) -> TrainerCallback:
    """A callback that calls a function at one event."""

    def act(self: TrainerCallback, trainer: Trainer, **kwargs: Any) -> None:
        action(trainer)

    callback = type("Each", (TrainerCallback,), {event: act})()
    assert isinstance(callback, TrainerCallback)
    return callback
