"""Steps of one's own: those that train nothing, or the wrong thing, are errors; optimizer steps in
them are noticed."""

from __future__ import annotations

from functools import partial
from math import nan

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError, NonFiniteLossError, StepResult, Trainer
from loopwright.callbacks import NonFiniteGuard
from tests.distributed.ranks import run_ranks
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    build_linear,
    build_net,
    train_by_hand,
)
from tests.training.own_steps import SECTION, Own, cross_entropy, own, sgd

# Nothing is trained


class Returning(Own):
    def train_step(self, batch):
        return self.loss(batch)


def test_a_loss_that_is_returned_and_never_given_to_update_is_an_error_before_the_second_step(
    points, mistake
):
    trainer = own(Returning)
    with mistake(
        SECTION,
        "`train_step` returns the loss and never calls `update`",
        ConfigurationError,
        match="update",
    ):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 1


@pytest.mark.parametrize(
    "wrap", [lambda loss: {"loss": loss}, lambda loss: StepResult(metrics={"ce": loss})]
)
def test_a_graph_is_found_in_a_dict_and_in_a_result(points, wrap):
    class Wrapped(Own):
        def train_step(self, batch):
            return wrap(self.loss(batch))

    trainer = own(Wrapped)
    with pytest.raises(ConfigurationError, match="a returned loss is only logged"):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 1


def test_a_step_assigned_to_a_trainer_is_looked_at_as_well(points):
    trainer = Trainer(build_net(), sgd, cross_entropy, progress="silent")
    trainer.train_step = lambda batch: cross_entropy(trainer.model(batch[0]), batch[1])  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="a returned loss is only logged"):
        trainer.train(points, 3, batch_size=8)


def test_backward_without_a_step_is_an_error_that_names_update(points, mistake):
    class Backward(Own):
        def train_step(self, batch):
            loss = self.loss(batch)
            loss.backward()
            return loss.item()

    trainer = own(Backward)
    what = "`loss.backward()` in `train_step`, and no `optimizer.step()`"
    with mistake(
        SECTION, what, ConfigurationError, match=r"called backward\(\).*self\.update\(loss\)"
    ):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 1


def test_an_epoch_without_any_update_is_an_error_where_no_graph_was_returned(points, mistake):
    class Measuring(Own):
        def train_step(self, batch):
            return self.loss(batch).item()

    trainer = own(Measuring)
    with mistake(
        SECTION,
        "`train_step` that never updates and returns a number",
        ConfigurationError,
        match="5 steps",
    ):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 5


def test_a_step_that_leaves_out_updates_now_and_then_is_none_that_trains_nothing(points):
    class Rarely(Own):
        def train_step(self, batch):
            loss = self.loss(batch)
            if self.progress.epoch_step == 3:
                self.update(loss)
            return loss.detach()

    assert len(own(Rarely).train(points, 2, batch_size=8).epochs) == 2


def test_an_epoch_of_which_the_guard_skips_every_update_is_an_error(points):
    class Nans(Own):
        def train_step(self, batch):
            loss = self.loss(batch) * nan
            self.update(loss)
            return loss

    with pytest.raises(
        NonFiniteLossError, match="Nothing was trained: all 5 updates of optimizer 'optimizer'"
    ):
        own(Nans, callbacks=[NonFiniteGuard("skip")]).train(points, 1, batch_size=8)


def test_a_loss_of_another_optimizer_is_an_error_before_the_first_step(points, mistake):
    class Swapped(Own):
        def train_step(self, batch):
            loss = cross_entropy(self.first(batch[0]), batch[1])
            self.update(loss, "second")
            return loss

    trainer = Swapped(
        {"first": build_net(), "second": build_net()},
        {"first": sgd, "second": sgd},
        progress="silent",
    )
    what = "`update(loss, optimizer)` with the loss of another optimizer"
    with mistake(
        SECTION,
        what,
        ConfigurationError,
        match=r"'second'.*none of its 6 parameters has a gradient",
    ):
        trainer.train(points, 1, batch_size=8)


def test_an_optimizer_of_frozen_parameters_alone_is_refused(points, mistake):
    net = build_net()
    net[0].requires_grad_(False)
    trainer = Trainer(net, sgd(net[0].parameters()), cross_entropy, progress="silent")
    with mistake(
        SECTION, "an optimizer whose parameters are all frozen", ConfigurationError, match="frozen"
    ):
        trainer.train(points, 1, batch_size=8)


# Optimizer steps of one's own


class ByHand(Own):
    def train_step(self, batch):
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def test_a_step_of_ones_own_is_honoured_and_counted(points):
    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    rate = partial(OneCycleLR, max_lr=0.5, total_steps=10)
    trainer = own(ByHand, ours, scheduler=rate)
    trainer.train(points, 2, batch_size=8)
    train_by_hand(theirs, other, points, epochs=2, every_update=rate(other))
    assert_same_model(ours, theirs)
    assert_same_optimizer(trainer.optimizers["optimizer"], other)
    assert trainer.run.updates.by_name["optimizer"].num_updates == trainer.progress.update == 10


def test_a_scheduler_stepped_by_hand_is_not_stepped_again(points):
    class Both(ByHand):
        def train_step(self, batch):
            loss = super().train_step(batch)
            self.schedules["scheduler"].scheduler.step()
            return loss

    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    rate = partial(OneCycleLR, max_lr=0.5, total_steps=10)
    own(Both, ours, scheduler=rate).train(points, 2, batch_size=8)
    train_by_hand(theirs, other, points, epochs=2, every_update=rate(other))
    assert_same_model(ours, theirs)


