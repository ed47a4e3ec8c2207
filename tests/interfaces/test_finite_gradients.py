"""A gradient that is not finite ends training before it reaches a weight, in each interface, also
in own steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import NonFiniteLossError
from loopwright.interfaces.adversarial import Pix2pixTrainer
from loopwright.interfaces.lifecycle import TerminateOnNaNCallback
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.simple import Trainer as SimpleTrainer

from .adversarial.runs import tiny, write_data
from .configured.parts import build_trainer as build_configured
from .lifecycle.runs import build_trainer as build_lifecycle
from .lifecycle.runs import train as train_lifecycle
from .modular.programs import Config, MyTrainer
from .test_step_checks import OwnStep, simple

AT = 3  # the backward pass whose gradient is NaN


class Spoiled:
    """Makes a gradient NaN in one backward pass, and keeps the weights as they were before that
    pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.passes = model, 0
        self.before: dict[str, torch.Tensor] = {}
        next(model.parameters()).register_hook(self._hook)

    def _hook(self, grad: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes < AT:
            return grad
        self.before = {name: value.clone() for name, value in self.model.named_parameters()}
        return grad * math.nan

    def assert_refused(self, train: Callable[[], Any]) -> None:
        with pytest.raises(NonFiniteLossError, match=r"gradient of .* is not finite"):
            train()
        assert self.passes == AT
        assert all(
            torch.equal(value, self.before[name]) for name, value in self.model.named_parameters()
        )


@pytest.mark.parametrize("kind", [SimpleTrainer, OwnStep])
def test_simple(points: TensorDataset, kind: type[SimpleTrainer]) -> None:
    trainer = simple(kind)
    Spoiled(trainer.model).assert_refused(lambda: trainer.train(DataLoader(points, 8), 2))


class OwnBackward(LifecycleTrainer):
    def backward_step(self, loss: Any) -> None:
        loss.backward()


class OwnOptimizerStep(LifecycleTrainer):
    def optimizer_step(self) -> None:
        self.optimizer.step()


class OwnBoth(LifecycleTrainer):
    def backward_step(self, loss: Any) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def optimizer_step(self) -> None:
        pass

    def optimizer_zero_grad(self) -> None:
        pass


@pytest.mark.parametrize("kind", [LifecycleTrainer, OwnBackward, OwnOptimizerStep, OwnBoth])
def test_lifecycle(points: TensorDataset, kind: type[LifecycleTrainer]) -> None:
    trainer = build_lifecycle(kind=kind, callbacks=(TerminateOnNaNCallback,))
    Spoiled(trainer.model).assert_refused(lambda: train_lifecycle(trainer, points, 2))


def test_configured() -> None:
    trainer = build_configured(max_epochs=2)
    Spoiled(trainer.model).assert_refused(trainer.train)


class OwnModularStep(MyTrainer):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.criterion(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        self.backward(loss)
        self.optimizer.step()
        return {"loss": loss}


class PlainModularStep(MyTrainer):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.criterion(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}


@pytest.mark.parametrize("kind", [MyTrainer, OwnModularStep, PlainModularStep])
def test_modular(kind: type[MyTrainer]) -> None:
    trainer = kind(Config())
    Spoiled(trainer.model).assert_refused(trainer.fit)


@pytest.mark.parametrize("is_own", [False, True])
def test_adversarial(tmp_path: Path, is_own: bool) -> None:
    trainer = Pix2pixTrainer(tiny(write_data(tmp_path / "data"), tmp_path / "out"))

    def step(x: torch.Tensor, y: torch.Tensor, idx: int, **_: Any) -> None:
        trainer.opt_gen.zero_grad()
        (trainer.gen(x) - y).abs().mean().backward()
        trainer.opt_gen.step()

    def train() -> None:
        for epoch in range(2):
            trainer.train_paired(epoch, train_step=step if is_own else None)

    Spoiled(trainer.gen).assert_refused(train)
