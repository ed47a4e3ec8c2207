"""What newcomers give as data and write in subclasses, and how much of a traceback they see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError, DataError, Trainer
from tests.mistakes import raises

from .loops import assert_same_model, build_linear

sgd = partial(torch.optim.SGD, lr=0.1)
cross_entropy = nn.functional.cross_entropy


def build(
    model: Any = None, optimizer: Any = sgd, loss_fn: Any = cross_entropy, **options: Any
) -> Trainer:
    return Trainer(
        build_linear() if model is None else model,
        optimizer,
        loss_fn,
        **({"progress": "silent"} | options),
    )


# Data


def test_tensors_and_arrays_are_data_as_a_data_set_of_them_is(points):
    """Inputs and targets as a tuple, as numpy's arrays and as a dict: the same weights, bit for
    bit."""
    inputs, targets = points.tensors
    expected = build()
    expected.train(points, 2, points, batch_size=8)
    kinds = [
        (inputs, targets),
        (inputs.numpy(), targets.numpy()),
        {"input": inputs, "label": targets},
    ]
    for data in kinds:
        trainer = build()
        trainer.train(data, 2, data, batch_size=8)
        assert_same_model(trainer.model, expected.model)
        assert trainer.history.epochs == expected.history.epochs
        assert trainer.evaluate(data) == expected.evaluate(points)


def test_a_tensor_alone_is_data_without_targets(points):
    inputs = points.tensors[0]
    trainer = build(nn.Linear(6, 6), loss_fn=lambda outputs: outputs.square().mean())
    trainer.train(inputs, 1, batch_size=8)
    assert (trainer.progress.update, trainer.progress.sample) == (5, 37)
    assert torch.equal(trainer.predict(inputs), trainer.predict(TensorDataset(inputs)))
    assert trainer.predict(inputs.numpy()).shape == (37, 6)


DATA: dict[str, tuple[Callable[[TensorDataset], Any], str]] = {
    "`(x, y)` of different lengths": (
        lambda d: (d.tensors[0], d.tensors[1][:30]),
        "different-lengths",
    ),
    "`[x, y]` instead of `(x, y)`": (lambda d: list(d.tensors), "list-is-batches"),
    "`list(zip(x, y))` without `batch_size`": (
        lambda d: list(zip(*d.tensors, strict=True)),
        "list-is-batches",
    ),
    "`(train_set, test_set)`": (lambda d: (d, d), "not-columns"),
    "`{'train': loader}`": (lambda d: {"train": DataLoader(d)}, "not-columns"),
    "`(frame, series)`": (
        lambda d: (pd.DataFrame({"a": [1.0]}), pd.Series([1])),
        "not-columns",
    ),
    "a DataFrame": (lambda d: pd.DataFrame({"a": [1.0]}), "not-iterable"),
    "`train('data/train.csv')`": (lambda d: "data/train.csv", "not-iterable"),
    "`train(TensorDataset)`, the class": (lambda d: TensorDataset, "not-iterable"),
}


@pytest.mark.parametrize("what", DATA)
def test_data_that_is_none_is_told_what_to_write(points, what):
    make, match = DATA[what]
    with raises(match):
        build().train(make(points), 1)


def test_data_without_targets_for_a_loss_that_wants_them(mistake, points):
    with mistake(
        "Data",
        "`train(x)` without targets",
        ConfigurationError,
        match="because the batches have no targets",
    ):
        build().train(points.tensors[0], 1)


def test_a_loss_that_does_not_take_outputs_and_targets(mistake, points):
    with mistake(
        "Arguments",
        "`loss_fn=lambda outputs: ...`",
        ConfigurationError,
        match=r"called with \(outputs, targets\)",
    ):
        build(loss_fn=lambda outputs: outputs.mean()).train(points, 1)


# Subclasses

STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "`def training_step(self, batch, batch_idx)`": (
        {"training_step": lambda self, batch, batch_idx: None},
        r"would never be called; did you mean train_step\?",
    ),
    "`def validation_step(self, batch, batch_idx)`": (
        {"validation_step": lambda self, batch, batch_idx: None},
        r"did you mean eval_step\?",
    ),
    "`def train_dataloader(self)`": ({"train_dataloader": lambda self: None}, "configure_data"),
    "`def train_step(self, batch, batch_idx)`": (
        {"train_step": lambda self, batch, batch_idx: None},
        r"train_step does not take the arguments it is called with \(batch\): .*'batch_idx'",
    ),
    "`configure_optimizers` that returns": (
        {"configure_optimizers": lambda self: sgd(self.model.parameters())},
        r"returned a SGD, but its return value is not used: assign the value instead, as in `self.optimizer = ...`",
    ),
}


@pytest.mark.parametrize("what", STEPS)
def test_a_subclass_as_for_another_framework_is_told_what_to_write(mistake, points, what):
    methods, match = STEPS[what]
    kind = type("Mine", (Trainer,), methods)
    with mistake("Arguments", what, ConfigurationError, match=match):
        kind(
            build_linear(), None if "configure_optimizers" in methods else sgd, cross_entropy
        ).train(points, 1)


def test_a_constructor_that_forgets_the_trainers_says_so(mistake, points):
    class Mine(Trainer):
        def __init__(self) -> None:
            self.net = build_linear()

    with mistake(
        "Arguments", "`__init__` without `super().__init__()`", AttributeError, match="call `super"
    ):
        Mine().train(points, 1)


def test_targets_that_do_not_fit_are_shown_beside_the_outputs(points):
    inputs, targets = points.tensors
    for wrong in (targets.float(), targets + 7):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            build().train((inputs, wrong), 1)
        assert "a float32 tensor of shape (32, 3) as outputs and" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "make", [lambda b: (x for x in b), lambda b: zip(*zip(*b, strict=True), strict=True)]
)
def test_an_iterator_for_several_epochs_is_refused_before_the_first(mistake, points, make):
    batches = [(points.tensors[0], points.tensors[1])]
    trainer, data = build(), make(batches)
    what = f"a {type(data).__name__} as data of several epochs"
    with mistake("Data", what, DataError, match="can be used only once, and num_epochs=2"):
        trainer.train(data, 2)
    assert trainer.progress.step == 0
    assert len(build().train(make(batches), 1).epochs) == 1


class Pair(Trainer):
    def eval_step(self, batch: Any) -> Any:
        inputs, targets = batch
        outputs = self.forward(inputs)
        return self.compute_loss(outputs, targets), (outputs.argmax(1) == targets).float().mean()


class Counted(Trainer):
    def eval_step(self, batch: Any) -> Any:
        inputs, targets = batch
        return cross_entropy(self.forward(inputs), targets, reduction="sum"), len(targets)


class Logs(Trainer):
    def eval_step(self, batch: Any) -> Any:
        loss = self.compute_loss(self.forward(batch[0]), batch[1])
        self.log({"accuracy": loss})
        return loss


def test_a_metric_as_the_second_part_of_a_pair_is_not_taken_for_a_count(mistake, points):
    what = "`return loss, accuracy` in `eval_step`"
    section = "Steps that train nothing, or the wrong thing"
    with mistake(section, what, ConfigurationError, match="'accuracy': accuracy"):
        Pair(build_linear(), sgd, cross_entropy, progress="silent").evaluate(points)
    model = build_linear()
    measured = Counted(model, sgd, cross_entropy, progress="silent").evaluate(points, batch_size=8)
    expected = cross_entropy(model(points.tensors[0]), points.tensors[1])
    assert measured["loss"] == pytest.approx(expected.item(), rel=1e-6)


def test_a_metric_logged_for_every_batch_of_an_evaluation_is_refused(mistake, points):
    trainer = Logs(build_linear(), sgd, cross_entropy, progress="silent")
    section = "Steps that train nothing, or the wrong thing"
    with mistake(
        section,
        "`self.log({...})` in `eval_step`",
        ConfigurationError,
        match="only the last value would count",
    ):
        trainer.evaluate(points, batch_size=8)


def test_the_first_line_names_an_activation_that_the_loss_applies_too(mistake, points, capsys):
    model = nn.Sequential(build_linear(), nn.Sequential(nn.Softmax(1)))
    build(model, loss_fn=nn.CrossEntropyLoss(), progress="lines").train(points, 1)
    line = capsys.readouterr().out.splitlines()[0]
    assert "ends with Softmax, and CrossEntropyLoss applies one itself" in line
    mistake.said(
        "Steps that train nothing, or the wrong thing", "a model that ends with `nn.Softmax`", line
    )
    build(build_linear(), loss_fn=nn.CrossEntropyLoss(), progress="lines").train(points, 1)
    assert "Softmax" not in capsys.readouterr().out


def test_a_one_cycle_schedule_that_is_too_short_is_refused_before_the_first_step(mistake, points):
    one_cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1)
    trainer = build(scheduler=partial(one_cycle, total_steps=9))
    with mistake(
        "Arguments",
        "`OneCycleLR(total_steps=9)` in a run of 10 updates",
        ConfigurationError,
        match="has 10",
    ):
        trainer.train(points, 2, batch_size=8)
    assert trainer.progress.step == 0
    assert build(scheduler=partial(one_cycle, total_steps=10)).train(points, 2, batch_size=8).epochs


def test_a_plateau_schedule_says_which_metric_it_watches(points, capsys):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    build(scheduler=plateau, progress="lines").train(points, 1, points)
    assert "ReduceLROnPlateau stepped once per epoch by eval_loss" in capsys.readouterr().out
    build(scheduler=plateau, progress="lines").train(points, 1)
    assert "stepped once per epoch by loss" in capsys.readouterr().out
