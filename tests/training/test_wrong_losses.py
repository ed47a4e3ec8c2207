"""Losses that cannot be trained, accumulation that would go wrong, arguments that are no amounts:
all are refused."""

from __future__ import annotations

from functools import partial
from math import inf, nan

import pytest
import torch
from torch import nn

from loopwright import ConfigurationError, Trainer
from loopwright.callbacks import NonFiniteGuard
from tests.loops import assert_same_model, batches, build_linear, build_net, train_by_hand
from tests.mistakes import raises
from tests.training.own_steps import Own, cross_entropy, own, sgd

# Losses that cannot be trained

LOSSES = {
    "a loss made a number by `.item()`": (
        lambda loss: loss.item(),
        r"is .*without `\.item\(\)`",
    ),
    "a loss without its graph (`.detach()`)": (
        lambda loss: loss.detach(),
        r"has no graph.*torch\.no_grad",
    ),
    "a complex loss": (
        lambda loss: loss.to(torch.complex64),
        "is .*: return one tensor with a real number",
    ),
    "a loss that was not reduced": (lambda loss: loss.expand(3), r"has shape \(3,\): reduce it"),
    "None in place of a loss": (lambda loss: None, "is .*: return one tensor"),
    "a dict in place of a loss": (
        lambda loss: {"loss": loss},
        "is a dict.*: return one tensor",
    ),
}


@pytest.mark.parametrize("guard", ["raise", "off"])
@pytest.mark.parametrize(("what", "case"), LOSSES.items(), ids=LOSSES.keys())
def test_a_loss_that_cannot_be_trained_is_named(points, what, case, guard):
    change, match = case

    class Wrong(Own):
        def train_step(self, batch):
            self.update(change(self.loss(batch)))

    trainer = own(Wrong, callbacks=[NonFiniteGuard(guard)])
    with pytest.raises(ConfigurationError, match="`train_step` " + match):
        trainer.train(points, 1, batch_size=8)


@pytest.mark.parametrize("count", [-4, nan, torch.tensor(-4), torch.tensor([1, 2]), "4"], ids=repr)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_count_that_is_no_number_of_items_is_refused(points, count, accumulate):
    class Counting(Own):
        def train_step(self, batch):
            self.update(self.loss(batch), count=count)

    with raises("not-a-loss"):
        own(Counting, accumulate=accumulate).train(points, 1, batch_size=8)


def test_an_error_of_a_hook_in_an_update_stays_what_it_is(points):
    class Failing(Own):
        def on_optimizer_start(self, optimizer):
            raise RuntimeError("mine") from KeyError("cause")

    trainer = Failing(build_net(), sgd, cross_entropy, progress="silent")
    with pytest.raises(RuntimeError, match="mine") as caught:
        trainer.train(points, 1, batch_size=8)
    assert isinstance(caught.value.__cause__, KeyError)


# Accumulation with several optimizers


class Pair(Trainer):
    """Two networks, of which the second is trained by some steps only."""

    def is_due(self) -> bool:
        return True

    def train_step(self, batch):
        loss = cross_entropy(self.first(batch[0]), batch[1])
        self.update(loss, "first_optimizer")
        if self.is_due():
            other = cross_entropy(self.second(batch[0]), batch[1])
            self.update(other, "second_optimizer")
        return loss

    def configure_models(self):
        self.first, self.second = build_linear(1), build_linear(2)

    def configure_optimizers(self):
        self.first_optimizer = sgd(self.first.parameters())
        self.second_optimizer = sgd(self.second.parameters())


def test_an_optimizer_updated_in_every_second_step_of_a_window_is_refused(points):
    class EverySecond(Pair):
        def is_due(self):
            return self.progress.step % 2 == 0

    with raises("partial-window"):
        EverySecond(accumulate=2, progress="silent").train(points, 1, batch_size=4)


def test_an_optimizer_updated_twice_in_a_step_of_a_window_is_refused(points):
    class Again(Pair):
        def train_step(self, batch):
            super().train_step(batch)
            self.update(cross_entropy(self.second(batch[0]), batch[1]), "second_optimizer")

    with raises("partial-window", "updated 2 times in step 1"):
        Again(accumulate=2, progress="silent").train(points, 1, batch_size=4)
    Again(progress="silent").train(points, 1, batch_size=4)


def test_an_optimizer_that_goes_by_updates_has_windows_of_big_batches(points):
    class EveryThird(Pair):
        def is_due(self):
            return self.progress.update % 3 == 0

    trainer = EveryThird(accumulate=2, progress="silent")
    trainer.train(points, 1, batch_size=4)
    theirs = build_linear(2)
    optimizer = sgd(theirs.parameters())
    pending = list(batches(points, 4, epoch=0))
    windows = [pending[at : at + 2] for at in range(0, len(pending), 2)]
    for window in windows[::3]:
        total = sum(len(y) for _, y in window)
        for x, y in window:
            (cross_entropy(theirs(x), y) / (total / len(y))).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same_model(trainer.second, theirs)
    assert all(param.grad is None for param in trainer.parameters())


