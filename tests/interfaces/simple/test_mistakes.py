"""The commonest mistakes with the simple interface: each is an error with a code, before the first
step where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.simple import Trainer
from tests.loops import build_linear
from tests.mistakes import raises

from .programs import cross_entropy, in_order, shuffled

FOREIGN = r"runtime=|clip_norm|NonFiniteGuard|configure_optimizers|\baccumulate\b|eval_data\b"
POINTS = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))


def build(
    kind: type[Trainer] = Trainer, *, loss_fn: Any = cross_entropy, **options: Any
) -> Trainer:
    model = build_linear()
    return kind(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, **options)


def train(kind: type[Trainer] = Trainer, **options: Any) -> Any:
    arguments = {"num_epochs": 1, "eval_dataloader": in_order(POINTS)} | options
    return build(kind).train(shuffled(POINTS), **arguments)


def returning(value: Any, method: str) -> type[Trainer]:
    """A trainer whose method calls the given one and returns something else."""

    def call(self: Trainer, *args: Any, **options: Any) -> Any:
        getattr(Trainer, method)(self, *args, **options)
        return value

    return type("Returning", (Trainer,), {method: call})


class NoSuper(Trainer):
    def __init__(self) -> None:
        self.model = build_linear()


class TooEarly(Trainer):
    def __init__(self) -> None:
        model = build_linear()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        super().__init__(model, None, cross_entropy)


class Log:
    def __call__(self, trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        pass


MISTAKES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a data set for the loader": (lambda: build().train(POINTS, 1), "no-loader", "TensorDataset"),  # type: ignore[arg-type]
    "num_epochs": (lambda: train(num_epochs=2.0), "number", "num_epochs=2.0"),
    "save_freq": (lambda: train(save_freq=0), "number", "save_freq=0"),
    "patience": (
        lambda: train(early_stopping_patience=0),
        "number",
        "early_stopping_patience=0",
    ),
    "a callback that was called": (lambda: train(callbacks=[None]), "call-arguments", "None"),
    "a callback's class": (lambda: train(callbacks=[Log]), "call-arguments", "Log"),
    "train_step without a result": (
        lambda: train(returning(None, "train_step")),
        "metrics-not-numbers",
        "`train_step` returned None",
    ),
    "a metric for each sample": (
        lambda: train(returning({"loss": torch.ones(3)}, "eval_step")),
        "metrics-not-numbers",
        "`eval_step` returned {'loss': tensor",
    ),
    "train_epoch without a result": (
        lambda: train(returning(None, "train_epoch")),
        "metrics-not-numbers",
        "`train_epoch`",
    ),
    "no pair": (lambda: train(returning(3, "_prepare_batch")), "not-a-pair", "int"),
    "a tensor of two rows": (
        lambda: train(returning(torch.ones(2, 6), "_prepare_batch")),
        "not-a-pair",
        "shape (2, 6)",
    ),
    "no super().__init__()": (
        lambda: NoSuper().train(in_order(POINTS), 1),
        "no-super-init",
        "NoSuper.__init__",
    ),
    "assigned before super().__init__()": (TooEarly, "no-super-init", "TooEarly.__init__"),
    "a file for the config": (lambda: build(config="run.yaml"), "config-kind", "'run.yaml'"),
    "a plateau per batch": (
        lambda: build(
            config={"training": {"scheduler_step_per_batch": True}}, scheduler=ReduceLROnPlateau
        ),
        "plateau-per-batch",
        "scheduler_step_per_batch",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistake_is_an_error_in_the_words_of_the_interface(what: str) -> None:
    make, code, value = MISTAKES[what]
    with raises(code, value, without=FOREIGN):
        make()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("weight_decay", "1e-2", "number"),
        ("max_grad_norm", 0, "number"),
        ("gradient_accumulation_steps", 2.0, "number"),
        ("scheduler_step_per_batch", "yes", "config-choice"),
        ("best_model_mode", "smallest", "config-choice"),
        ("compile", "model", "config-choice"),
    ],
)
def test_setting_that_makes_no_sense_is_named(name: str, value: Any, code: str) -> None:
    with raises(code, f"training.{name}", repr(value)):
        build(config={"training": {name: value}})


@pytest.mark.parametrize(
    ("config", "code", "name"),
    [
        ({"training": {"max_grad_nrom": 1.0}}, "config-misspelt", "training.max_grad_norm"),
        ({"training": {"accumulation_steps": 4}}, "config-misspelt", "gradient_accumulation_steps"),
        (
            SimpleNamespace(training=SimpleNamespace(weight_decays=1.0)),
            "config-misspelt",
            "training.weight_decay",
        ),
        ({"train": {"max_grad_norm": 1.0}}, "config-outside-section", "max_grad_norm"),
        ({"Training": SimpleNamespace(weight_decay=1.0)}, "config-outside-section", "weight_decay"),
        ({"max_grad_norm": 1.0}, "config-outside-section", "max_grad_norm"),
        ({"training": {}, "weight_decay": 0.1}, "config-outside-section", "weight_decay"),
    ],
)
def test_setting_that_would_not_be_read_is_refused(config: Any, code: str, name: str) -> None:
    with raises(code, name):
        build(config=config)


@pytest.mark.parametrize(
    "config",
    [
        {
            "training": {
                "batch_size": 8,
                "num_epochs": 3,
                "weight_decay_end": 0.1,
                "bias_weight_decay": 0.0,
            }
        },
        {"training": {"weight_decay": 0.1}, "weight_decay": 0.2},
        {"trainer": {"name": "mine"}, "train_data": "path"},
        SimpleNamespace(
            training=SimpleNamespace(max_steps=3), model=SimpleNamespace(weight_decay=0.1)
        ),
    ],
)
def test_names_of_the_users_own_are_left_alone(config: Any) -> None:
    build(config=config)


def test_model_that_takes_several_inputs_gets_all_but_the_last_of_a_longer_batch() -> None:
    inputs, targets = POINTS.tensors
    loader = DataLoader(TensorDataset(inputs, inputs, targets), batch_size=8)
    losses = Trainer(nn.Bilinear(6, 6, 3), None, cross_entropy).train(loader, 2)["train_loss"]
    assert losses[1] < losses[0]
