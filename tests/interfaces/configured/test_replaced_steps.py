"""The methods of a configured trainer replaced whole, with what one writes in them, against loops
written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopwright import Schedule
from loopwright.callbacks import OfflineLoss
from loopwright.data.order import permutation
from loopwright.data.random import seed_everything
from loopwright.interfaces.configured import BaseTrainer, TrainerResult

from ...loops import assert_same_model, assert_same_optimizer
from .parts import CustomTrainer, Points, build_net, build_trainer

DATA = Points(61)
TEST = Points(32, seed=1)


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, fused=True)


def by_hand(loss_of, *, epochs=2):
    """Two epochs of a plain loop with this loss of (outputs, labels)."""
    model = build_net()
    optimizer = sgd(model.parameters())
    seed_everything(0)
    for epoch in range(epochs):
        for indices in permutation(0, epoch, len(DATA)).split(8):
            optimizer.zero_grad()
            loss_of(model(**DATA.rows(indices)), DATA.labels[indices]).backward()
            optimizer.step()
    return model, optimizer


def measured(model, loss_of):
    model.eval()
    with torch.no_grad():
        return loss_of(model(**TEST.rows(torch.arange(32))), TEST.labels).item()


def train(kind, **settings):
    given = {
        "max_epochs": 2,
        "optimizer": sgd,
        "datasets": {"train": DATA, "test": TEST},
        **settings,
    }
    trainer = build_trainer(kind, **given)
    trainer.train()
    return trainer


def huber(outputs, labels):
    return nn.functional.huber_loss(outputs, labels)


def mse(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)


class OwnLoss(BaseTrainer):
    def loss_compute(self, forward_output, targets):
        return huber(forward_output, targets["labels"])


class OwnSplit(OwnLoss):
    def _split_batch(self, batch):
        return {"coordinates": batch["coordinates"], "features": batch["features"]}, {
            "labels": batch["labels"]
        }


class OwnStep(BaseTrainer):
    def train_step(self, batch, model):
        loss = huber(model(batch["coordinates"], batch["features"]), batch["labels"])
        return TrainerResult(total_loss=loss)


class Updating(OwnStep):
    def train_step(self, batch, model):
        result = super().train_step(batch, model)
        self.update(result.total_loss)
        return TrainerResult(result.total_loss.detach())

    def eval_step(self, batch, model):
        return super().train_step(batch, model)


class Plain(OwnStep):
    """The ordinary loop of torch, in a step."""

    def train_step(self, batch, model):
        loss = huber(model(batch["coordinates"], batch["features"]), batch["labels"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return TrainerResult(total_loss=loss)

    def eval_step(self, batch, model):
        return OwnStep.train_step(self, batch, model)


class WithoutZeroing(Plain):
    """Leaves to the trainer what the trainer does after each of its own updates."""

    def train_step(self, batch, model):
        loss = huber(model(batch["coordinates"], batch["features"]), batch["labels"])
        loss.backward()
        self.optimizer.step()
        return TrainerResult(total_loss=loss)


class PlainAndDetached(Plain):
    def train_step(self, batch, model):
        return TrainerResult(super().train_step(batch, model).total_loss.detach())


class Everything(BaseTrainer):
    """All of them at once; only the steps count, and they use the split."""

    def _split_batch(self, batch):
        return (batch["coordinates"], batch["features"]), batch["labels"]

    def loss_compute(self, forward_output, targets):
        raise AssertionError("no step calls it")

    def train_step(self, batch, model):
        inputs, labels = self._split_batch(batch)
        return TrainerResult(huber(model(*inputs), labels))

    def eval_step(self, batch, model):
        inputs, labels = self._split_batch(batch)
        return TrainerResult(huber(model(*inputs), labels))


KINDS = (OwnLoss, OwnSplit, OwnStep, Updating, Plain, WithoutZeroing, PlainAndDetached, Everything)


@pytest.mark.parametrize("kind", KINDS)
def test_each_method_replaced_trains_and_evaluates_as_the_loop_written_by_hand(kind):
    settings = {"forward_properties": [], "target_properties": []} if kind is OwnSplit else {}
    trainer = train(kind, callbacks=[OfflineLoss("test")], **settings)
    model, optimizer = by_hand(huber)
    assert_same_model(trainer.model, model)
    assert_same_optimizer(trainer.optimizer, optimizer)
    assert trainer.history["test_loss"][-1] == pytest.approx(measured(model, huber), rel=1e-5)


def test_an_eval_step_is_used_for_evaluation_alone():
    class Own(OwnStep):
        def eval_step(self, batch, model):
            loss = mse(model(batch["coordinates"], batch["features"]), batch["labels"])
            return TrainerResult(loss, {"mse": loss})

    trainer = train(Own)
    model, _ = by_hand(huber)
    assert_same_model(trainer.model, model)
    assert trainer.evaluate("test")["mse"] == pytest.approx(measured(model, mse), rel=1e-5)


def test_a_predict_step_is_what_predictions_are():
    class Doubling(OwnLoss):
        def predict_step(self, batch, model):
            return 2 * model(batch["coordinates"], batch["features"])

    trainer = build_trainer(Doubling)
    trainer.model.eval()
    assert torch.equal(
        trainer.predict("test"), 2 * trainer.model(**TEST.rows(torch.arange(32))).detach()
    )


def test_a_loss_module_of_the_trainer_is_where_the_model_is_and_one_that_is_not_trained_is_said(
    capsys,
):
    class WithModules(CustomTrainer):
        def __init__(self, trainer_config, **kwargs):
            super().__init__(trainer_config, **kwargs)
            self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.ones(1))
            self.head = nn.Linear(2, 1)

    trainer = build_trainer(WithModules)
    trainer.engine.run.progress_style = "lines"
    trainer.train()
    said = [line for line in capsys.readouterr().out.splitlines() if "no optimizer trains" in line]
    assert said == [
        "WithModules.head has 2 parameters that no optimizer trains, because it is not part of a "
        "model. To train it, describe it under `model` as another model; otherwise freeze it with "
        "`requires_grad_(False)`."
    ]
    assert trainer.loss.pos_weight.device == trainer.device


def stepping_after_own_step(self, batch, model):
    loss = huber(model(batch["coordinates"], batch["features"]), batch["labels"])
    loss.backward()
    self.optimizer.step()
    self.scheduler.step()
    return TrainerResult(total_loss=loss)


@pytest.mark.parametrize("every", ["update", "epoch"])
def test_a_scheduler_is_left_to_a_step_that_steps_it_after_the_optimizer(every):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    own = {"train_step": stepping_after_own_step, "eval_step": OwnStep.train_step}
    kind = type("Mine", (OwnStep,), own)
    trainer = train(kind, scheduler=Schedule(scheduler, every=every))
    assert trainer.scheduler.last_epoch == 16


def test_a_scheduler_of_updates_counts_each_of_two_updates_in_a_step():
    class Twice(OwnStep):
        def train_step(self, batch, model):
            for _ in range(2):
                result = super().train_step(batch, model)
                self.update(result.total_loss)
            return result

    def scheduler(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    trainer = build_trainer(Twice, scheduler=Schedule(scheduler, every="update"))
    trainer.train()
    assert trainer.scheduler.last_epoch == 16