def test_an_optimizer_is_free_again_after_training(points):
    net = build_net()
    optimizer = sgd(net.parameters())
    Trainer(net, optimizer, cross_entropy, clip_norm=1.0, progress="silent").train(
        points, 1, batch_size=8
    )
    before = net[0].weight.detach().clone()
    cross_entropy(net(points.tensors[0]), points.tensors[1]).backward()
    optimizer.step()
    assert not torch.equal(before, net[0].weight)


REFUSED = {
    "`optimizer.step()` in `train_step` with `accumulate=2`": {"accumulate": 2},
    "`optimizer.step()` in `train_step` with `clip_norm=1.0`": {"clip_norm": 1.0},
    "`optimizer.step()` in `train_step` with `clip_value=0.5`": {"clip_value": 0.5},
    "`optimizer.step()` in `train_step` with `precision='fp16'`": {"precision": "fp16"},
}


@pytest.mark.parametrize(("what", "options"), REFUSED.items(), ids=REFUSED.keys())
def test_a_step_of_ones_own_is_refused_before_it_is_taken_where_it_would_be_wrong(
    points, mistake, what, options
):
    net = build_net()
    before = net[0].weight.detach().clone()
    with mistake(SECTION, what, ConfigurationError, match=r"called step\(\)"):
        own(ByHand, net, **options).train(points, 1, batch_size=8)
    assert torch.equal(before, net[0].weight)


def test_a_step_of_ones_own_beside_update_is_refused(points, mistake):
    class Twice(Own):
        def train_step(self, batch):
            loss = self.loss(batch)
            self.update(loss)
            self.optimizer.step()
            return loss

    with mistake(
        SECTION,
        "`update` and `optimizer.step()` in one `train_step`",
        ConfigurationError,
        match="twice",
    ):
        own(Twice).train(points, 1, batch_size=8)


def test_an_update_after_a_step_of_ones_own_is_refused(points):
    class Twice(ByHand):
        def train_step(self, batch):
            super().train_step(batch)
            self.update(self.loss(batch))

    with pytest.raises(ConfigurationError, match="stepped twice"):
        own(Twice).train(points, 1, batch_size=8)


def step_alone(rank: int, points: TensorDataset) -> str:
    with pytest.raises(ConfigurationError) as caught:
        own(ByHand, build_linear(), runtime="ddp").train(points, 1, batch_size=8)
    return str(caught.value)


def test_a_step_of_ones_own_on_several_processes_is_refused(points, mistake):
    for said in run_ranks(step_alone, 2, points):
        mistake.said(
            "Several processes", "`loss.backward(); optimizer.step()` in `train_step`", said
        )


# Evaluations


def test_an_update_in_an_evaluation_is_refused_and_changes_nothing(points, mistake):
    class OnTestData(Own):
        def eval_step(self, batch):
            with torch.enable_grad():
                loss = self.loss(batch)
                self.update(loss)
            return loss

    net = build_net()
    trainer = OnTestData(net, sgd, cross_entropy, progress="silent")
    with mistake(
        SECTION,
        "`self.update(loss)` in `eval_step`",
        ConfigurationError,
        match="train on the evaluation data",
    ):
        trainer.train(points, 1, points, batch_size=8)
    trained, before = trainer.progress.update, net[0].weight.detach().clone()
    with pytest.raises(ConfigurationError, match="train on the evaluation data"):
        trainer.evaluate(points, batch_size=8)
    assert trained == 5
    assert torch.equal(before, net[0].weight)


class OnStart(Own):
    def on_eval_start(self, data):
        self.update(torch.zeros((), requires_grad=True))


class OnStepEnd(Own):
    def on_eval_step_end(self, batch, result):
        self.update(torch.zeros((), requires_grad=True))


class OnEnd(Own):
    def on_eval_end(self, data):
        self.update(torch.zeros((), requires_grad=True))


@pytest.mark.parametrize("kind", [OnStart, OnStepEnd, OnEnd])
def test_an_update_in_a_hook_of_an_evaluation_is_refused(points, kind):
    trainer = kind(build_net(), sgd, cross_entropy, progress="silent")
    with pytest.raises(ConfigurationError, match="train on the evaluation data"):
        trainer.train(points, 1, points, batch_size=8)


def test_an_update_in_a_prediction_is_refused(points):
    class Predicting(Own):
        def forward(self, inputs):
            self.update(torch.zeros((), requires_grad=True))

    with pytest.raises(ConfigurationError, match="evaluation or prediction"):
        own(Predicting).predict(points)


def test_an_eval_step_that_returns_nothing_is_an_error_at_the_first_batch(points, mistake):
    class Silent(Own):
        measured = 0

        def eval_step(self, batch):
            self.measured += 1

    trainer = Silent(build_net(), sgd, cross_entropy, progress="silent")
    with mistake(
        SECTION, "`eval_step` that returns None", ConfigurationError, match="measured nothing"
    ):
        trainer.train(points, 1, points, batch_size=8)
    assert trainer.measured == 1


def test_what_is_logged_during_an_evaluation_is_a_measurement(points):
    class InStep(Own):
        def eval_step(self, batch):
            self.log({"seen": 1.0})

    class AtTheEnd(Own):
        def eval_step(self, batch):
            pass

        def on_eval_end(self, data):
            self.log({"seen": 2.0})

    assert own(InStep).evaluate(points, batch_size=64) == {"seen": 1.0}
    assert own(AtTheEnd).evaluate(points, batch_size=8) == {"seen": 2.0}


def test_an_evaluation_that_ends_without_a_metric_is_an_error(points):
    class Hoping(Own):
        def eval_step(self, batch):
            pass

        def on_eval_end(self, data):
            pass

    with pytest.raises(ConfigurationError, match="measured nothing"):
        own(Hoping).evaluate(points, batch_size=8)
