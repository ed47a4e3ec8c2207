"""Models and optimizers that are assigned after construction: the new ones are trained and
evaluated, or refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright import Trainer
from tests.loops import assert_same_model, build_net, evaluate_by_hand, train_by_hand
from tests.mistakes import raises

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def test_a_model_and_its_optimizer_assigned_between_two_calls_are_trained_as_by_hand(points):
    first, second, theirs = build_net(1), build_net(2, dropout=0.0), build_net(2, dropout=0.0)
    trainer = Trainer(first, sgd, cross_entropy, progress="silent", seed=None)
    trainer.train(points, 1, batch_size=100)
    before = {name: value.clone() for name, value in first.state_dict().items()}
    trainer.model, trainer.optimizer = second, sgd(second.parameters())
    trainer.train(points, 3, batch_size=100)
    train_by_hand(theirs, sgd(theirs.parameters()), points, epochs=3, batch_size=100)
    torch.testing.assert_close(dict(second.state_dict()), dict(theirs.state_dict()))
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())
    assert trainer.models["model"] is second


def test_a_model_and_optimizer_replaced_as_training_starts_are_trained_and_evaluated(points):
    other, theirs = build_net(2), build_net(2)

    class Replacing(Trainer):
        def on_train_start(self):
            self.model, self.optimizer = other, sgd(other.parameters())

    trainer = Replacing(build_net(1), sgd, cross_entropy, progress="silent")
    history = trainer.train(points, 2, points, batch_size=8)
    train_by_hand(theirs, sgd(theirs.parameters()), points, epochs=2)
    assert_same_model(other, theirs)
    assert history.epochs[-1]["eval_loss"] == pytest.approx(
        evaluate_by_hand(theirs, points), rel=1e-6
    )


def test_a_model_put_in_for_an_evaluation_alone_is_evaluated_in_eval_mode_and_training_goes_on_with_the_other(
    points, tmp_path
):
    other, ours, theirs = build_net(2), build_net(1), build_net(1)

    class Swapping(Trainer):
        def on_eval_start(self, data):
            self.model = other

        def on_eval_end(self, data):
            self.model = ours

    history = Swapping(ours, sgd, cross_entropy, progress="silent", run_dir=tmp_path / "run").train(
        points, 2, points, batch_size=8
    )
    train_by_hand(theirs, sgd(theirs.parameters()), points, epochs=2)
    assert_same_model(ours, theirs)
    expected = pytest.approx(evaluate_by_hand(other, points), rel=1e-6)
    assert [row["eval_loss"] for row in history.epochs] == [expected, expected]


def test_an_optimizer_left_with_the_old_models_parameters_is_refused(points):
    trainer = Trainer(build_net(1), sgd, cross_entropy, progress="silent")
    trainer.train(points, 1, batch_size=8)
    trainer.model = build_net(2)
    with raises("foreign-parameters", "6 of 6"):
        trainer.train(points, 1, batch_size=8)


def test_a_scheduler_left_with_the_old_optimizer_is_refused(points):
    net = build_net()
    trainer = Trainer(
        net, sgd, cross_entropy, scheduler=partial(StepLR, step_size=1), progress="silent"
    )
    trainer.train(points, 1, batch_size=8)
    trainer.optimizer = sgd(net.parameters())
    with raises("foreign-scheduler", "'scheduler'"):
        trainer.train(points, 1, batch_size=8)
    trainer.scheduler = StepLR(trainer.optimizer, step_size=1)
    trainer.train(points, 1, batch_size=8)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_replacing_a_model_while_a_run_directory_is_written_is_refused(points, tmp_path):
    class Replacing(Trainer):
        def on_train_start(self):
            self.model = build_net(2)
            self.optimizer = sgd(self.model.parameters())

    trainer = Replacing(
        build_net(1), sgd, cross_entropy, progress="silent", run_dir=tmp_path / "run"
    )
    with raises("replaced-in-training", "model 'model'"):
        trainer.train(points, 1, batch_size=8)


# What the seed covers


class Builder(Trainer):
    """Makes its own model."""

    def configure_models(self) -> None:
        self.model = nn.Linear(3, 1)

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


def weights_after_a_run(seed: int) -> torch.Tensor:
    trainer = Builder(loss_fn=nn.MSELoss(), seed=seed, progress="silent")
    trainer.train(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), num_epochs=1)
    return trainer.model.weight.detach().clone()


def test_models_that_the_trainer_builds_are_covered_by_its_seed() -> None:
    first = weights_after_a_run(seed=1)
    torch.rand(7)
    assert torch.equal(first, weights_after_a_run(seed=1))
    assert not torch.equal(first, weights_after_a_run(seed=2))
