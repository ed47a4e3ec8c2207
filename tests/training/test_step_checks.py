"""Steps of one's own: those that train nothing, or the wrong thing, are errors; optimizer steps in
them are noticed."""

from __future__ import annotations

from math import nan

import pytest
import torch

from loopwright import ConfigurationError
from loopwright.callbacks import NonFiniteGuard
from tests.loops import (
    build_net,
)
from tests.mistakes import raises
from tests.training.own_steps import Own, cross_entropy, own, sgd

# Nothing is trained


class Returning(Own):
    def train_step(self, batch):
        return self.loss(batch)


def test_a_loss_that_is_returned_and_never_given_to_update_is_an_error_before_the_second_step(
    points,
):
    trainer = own(Returning)
    with raises("returned-loss-only", "update"):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 1


def test_backward_without_a_step_is_an_error_that_names_update(points):
    class Backward(Own):
        def train_step(self, batch):
            loss = self.loss(batch)
            loss.backward()
            return loss.item()

    trainer = own(Backward)
    with raises("backward-without-step"):
        trainer.train(points, 3, batch_size=8)
    assert trainer.begun == 1


def test_an_epoch_without_any_update_is_an_error_where_no_graph_was_returned(points):
    class Measuring(Own):
        def train_step(self, batch):
            return self.loss(batch).item()

    trainer = own(Measuring)
    with raises("epoch-without-update", "5 steps"):
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

    with raises(
        "all-updates-skipped", "Nothing was trained: all 5 updates of optimizer 'optimizer'"
    ):
        own(Nans, callbacks=[NonFiniteGuard("skip")]).train(points, 1, batch_size=8)


def test_a_loss_of_another_optimizer_is_an_error_before_the_first_step(points):
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
    with pytest.raises(
        ConfigurationError, match=r"'second'.*none of its 6 parameters has a gradient"
    ):
        trainer.train(points, 1, batch_size=8)


# Evaluations


def test_an_update_in_an_evaluation_is_refused_and_changes_nothing(points):
    class OnTestData(Own):
        def eval_step(self, batch):
            with torch.enable_grad():
                loss = self.loss(batch)
                self.update(loss)
            return loss

    net = build_net()
    trainer = OnTestData(net, sgd, cross_entropy, progress="silent")
    with raises("update-in-evaluation", "train on the evaluation data"):
        trainer.train(points, 1, points, batch_size=8)
    trained, before = trainer.progress.update, net[0].weight.detach().clone()
    with raises("update-in-evaluation", "train on the evaluation data"):
        trainer.evaluate(points, batch_size=8)
    assert trained == 5
    assert torch.equal(before, net[0].weight)


def test_an_eval_step_that_returns_nothing_is_an_error_at_the_first_batch(points):
    class Silent(Own):
        measured = 0

        def eval_step(self, batch):
            self.measured += 1

    trainer = Silent(build_net(), sgd, cross_entropy, progress="silent")
    with raises("evaluation-without-metrics", "measured nothing"):
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
