"""What the core says of steps that train nothing or the wrong thing, in the words of each
interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError
from loopwright.interfaces.configured import TrainerResult
from loopwright.interfaces.simple import Trainer as SimpleTrainer

from ..loops import assert_same_model, build_net
from ..mistakes import raises
from .configured.parts import CustomTrainer, Points
from .configured.parts import build_trainer as build_configured
from .configured.test_training import adamw
from .configured.test_training import train_by_hand as train_configured_by_hand
from .lifecycle.runs import build_trainer as build_lifecycle
from .lifecycle.runs import train as train_lifecycle
from .modular.programs import Config, MyTrainer

cross_entropy = nn.functional.cross_entropy


# simple


class OwnStep(SimpleTrainer):
    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        inputs, targets = self._prepare_batch(batch)
        self.optimizer.zero_grad()
        loss = self._compute_loss(self._forward_pass(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
        self.optimizer.step()
        return {"loss": loss.item()}


def simple(kind: type[SimpleTrainer], **settings: Any) -> SimpleTrainer:
    torch.manual_seed(0)
    net = build_net(dropout=0.0)
    return kind(net, torch.optim.SGD(net.parameters(), 0.1), cross_entropy, {"training": settings})


def test_a_step_that_clips_by_itself_is_the_one_of_the_simple_interface(
    points: TensorDataset,
) -> None:
    ours, reference = simple(OwnStep, max_grad_norm=0.3), simple(SimpleTrainer, max_grad_norm=0.3)
    for trainer in (ours, reference):
        trainer.train(DataLoader(points, 8), 2)
    assert_same_model(ours.model, reference.model)


def test_the_simple_interface_refuses_a_step_of_ones_own_while_accumulating(
    points: TensorDataset,
) -> None:
    with raises("step-in-window", "training.gradient_accumulation_steps", "2 batches"):
        simple(OwnStep, gradient_accumulation_steps=2).train(DataLoader(points, 8), 1)


def test_a_simple_step_that_only_measures_is_refused(points: TensorDataset, mistake: Any) -> None:
    class Measuring(SimpleTrainer):
        def train_step(self, batch: Any) -> dict[str, Any]:
            inputs, targets = self._prepare_batch(batch)
            return {"loss": self._compute_loss(self._forward_pass(inputs), targets)}

    what = "`train_step` that returns the loss and trains nothing"
    with mistake(
        "Interface: simple", what, ConfigurationError, match=r"super\(\)\.train_step\(batch\)"
    ):
        simple(Measuring).train(DataLoader(points, 8), 1)


def test_a_simple_eval_step_that_returns_nothing_is_refused(
    points: TensorDataset, mistake: Any
) -> None:
    class Silent(SimpleTrainer):
        def eval_step(self, batch: Any) -> Any:
            return None

    with mistake(
        "Interface: simple",
        "`eval_step` that returns None",
        ConfigurationError,
        match="returned None",
    ):
        simple(Silent).evaluate(DataLoader(points, 8))


# lifecycle


@pytest.mark.parametrize("value", [-1.0, 0, float("nan")])
def test_a_clip_value_that_is_no_limit_is_refused_by_the_lifecycle_interface(
    points: TensorDataset, mistake: Any, value: float
) -> None:
    what = f"`gradient_clip_value={value}`"
    with mistake("Interface: lifecycle", what, ConfigurationError, match="gradient_clip_value="):
        train_lifecycle(build_lifecycle(), points, 1, gradient_clip_value=value)


def test_a_number_of_accumulated_batches_that_is_none_is_refused_by_the_lifecycle_interface(
    points: TensorDataset, mistake: Any
) -> None:
    what = "`gradient_accumulation_steps=True`"
    with mistake(
        "Interface: lifecycle", what, ConfigurationError, match="gradient_accumulation_steps=True"
    ):
        train_lifecycle(build_lifecycle(), points, 1, gradient_accumulation_steps=True)


# modular


@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_a_clip_value_that_is_no_limit_is_refused_by_the_modular_interface(
    mistake: Any, value: float
) -> None:
    with mistake(
        "Interface: modular",
        f"`gradient_clip_val={value}`",
        ConfigurationError,
        match=f"gradient_clip_val={value}",
    ):
        MyTrainer(replace(Config(), gradient_clip_val=value))


def test_clipping_by_a_negative_norm_is_refused_by_the_modular_interface(mistake: Any) -> None:
    class Clipping(MyTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.criterion(self.model(batch[0]), batch[1])
            self.backward(loss)
            self.clip_gradients(self.optimizer, -1.0)
            return loss

    with mistake(
        "Interface: modular",
        "`clip_gradients(optimizer, -1.0)`",
        ConfigurationError,
        match="max_norm",
    ):
        Clipping(Config()).fit()


def test_a_loss_that_is_a_number_is_named_by_the_modular_interface(mistake: Any) -> None:
    class Numbers(MyTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.criterion(self.model(batch[0]), batch[1]).item())

    with mistake(
        "Interface: modular",
        "`backward` of a loss made a number by `.item()`",
        ConfigurationError,
        match="`training_step` is a float",
        hide=r"(?<=float \()[\d.]+",
    ):
        Numbers(Config()).fit()


def test_backward_in_a_validation_is_refused_by_the_modular_interface(mistake: Any) -> None:
    class OnValidation(MyTrainer):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            with torch.enable_grad():
                self.backward(self.criterion(self.model(batch[0]), batch[1]))

    with mistake(
        "Interface: modular",
        "`backward` in `validation_step`",
        ConfigurationError,
        match="`validation_step`",
    ):
        OnValidation(Config()).fit()


# configured


class OwnConfiguredStep(CustomTrainer):
    def train_step(self, batch: Any, model: nn.Module) -> TrainerResult:
        result = super().train_step(batch, model)
        self.optimizer.zero_grad()
        result.total_loss.backward()
        self.optimizer.step()
        return result


def test_a_step_of_ones_own_in_a_configured_trainer_is_taken_once() -> None:
    data = Points(61)
    trainer = build_configured(
        kind=OwnConfiguredStep, max_epochs=2, datasets={"train": data}, optimizer=adamw
    )
    trainer.train()
    assert_same_model(trainer.model, train_configured_by_hand(data, epochs=2)[0])


def test_an_update_in_an_evaluation_is_refused_by_a_configured_trainer(mistake: Any) -> None:
    class OnTestData(CustomTrainer):
        def eval_step(self, batch: Any, model: nn.Module) -> TrainerResult:
            with torch.enable_grad():
                result = self.train_step(batch, model)
                self.update(result.total_loss)
            return result

    trainer = build_configured(kind=OnTestData, max_epochs=1)
    with mistake(
        "Interface: configured",
        "`self.update` in `eval_step`",
        ConfigurationError,
        match="`eval_step`",
    ):
        trainer.evaluate("train")
