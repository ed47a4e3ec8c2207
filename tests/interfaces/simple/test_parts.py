"""The simple interface's optimizer, scheduler, device, loss and config, assigned by a subclass or
from outside."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import TensorDataset

from loopwright.data.random import seed_everything
from loopwright.interfaces.simple import Trainer
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    build_linear,
    build_net,
    train_by_hand,
)
from tests.mistakes import raises

from .programs import AccuracyTrainer, adam, cross_entropy, in_order, shuffled


class Assigning(Trainer):
    """Makes its own optimizer, scheduler, device and loss, as one does in a subclass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, None, None)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.scheduler = StepLR(self.optimizer, 1, gamma=0.5)
        self.device = torch.device("cpu")
        self.loss_fn = nn.CrossEntropyLoss()


def test_what_a_subclass_assigns_is_what_trains(points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    optimizer = adam(by_hand)
    train_by_hand(by_hand, optimizer, points, epochs=2, every_epoch=StepLR(optimizer, 1, gamma=0.5))
    seed_everything(0)
    trainer = Assigning(model)
    trainer.train(shuffled(points), 2)
    assert_same_model(model, by_hand)
    assert_same_optimizer(trainer.optimizer, optimizer)
    assert trainer.scheduler.last_epoch == 2


def test_scheduler_assigned_goes_by_the_config_and_may_be_taken_away(points: TensorDataset) -> None:
    model = build_linear()
    optimizer = adam(model)
    trainer = Trainer(
        model, optimizer, cross_entropy, {"training": {"scheduler_step_per_batch": True}}
    )
    trainer.scheduler = first = StepLR(optimizer, 100)
    trainer.train(shuffled(points), 2)
    trainer.scheduler = None
    trainer.train(shuffled(points), 1)
    assert first.last_epoch == 10
    assert trainer.scheduler is None
    trainer.scheduler = partial(OneCycleLR, max_lr=0.1, total_steps=20)
    trainer.train(shuffled(points), 1)
    assert trainer.scheduler.last_epoch == 5


def test_device_assigned_is_where_model_and_batches_go() -> None:
    trainer = Trainer(nn.Linear(2, 2), None, None)
    trainer.device = "meta"  # type: ignore[assignment]
    assert trainer.device == torch.device("meta")
    assert trainer.model.weight.device.type == "meta"
    assert trainer._prepare_batch(torch.ones(2))[0].device.type == "meta"


def test_device_assigned_while_training_is_refused(points: TensorDataset) -> None:
    def move(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        trainer.device = "meta"  # type: ignore[assignment]

    with raises("device-in-run", "meta"):
        Trainer(build_linear(), None, cross_entropy).train(shuffled(points), 1, callbacks=[move])


def test_config_assigned_is_read_again(points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    train_by_hand(by_hand, adam(by_hand), points, clip_norm=0.1, accumulate=2)
    seed_everything(0)
    trainer = Trainer(model, adam(model), cross_entropy)
    trainer.config = config = {"training": {"max_grad_norm": 0.1, "gradient_accumulation_steps": 2}}
    trainer.train(shuffled(points), 1)
    assert_same_model(model, by_hand)
    assert trainer.config is config


# ReduceLROnPlateau


def plateau(kind: type[Trainer], mode: Any, config: Any = None) -> Trainer:
    model = build_linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return kind(
        model,
        optimizer,
        cross_entropy,
        config,
        scheduler=ReduceLROnPlateau(optimizer, mode, patience=0),
    )


def test_plateau_watches_the_metric_of_the_best_model(points: TensorDataset) -> None:
    trainer = plateau(AccuracyTrainer, "max")
    history = trainer.train(
        shuffled(points), 4, in_order(points), best_model_metric="eval_accuracy"
    )
    assert trainer.scheduler.best == max(history["eval_accuracy"])
    assert trainer.scheduler.last_epoch == 4


def test_plateau_that_would_take_an_improvement_for_its_opposite_is_refused(
    points: TensorDataset,
) -> None:
    with raises("plateau-mode", 'mode="min"', "'eval_accuracy'"):
        plateau(AccuracyTrainer, "min").train(
            shuffled(points), 1, in_order(points), best_model_metric="eval_accuracy"
        )
    with raises("plateau-mode", 'mode="max"', "'eval_loss'"):
        plateau(Trainer, "max").train(shuffled(points), 1, in_order(points))
    with raises("plateau-mode", "'eval_loss'"):
        plateau(Trainer, "max").train_epoch(shuffled(points), in_order(points))


def test_plateau_of_a_metric_that_no_epoch_has_is_refused_before_the_first_step(
    points: TensorDataset,
) -> None:
    trainer = plateau(Trainer, "max")
    with raises("unknown-best-metric", "eval_accuracy"):
        trainer.train(shuffled(points), 1, in_order(points), best_model_metric="eval_accuracy")


# Settings for optimizers


def decays(given: Any, value: float, **options: Any) -> tuple[list[float], Trainer]:
    model = nn.Linear(2, 2)
    groups = given(model) if callable(given) else given
    optimizer = options.pop("kind", torch.optim.AdamW)(groups, **options)
    trainer = Trainer(model, optimizer, None, {"training": {"weight_decay": value}})
    return [group["weight_decay"] for group in optimizer.param_groups], trainer


def both(model: nn.Module, **own: float) -> list[dict[str, Any]]:
    return [{"params": [model.weight]}, {"params": [model.bias], **own}]


def test_weight_decay_goes_to_groups_without_their_own(capsys: Any) -> None:
    assert decays(lambda model: model.parameters(), 0.3)[0] == [0.3]
    assert (
        "training.weight_decay=0.3 is used in 1 of 1 parameter groups of the optimizer (AdamW)"
        in capsys.readouterr().out
    )
    assert decays(partial(both, weight_decay=0.0), 0.3)[0] == [0.3, 0.0]
    assert "in 1 of 2 parameter groups" in capsys.readouterr().out
    assert decays(lambda model: model.parameters(), 0.3, kind=torch.optim.SGD, lr=0.1)[0] == [0.3]


def test_weight_decay_that_the_optimizer_has_of_its_own_is_kept_and_said(capsys: Any) -> None:
    assert decays(lambda model: model.parameters(), 0.1, weight_decay=0.5)[0] == [0.5]
    assert "is used in 0 of 1 parameter groups of the optimizer (AdamW)" in capsys.readouterr().out
    assert decays(partial(both, weight_decay=0.1), 0.3, kind=torch.optim.SGD, lr=0.1)[0] == [
        0.0,
        0.1,
    ]
    assert "is used in 0 of 2 parameter groups of the optimizer (SGD)" in capsys.readouterr().out
    Trainer(nn.Linear(2, 2), torch.optim.Rprop, None, {"training": {"weight_decay": 0.1}})
    assert "0 of 1 parameter groups of the optimizer (Rprop)" in capsys.readouterr().out
    assert decays(lambda model: model.parameters(), 0.1, weight_decay=0.1)[0] == [0.1]
    assert not capsys.readouterr().out