class Sharing(Pair):
    def configure_models(self):
        super().configure_models()
        self.second.weight = self.first.weight


def test_a_parameter_of_two_optimizers_is_refused_where_gradients_are_accumulated(points):
    with pytest.raises(ConfigurationError, match=r"second\.weight"):
        Sharing(accumulate=2, progress="silent").train(points, 1, batch_size=8)


def test_a_parameter_of_two_optimizers_gets_the_gradients_of_each_apart_without_accumulation(
    points,
):
    trainer = Sharing(progress="silent")
    trainer.train(points, 1, batch_size=8)
    first, second = build_linear(1), build_linear(2)
    second.weight = first.weight
    sides = [(net, sgd(net.parameters())) for net in (first, second)]
    for x, y in batches(points, 8, epoch=0):
        for net, optimizer in sides:
            for _, every in sides:
                every.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    assert_same_model(trainer.first, first)
    assert_same_model(trainer.second, second)


# Arguments

ARGUMENTS = {
    "`clip_norm=-1`": {"clip_norm": -1},
    "`clip_norm=0`": {"clip_norm": 0},
    "`clip_norm=float('nan')`": {"clip_norm": nan},
    "`clip_value=-0.5`": {"clip_value": -0.5},
    "`clip_value=True`": {"clip_value": True},
    "`accumulate=0`": {"accumulate": 0},
    "`accumulate=2.0`": {"accumulate": 2.0},
    "`accumulate=True`": {"accumulate": True},
}


@pytest.mark.parametrize(("what", "options"), ARGUMENTS.items(), ids=ARGUMENTS.keys())
def test_a_setting_that_would_train_the_wrong_way_is_refused_at_construction(what, options):
    with pytest.raises(ConfigurationError, match=r"\w+=.*: use"):
        Trainer(build_net(), sgd, cross_entropy, **options)


def test_an_infinite_norm_measures_and_clips_nothing(points):
    ours, theirs = build_net(), build_net()
    Trainer(ours, sgd(ours.parameters()), cross_entropy, clip_norm=inf, progress="silent").train(
        points, batch_size=8
    )
    train_by_hand(theirs, sgd(theirs.parameters()), points)
    assert_same_model(ours, theirs)


def test_a_setting_assigned_between_two_calls_is_used_and_checked(points):
    ours, theirs = build_net(), build_net()
    trainer = Trainer(ours, sgd(ours.parameters()), cross_entropy, seed=None, progress="silent")
    trainer.train(points, num_updates=0, batch_size=8)
    trainer.clip_norm = 0.01
    torch.manual_seed(3)
    trainer.train([tuple(points.tensors)])
    torch.manual_seed(3)
    optimizer = sgd(theirs.parameters())
    cross_entropy(theirs(points.tensors[0]), points.tensors[1]).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    optimizer.step()
    assert_same_model(ours, theirs)
    trainer.clip_norm = -1
    with pytest.raises(ConfigurationError, match="clip_norm=-1"):
        trainer.train([tuple(points.tensors)])


@pytest.mark.parametrize(
    ("what", "options"),
    {
        "a learning rate that is NaN": {"lr": nan},
        "a learning rate that is infinite": {"lr": inf},
        "a weight decay that is NaN": {"lr": 0.1, "weight_decay": nan},
    }.items(),
)
def test_options_of_an_optimizer_that_are_no_numbers_are_refused(points, what, options):
    trainer = Trainer(
        build_net(), partial(torch.optim.SGD, **options), cross_entropy, progress="silent"
    )
    with pytest.raises(ConfigurationError, match="use a finite number"):
        trainer.train(points, batch_size=8)


def test_a_negative_learning_rate_is_refused(points):
    net = build_net()
    optimizer = sgd(net.parameters())
    optimizer.param_groups[0]["lr"] = -0.1  # torch looks at it only once
    with pytest.raises(ConfigurationError, match=r"lr=-0\.1"):
        Trainer(net, optimizer, cross_entropy, progress="silent").train(points, batch_size=8)


LIMITS = {
    "`num_epochs=-1`": {"num_epochs": -1},
    "`num_epochs=1.5`": {"num_epochs": 1.5},
    "`num_epochs=True`": {"num_epochs": True},
    "`num_updates=-1`": {"num_updates": -1},
    "`max_time=float('nan')`": {"max_time": nan},
}


@pytest.mark.parametrize(("what", "limit"), LIMITS.items(), ids=LIMITS.keys())
def test_a_limit_that_is_no_amount_is_refused(points, what, limit):
    with pytest.raises(ConfigurationError, match=r"0 or more|a whole number"):
        Trainer(build_net(), sgd, cross_entropy, progress="silent").train(
            points, batch_size=8, **limit
        )
