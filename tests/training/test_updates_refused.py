"""Updates of several optimizers that would train nothing, or the wrong thing, are refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from loopwright import ConfigurationError, Trainer
from tests.loops import assert_same_model, build_linear, build_net
from tests.mistakes import raises
from tests.training.test_updates import cross_entropy, one_sgd, two_sgd


def step_with(*choices):
    """A trainer whose steps update these optimizers in turn, with a new loss each."""

    class Own(Trainer):
        def train_step(self, batch):
            for choice in choices[self.progress.step % len(choices)]:
                loss = cross_entropy(self.model(batch[0]), batch[1])
                self.update(loss, choice)
            return loss

    def train(points, **options):
        net = build_net()
        Own(net, two_sgd(net), progress="silent", **options).train(points, 1, batch_size=8)

    return train


WRONG = {
    "`self.update(loss)` with two optimizers, neither of them named": (
        None,
        r"ambiguous.*update\(loss, 'vectors'\); for a loss that .* share: update\(loss, \['vectors', 'matrices'\]\)",
    ),
    '`self.update(loss, ["vectors", "matrix"])`, where one name is wrong': (
        ["vectors", "matrix"],
        r"'matrix' is not one of this trainer's optimizers \(vectors, matrices\)",
    ),
    "an optimizer named twice for one loss": (
        ["vectors", "vectors"],
        r"belong to more than one of them and would be updated twice",
    ),
    "a list of optimizers in another list": (
        [["vectors", "matrices"]],
        r"\['vectors', 'matrices'\] is not one of this",
    ),
}


@pytest.mark.parametrize(("choice", "match"), WRONG.values(), ids=WRONG.keys())
def test_an_update_of_optimizers_that_cannot_be_found_is_refused(points, choice, match):
    next(what for what, wrong in WRONG.items() if wrong == (choice, match))
    with pytest.raises(ConfigurationError, match=match):
        step_with([choice])(points)


def test_an_optimizer_that_the_loss_does_not_reach_is_refused(points):
    class Partial(Trainer):
        def forward(self, inputs):
            return nn.functional.linear(inputs, self.model.weight, self.model.bias.detach())

    net = build_linear()
    with pytest.raises(ConfigurationError, match="'vectors' cannot be updated"):
        Partial(net, two_sgd(net), cross_entropy, progress="silent").train(points)
    assert_same_model(net, build_linear())


@pytest.mark.parametrize("retain_graph", [False, True])
def test_the_second_of_two_updates_with_one_loss_says_that_one_update_does_both(
    points, retain_graph
):
    class Twice(Trainer):
        def train_step(self, batch):
            loss = cross_entropy(self.model(batch[0]), batch[1])
            self.update(loss, "matrices", retain_graph=retain_graph)
            self.update(loss, "vectors")

    net = build_net()
    with pytest.raises(RuntimeError, match=r"a second time|by an inplace operation") as caught:
        Twice(net, two_sgd(net), progress="silent").train(points)
    assert (
        "update them together: `self.update(loss, ['vectors', 'matrices'])`"
        in caught.value.__notes__[-1]
    )


def test_optimizers_that_hold_the_same_parameters_are_refused(points):
    net, factory = build_linear(), partial(torch.optim.SGD, lr=0.1)
    with raises("shared-parameters", "2 of their 2 parameters"):
        Trainer(net, {"a": factory, "b": factory}, cross_entropy, progress="silent").train(points)
    assert_same_model(net, build_linear())


def test_the_default_step_refuses_an_optimizer_of_another_model(points):
    models = {"model": build_linear(1), "teacher": build_linear(2)}
    optimizers = {name: one_sgd(model.parameters()) for name, model in models.items()}
    trainer = Trainer(models, optimizers, cross_entropy, progress="silent")
    with pytest.raises(
        ConfigurationError, match=r"'teacher' holds none of its parameters. Override"
    ):
        trainer.train(points)
