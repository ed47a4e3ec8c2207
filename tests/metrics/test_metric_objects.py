"""Metrics with state of their own, and averages, in runs that are interrupted inside an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback, StepResult, Trainer
from loopwright.callbacks import NonFiniteGuard, OnlineLoss
from loopwright.errors import Interrupted

from ..mistakes import raises


class Stateless:
    """The largest value seen, by itself."""

    def __init__(self) -> None:
        self.largest = 0.0

    def update(self, values: torch.Tensor) -> None:
        self.largest = max(self.largest, float(values.max()))

    def compute(self) -> float:
        return self.largest

    def reset(self) -> None:
        self.largest = 0.0


class Largest(Stateless):
    """The same, with state that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.largest = state["largest"]


class InStep(Trainer):
    """Returns the metric with every step."""

    def train_step(self, batch: Any) -> Any:
        result = super().train_step(batch)
        self.measure.update(batch[0])
        return StepResult(loss=result.loss, size=result.size, metrics={"largest": self.measure})

    measure: Any


class InHooks(Trainer):
    """Has its metrics in a dict, and logs one when an epoch starts and the other when it ends."""

    def on_epoch_start(self) -> None:
        self.log({"largest": self.measures["first"]})

    def on_train_step_end(self, batch: Any, result: StepResult) -> None:
        for measure in self.measures.values():
            measure.update(batch[0])

    def on_train_epoch_end(self) -> None:
        self.log({"also": self.measures["second"]})

    measures: dict[str, Any]


class InCallback(Callback):
    def __init__(self, measure: Any) -> None:
        self.measure = measure

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.measure.update(batch[0])
        trainer.log({"largest": self.measure})


class StopAt(Callback):
    def __init__(self, update: int | None) -> None:
        self.update = update

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


def options(run_dir: Path | None, *callbacks: Callback) -> dict[str, Any]:
    torch.manual_seed(0)
    sgd = lambda params: torch.optim.SGD(params, lr=0.01)  # noqa: E731
    return {
        "model": torch.nn.Linear(1, 1),
        "optimizer": sgd,
        "loss_fn": torch.nn.MSELoss(),
        "callbacks": callbacks,
        "run_dir": run_dir,
        "progress": "silent",
    }


def points() -> TensorDataset:
    values = torch.arange(12.0, 0.0, -1.0)[:, None]  # in order: the largest is in the first batch
    return TensorDataset(values, values)


def in_step(*args: Any) -> Trainer:
    trainer = InStep(**options(*args))
    trainer.measure = Largest()
    return trainer


def in_hooks(*args: Any) -> Trainer:
    trainer = InHooks(**options(*args))
    trainer.measures = {"first": Largest(), "second": Largest()}
    return trainer


def in_callback(*args: Any) -> Trainer:
    return Trainer(**options(*args, InCallback(Largest())))


def torchmetric_in_callback(*args: Any) -> Trainer:
    return Trainer(**options(*args, InCallback(torchmetrics.MaxMetric())))


def train(trainer: Trainer) -> Trainer:
    trainer.train(DataLoader(points(), batch_size=3), 2)
    return trainer


def assert_the_same_when_interrupted(build: Callable[..., Trainer], tmp_path: Path) -> None:
    whole = train(build(tmp_path / "whole", StopAt(None)))
    for update in range(1, 9):
        with pytest.raises(Interrupted):
            train(build(tmp_path / str(update), StopAt(update)))
        resumed = train(build(tmp_path / str(update), StopAt(None)))
        assert resumed.history.epochs == whole.history.epochs, f"interrupted after update {update}"


@pytest.mark.parametrize("build", [in_step, in_hooks, in_callback, torchmetric_in_callback])
def test_a_metric_goes_on_from_what_it_had_measured(
    build: Callable[..., Trainer], tmp_path: Path
) -> None:
    assert train(build(None)).history.epochs[0]["largest"] == 12.0
    assert_the_same_when_interrupted(build, tmp_path)


def test_a_metric_without_state_dict_is_refused_where_a_run_can_be_resumed(tmp_path: Path) -> None:
    trainer = InStep(**options(tmp_path / "run"))
    trainer.measure = Stateless()
    with raises("metric-cannot-be-saved", "`state_dict`", "`load_state_dict`"):
        train(trainer)
    trainer = InStep(**options(None))
    trainer.measure = Stateless()
    assert train(trainer).history.epochs[0]["largest"] == 12.0


def test_a_metric_that_nobody_could_find_again_is_refused(tmp_path: Path) -> None:
    class Elsewhere(Trainer):
        def on_epoch_start(self) -> None:
            self.log({"largest": Largest()})

    with raises("metric-not-saved", "`self.largest = Largest()`"):
        train(Elsewhere(**options(tmp_path / "run")))


def test_a_metric_that_is_logged_on_the_way_goes_on_measuring_the_epoch() -> None:
    trainer = in_step(None, OnlineLoss(every_n_updates=2))
    assert train(trainer).history.epochs[0]["largest"] == 12.0


class Spoiling(Trainer):
    """Has a loss that is not finite in one step of every epoch."""

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        loss = super().compute_loss(outputs, targets)
        return loss * float("nan") if targets[0] == 6.0 else loss


def test_skipped_steps_stay_out_of_the_epochs_loss_when_it_is_resumed(tmp_path: Path) -> None:
    def build(run_dir: Path | None, stopping: Callback) -> Trainer:
        return Spoiling(**options(run_dir, stopping, NonFiniteGuard("skip")))

    assert isfinite(train(build(None, StopAt(None))).history.epochs[0]["loss"])
    assert_the_same_when_interrupted(build, tmp_path)
