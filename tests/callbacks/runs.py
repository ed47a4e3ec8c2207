"""Runs that the callback tests share: a small trainer, a crash at a given update, and the
comparison of two states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.training.state import capture

from ..loops import build_net

UPDATES_PER_EPOCH = 5  # 37 points in batches of 8


class Crash(Callback):
    """Ends a run with an exception when the update after this one is about to begin."""

    def __init__(self, after_update: int | None) -> None:
        self.after_update = after_update

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.progress.update == self.after_update:
            raise ZeroDivisionError("crash")


class Logged(Callback):
    """Logs given values as metrics, one for each epoch, and remembers the weights of each epoch."""

    def __init__(self, **values: Sequence[float]) -> None:
        self.values = values
        self.weights: list[dict[str, Tensor]] = []

    def metric_names(self, known: set[str]) -> set[str]:
        return set(self.values)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        epoch = trainer.progress.epoch
        trainer.log({name: values[epoch] for name, values in self.values.items()})
        self.weights.append(
            {name: value.clone() for name, value in trainer.model.state_dict().items()}
        )


def build_trainer(
    callbacks: Iterable[Any] = (), model: nn.Module | None = None, **options: Any
) -> Trainer:
    options = {"progress": "silent", "optimizer": partial(torch.optim.Adam, lr=0.01)} | options
    return Trainer(
        model or build_net(), loss_fn=nn.functional.cross_entropy, callbacks=callbacks, **options
    )


def train(trainer: Trainer, points: TensorDataset, num_epochs: int = 3, **options: Any) -> Trainer:
    trainer.train(points, num_epochs, eval_data=points, **({"batch_size": 8} | options))
    return trainer


def assert_same_after_crash(
    tmp_path: Path,
    points: TensorDataset,
    build: Callable[[], list[Callback]],
    after_update: int,
    num_epochs: int = 3,
    build_model: Callable[[], nn.Module] = build_net,
    **options: Any,
) -> Trainer:
    """A run that crashed and was started again ends in the very state of one that never did."""

    def run(name: str, crash: int | None) -> Trainer:
        saving = Checkpoints(every_updates=1, asynchronous=False)
        callbacks = [*build(), Crash(crash), saving]
        trainer = build_trainer(callbacks, build_model(), run_dir=tmp_path / name, **options)
        return train(trainer, points, num_epochs)

    straight = run("straight", None)
    with pytest.raises(ZeroDivisionError):
        run("crashed", after_update)
    resumed = run("crashed", None)
    assert_same_tree(state_of(straight), state_of(resumed))
    return resumed


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All of a trainer's state but its clock."""
    tree = capture(trainer.run)
    clocks = ("seconds", "call_seconds")
    tree["progress"] = {
        name: value for name, value in tree["progress"].items() if name not in clocks
    }
    return tree


def assert_same_tree(first: Any, second: Any, path: str = "") -> None:
    """Every value the same, bit for bit, where NaN is the same as NaN."""
    assert type(first) is type(second), path
    if isinstance(first, Tensor):
        torch.testing.assert_close(
            first, second, rtol=0, atol=0, equal_nan=True, msg=f"{path} differs"
        )
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key, value in first.items():
            assert_same_tree(value, second[key], f"{path}/{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), path
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same_tree(one, other, f"{path}/{number}")
    else:
        assert first == second or (first != first and second != second), path


class Clock:
    """A clock that goes on only when it is wound."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("loopwright.training.steps.monotonic", lambda: self.now)
        monkeypatch.setattr("loopwright.training.evaluate.monotonic", lambda: self.now)
        monkeypatch.setattr("loopwright.callbacks.progress.monotonic", lambda: self.now)


class Timed(Trainer):
    """A training step takes a second, an evaluation step ten."""

    clock: Clock
    step_seconds = 1.0

    def train_step(self, batch: Any) -> Any:
        self.clock.now += self.step_seconds
        return super().train_step(batch)

    def eval_step(self, batch: Any) -> Any:
        self.clock.now += 10.0
        return super().eval_step(batch)


def build_timed(monkeypatch: pytest.MonkeyPatch, callbacks: Iterable[Any], **options: Any) -> Timed:
    trainer = Timed(
        build_net(),
        partial(torch.optim.SGD, lr=0.1),
        nn.functional.cross_entropy,
        callbacks=callbacks,
        **options,
    )
    trainer.clock = Clock(monkeypatch)
    return trainer
