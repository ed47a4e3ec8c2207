"""Optimizers and schedulers as objects, classes, factories and mappings of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CyclicLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import TensorDataset

from loopwright import Schedule, Trainer
from loopwright.optim.build import build_optimizer, build_schedule

from ..loops import assert_same_model, build_linear, build_net, train_by_hand
from ..mistakes import raises

cross_entropy = nn.functional.cross_entropy
FACTORIES = {
    "a class": torch.optim.Adam,
    "a partial": partial(torch.optim.Adam, lr=0.01, betas=(0.8, 0.9)),
    "a lambda": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.3),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())
def test_what_a_factory_makes_is_fused_and_trains_as_the_fused_one_by_hand(points, factory):
    ours, theirs = build_net(), build_net()
    trainer = Trainer(ours, factory, cross_entropy, progress="silent")
    trainer.train(points, 2, batch_size=8)
    plain = factory(theirs.parameters())
    settings = {
        key: value for key, value in plain.defaults.items() if key not in ("foreach", "fused")
    }
    settings.pop("decoupled_weight_decay", None)
    train_by_hand(
        theirs, type(plain)(theirs.parameters(), **settings, fused=True), points, epochs=2
    )
    built = trainer.optimizers["optimizer"]
    assert built.param_groups[0]["fused"] is True
    assert {key: built.param_groups[0][key] for key in settings} == settings
    assert_same_model(ours, theirs)


def test_what_a_factory_made_stays_the_object_that_it_knows():
    """A factory may keep the optimizer, or a scheduler of it; what is changed there has to
    count."""
    made = []

    def factory(params):
        made.append(torch.optim.SGD(params, lr=0.1))
        made.append(StepLR(made[0], step_size=1, gamma=0.5))
        return made[0]

    built = build_optimizer(factory, build_linear().parameters)
    assert built is made[0]
    assert built.param_groups[0]["fused"]
    built.step()
    made[1].step()
    assert built.param_groups[0]["lr"] == 0.05


def test_hooks_that_a_factory_registers_are_called():
    called = []

    def factory(params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: called.append(1))
        return optimizer

    build_optimizer(factory, build_linear().parameters).step()
    assert called == [1]


def test_a_model_with_sparse_gradients_gets_no_fused_optimizer_which_has_none():
    model = nn.Embedding(4, 2, sparse=True)
    data = TensorDataset(torch.arange(4), torch.tensor([0, 1, 0, 1]))
    trainer = Trainer(model, partial(torch.optim.SGD, lr=0.1), cross_entropy, progress="silent")
    before = model.weight.detach().clone()
    trainer.train(data, 1, batch_size=2)
    assert not trainer.optimizers["optimizer"].param_groups[0]["fused"]
    assert not torch.equal(model.weight, before)


def test_groups_with_settings_of_their_own_keep_them_when_fused():
    net = build_linear()

    def factory(params):
        return torch.optim.AdamW(
            [{"params": [net.weight], "lr": 0.5}, {"params": [net.bias], "weight_decay": 0.0}],
            lr=0.1,
            weight_decay=0.2,
        )

    built = build_optimizer(factory, net.parameters)
    assert [(g["lr"], g["weight_decay"], g["fused"]) for g in built.param_groups] == [
        (0.5, 0.2, True),
        (0.1, 0.0, True),
    ]


def test_frozen_parameters_are_not_given_to_a_factory():
    net = build_net()
    net[0].requires_grad_(False)
    trainer = Trainer(net, partial(torch.optim.SGD, lr=0.1), cross_entropy)
    trainer.setup()
    held = {id(p) for p in trainer.optimizers["optimizer"].param_groups[0]["params"]}
    assert held == {id(p) for p in net.parameters() if p.requires_grad}


def test_models_and_optimizers_by_name_belong_together():
    models = {"left": build_linear(1), "right": build_linear(2)}
    optimizers = {"left": torch.optim.SGD, "right": partial(torch.optim.Adam, lr=0.5)}
    trainer = Trainer(models, optimizers, progress="silent")
    trainer.setup()
    for name, model in models.items():
        held = trainer.optimizers[name].param_groups[0]["params"]
        assert [id(p) for p in held] == [id(p) for p in model.parameters()]
    assert trainer.left is models["left"]


def test_configure_methods_may_assign_anything_to_self():
    class Own(Trainer):
        def configure_models(self):
            self.encoder, self.head = build_linear(1), nn.Linear(3, 1)

        def configure_optimizers(self):
            self.fast = torch.optim.SGD(self.head.parameters(), 0.1)
            self.slow = torch.optim.SGD(self.encoder.parameters(), 0.01)
            self.decay = ExponentialLR(self.fast, 0.9)
            self.warmup = Schedule(LinearLR(self.slow), every="update")

    trainer = Own()
    trainer.setup()
    assert list(trainer.models) == ["encoder", "head"]
    assert list(trainer.optimizers) == ["fast", "slow"]
    assert {name: s.interval for name, s in trainer.schedules.items()} == {
        "decay": "epoch",
        "warmup": "update",
    }


# Schedules


def test_schedulers_are_stepped_as_their_documentation_says():
    optimizer = torch.optim.SGD(build_linear().parameters(), 0.1, momentum=0.9)
    per_update = [OneCycleLR(optimizer, 1.0, 10), CyclicLR(optimizer, 0.1, 1.0)]
    per_epoch = [
        StepLR(optimizer, 1),
        ReduceLROnPlateau(optimizer),
        SequentialLR(optimizer, [StepLR(optimizer, 1)], []),
    ]
    assert [build_schedule(s, None).interval for s in per_update] == ["update"] * 2
    assert [build_schedule(s, None).interval for s in per_epoch] == ["epoch"] * 3


def test_a_scheduler_factory_is_given_its_optimizer_by_name():
    models = {"left": build_linear(1), "right": build_linear(2)}
    sgd = partial(torch.optim.SGD, lr=0.1)
    schedulers = {"right": partial(StepLR, step_size=1)}
    trainer = Trainer(models, {"left": sgd, "right": sgd}, scheduler=schedulers)
    trainer.setup()
    assert trainer.schedules["right"].scheduler.optimizer is trainer.optimizers["right"]


def test_a_scheduler_factory_without_a_named_optimizer_is_refused():
    models = {"left": build_linear(1), "right": build_linear(2)}
    sgd = partial(torch.optim.SGD, lr=0.1)
    trainer = Trainer(models, {"left": sgd, "right": sgd}, scheduler=partial(StepLR, step_size=1))
    with raises("scheduler-of-several", "`scheduler={'name of the optimizer': factory}`"):
        trainer.setup()


@pytest.mark.parametrize("given", [3, "adam", object()])
def test_what_is_neither_an_optimizer_nor_a_factory_is_refused_with_an_example(given):
    with raises("optimizer-argument", "partial(torch"):
        build_optimizer(given, build_linear().parameters)


def test_a_plateau_schedule_names_what_there_is_when_its_metric_is_missing():
    plateau = ReduceLROnPlateau(torch.optim.SGD(build_linear().parameters(), 0.1))
    with raises("plateau-metric", "'accuracy'", "Schedule(scheduler"):
        Schedule(plateau, metric="accuracy").step({"loss": 1.0})


def test_a_factory_that_returns_a_schedule_is_told_to_stand_inside_of_it():
    optimizer = torch.optim.SGD(build_linear().parameters(), lr=0.1)
    with raises("scheduler-returned", "`Schedule(function, every='update')`"):
        build_schedule(lambda made: Schedule(StepLR(made, 1), every="update"), optimizer)
