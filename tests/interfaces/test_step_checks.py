"""What the core says of steps that train nothing or the wrong thing, in the words of each
interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


class Measuring(SimpleTrainer):
    def train_step(self, batch: Any) -> dict[str, Any]:
        inputs, targets = self._prepare_batch(batch)
        return {"loss": self._compute_loss(self._forward_pass(inputs), targets)}


class OnTestData(CustomTrainer):
    def eval_step(self, batch: Any, model: nn.Module) -> TrainerResult:
        with torch.enable_grad():
            result = self.train_step(batch, model)
            self.update(result.total_loss)
        return result


class ModularStep(MyTrainer):
    """Makes one mistake with a loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.wrong(self.criterion(self.model(batch[0]), batch[1]))

    def wrong(self, loss: Any) -> None:
        self.backward(loss)


class NegativeNorm(ModularStep):
    def wrong(self, loss: Any) -> None:
        self.backward(loss)
        self.clip_gradients(self.optimizer, -1.0)


class Number(ModularStep):
    def wrong(self, loss: Any) -> None:
        self.backward(loss.item())


class OnValidation(MyTrainer):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.enable_grad():
            self.backward(self.criterion(self.model(batch[0]), batch[1]))


Mistake = tuple[Callable[[TensorDataset], Any], str, str]
MISTAKES: dict[str, Mistake] = {
    "simple, a plain step while accumulating": (
        lambda data: simple(OwnStep, gradient_accumulation_steps=2).train(DataLoader(data, 8), 1),
        "step-in-window", "training.gradient_accumulation_steps"),
    "simple, a step that only measures": (
        lambda data: simple(Measuring).train(DataLoader(data, 8), 1),
        "returned-loss-only", "super().train_step(batch)"),
    "lifecycle, a clip value that is no limit": (
        lambda data: train_lifecycle(build_lifecycle(), data, 1, gradient_clip_value=-1.0), "", "gradient_clip_value="),
    "lifecycle, a number of batches that is none": (
        lambda data: train_lifecycle(build_lifecycle(), data, 1, gradient_accumulation_steps=True),
        "", "gradient_accumulation_steps=True"),
    "modular, a clip value that is no limit": (
        lambda data: MyTrainer(replace(Config(), gradient_clip_val=0.0)), "", "gradient_clip_val=0.0"),
    "modular, a negative norm": (lambda data: NegativeNorm(Config()).fit(), "", "max_norm"),
    "modular, a loss that is a number": (lambda data: Number(Config()).fit(), "not-a-loss", "`training_step`"),
    "modular, backward in a validation": (
        lambda data: OnValidation(Config()).fit(), "update-in-evaluation", "`validation_step`"),
    "configured, an update in an evaluation": (
        lambda data: build_configured(kind=OnTestData, max_epochs=1).evaluate("train"),
        "update-in-evaluation", "`eval_step`"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named_in_the_words_of_its_interface(what: str, points: TensorDataset) -> None:
    make, code, value = MISTAKES[what]
    with raises(code or "number", value):
        make(points)
