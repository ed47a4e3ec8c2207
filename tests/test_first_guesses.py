"""What people write before they have read a page, or who come from another framework: it works, or
the error says what to write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

import loopwright
from loopwright import Callback, ConfigurationError, DataError, Trainer
from loopwright.callbacks import Checkpoints, EarlyStopping, Throughput
from loopwright.errors import LoopwrightError

from .loops import assert_same_model, build_linear
from .mistakes import raises

sgd = partial(torch.optim.SGD, lr=0.1)
cross_entropy = nn.functional.cross_entropy


class DataModule:
    """As Lightning has it."""

    def train_dataloader(self) -> Any:
        return []


class NeedsArguments(Callback):
    def __init__(self, patience: int) -> None:
        self.patience = patience


def build(
    model: Any = None,
    optimizer: Any = sgd,
    loss_fn: Any = cross_entropy,
    cls: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    return cls(
        build_linear() if model is None else model,
        optimizer,
        loss_fn,
        **({"progress": "silent"} | options),
    )


# Names of arguments and attributes

FOREIGN: list[tuple[str, Callable[[Trainer, Any], Any], str]] = [
    ("wrong-arguments", lambda t, d: build(max_epochs=3), "trainer.train(data, num_epochs="),
    ("wrong-arguments", lambda t, d: build(lr=1e-3), "partial(torch.optim.Adam, lr="),
    ("wrong-arguments", lambda t, d: build(schedular=1), "did you mean `scheduler=`?"),
    ("wrong-arguments", lambda t, d: t.train(x=1, y=2), "`data=(x, y)`"),
    ("wrong-arguments", lambda t, d: t.train(d, frobs=3), "is called as `train(data, num_epochs"),
    ("wrong-arguments", lambda t, d: EarlyStopping(monitor="val_loss"), "`metric=`"),
    ("wrong-arguments", lambda t, d: t.log("loss", 0.5, prog_bar=True), "`log(values)`"),
    ("unknown-attribute", lambda t, d: t.fit(d), "`trainer.train(data, num_epochs)`"),
    ("unknown-attribute", lambda t, d: t.current_epoch, "`trainer.progress.epoch`"),
    ("unknown-attribute", lambda t, d: setattr(t, "should_stop", True), "`trainer.stop(reason)`"),
]


@pytest.mark.parametrize(
    ("code", "call", "words"), FOREIGN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_name_or_call_of_another_framework_is_told_what_to_write(points, code, call, words):
    with raises(code, words):
        call(build(), DataLoader(points, 8))


# Values

VALUES: list[tuple[Callable[[Trainer, Any], Any], str]] = [
    (lambda t, d: build(loss_fn=nn.MSELoss), "`MSELoss()`"),
    (lambda t, d: build(None, nn.MSELoss(), sgd), "optimizer is MSELoss"),
    (lambda t, d: build(loss_fn=sgd(build_linear().parameters())), "loss_fn is a SGD"),
    (lambda t, d: build(loss_fn="mse"), "loss_fn is a str"),
    (lambda t, d: build(None, "adamw"), "torch.optim.Adam"),
    (lambda t, d: build(None, build_linear().parameters()), "optimizer is a generator"),
    (lambda t, d: build(None, [sgd, sgd]), "dict"),
    (lambda t, d: build(nn.ReLU), "is the class ReLU"),
    (lambda t, d: build(lambda x: x), "torch.nn.Module"),
    (lambda t, d: build([build_linear()]), "dict"),
    (lambda t, d: build(device="gpu"), "'gpu'"),
    (lambda t, d: build(device="cpu", runtime="meta"), "'meta'"),
    (lambda t, d: build(seed="0"), "seed='0'"),
    (lambda t, d: build(callbacks="early_stopping"), "is not a callback"),
    (lambda t, d: build(callbacks=[torchmetrics.MeanMetric()]), "metrics=MeanMetric"),
    (lambda t, d: build(callbacks=[NeedsArguments]), "'patience'"),
    (lambda t, d: build(precision="16-mixed"), "fp32, bf16, fp16"),
    (lambda t, d: build(metrics="acc"), "'acc'"),
    (lambda t, d: build(scheduler=lambda epoch: 0.95).train(d, 1), "LambdaLR"),
    (lambda t, d: build(scheduler=StepLR).train(d), "'step_size'"),
    (lambda t, d: Trainer().train(d), "`model=`"),
    (lambda t, d: build({"a": build_linear(), "b": build_linear()}).train(d), "`train_step`"),
    (lambda t, d: t.train(d.dataset, batch_size=d), "batch_size="),
    (lambda t, d: t.train(d, resume=True), "`run_dir=`"),
    (lambda t, d: t.train(d, d), "num_epochs is a DataLoader"),
    (lambda t, d: t.train(*d.dataset.tensors), "pass inputs and targets as `(x, y)`"),
    (lambda t, d: t.train(d, 3.0), "num_epochs=3.0"),
    (lambda t, d: t.train(d, True), "num_epochs is a bool: use a whole number"),
    (lambda t, d: t.train(d, max_time="1 hour"), "'1h30m'"),
    (lambda t, d: t.train(d, max_time=-1), "max_time=-1"),
    (lambda t, d: t.train(DataModule()), "pass a Dataset, a DataLoader"),
    (lambda t, d: t.log({"image": torch.zeros(3, 4, 4)}), "(3, 4, 4)"),
    (lambda t, d: t.export("model"), "'model.safetensors'"),
    (lambda t, d: t.export("model.onnx"), "export_module"),
    (lambda t, d: t.load("missing"), "missing"),
    (lambda t, d: Checkpoints("folder"), "above 0"),
    (lambda t, d: EarlyStopping(3), "3"),
]


@pytest.mark.parametrize(("call", "words"), VALUES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_first_guess_is_told_what_to_write(points, call, words):
    with pytest.raises(LoopwrightError) as caught:
        call(build(), DataLoader(points, 8))
    assert words in str(caught.value)


def test_names_of_other_packages_are_told_those_of_this_one(points):
    history = build().train(points, 1, points)
    for name, words in (("val_loss", "eval_loss"), (-1, "history.epochs")):
        with pytest.raises(KeyError, match=words):
            history[name]
    with pytest.raises(AttributeError, match="history"):
        history.history["loss"]
    with pytest.raises(AttributeError, match=r"callbacks\.BestModel"):
        loopwright.callbacks.ModelCheckpoint
    with pytest.raises(ImportError, match="subclass `Trainer`"):
        exec("from loopwright import LightningModule")
    with pytest.raises(ImportError, match="trainer, metrics"):
        exec("from loopwright.callbacks import LambdaCallback")


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has the device that is to be missing"
)
@pytest.mark.parametrize("name", ["device", "runtime"])
def test_cuda_where_there_is_none_says_what_is_there(name):
    with pytest.raises(ConfigurationError, match="'cuda' is not available"):
        build(**{name: "cuda"})


def test_a_device_can_be_said_as_an_argument_and_as_a_runtime_alike():
    assert (
        build(device="cpu").runtime.device
        == build(runtime="cpu").runtime.device
        == torch.device("cpu")
    )
    assert build(device=torch.device("cpu"), runtime="cpu").runtime.device.type == "cpu"
    assert (
        build(device="cpu", runtime=loopwright.Runtime("cpu", "bf16")).runtime.precision == "bf16"
    )


def test_one_callback_needs_no_list():
    assert [type(callback) for callback in build(callbacks=Throughput()).callbacks] == [Throughput]
    assert [type(callback) for callback in build(callbacks=Throughput).callbacks] == [Throughput]
    assert len(build(callbacks=lambda trainer, metrics: None).callbacks) == 1
    assert build(callbacks=None).callbacks == []


def test_an_attribute_that_nobody_has_is_an_ordinary_error():
    trainer = build()
    with pytest.raises(AttributeError, match="'Trainer' object has no attribute 'frobnicate'"):
        trainer.frobnicate
    assert not hasattr(trainer, "fit")


@pytest.mark.parametrize("package", [loopwright, loopwright.callbacks])
def test_a_name_of_another_framework_is_not_there_for_those_who_only_ask(package):
    """As `inspect`, `doctest`, `pickle` and completion ask a module."""
    assert not hasattr(package, "LightningModule")
    assert getattr(package, "ModelCheckpoint", None) is None


def test_the_error_of_a_property_is_not_hidden_by_the_hints():
    class Broken(Trainer):
        @property
        def device(self) -> Any:
            return SimpleNamespace().missing

    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        Broken(build_linear(), sgd, cross_entropy).device


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("1h30m", 5400),
        ("90s", 90),
        ("1.5min", 90),
        ("0.1d", 8640),
        ("1h 5m", 3900),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_limit_of_time_can_have_units(points, monkeypatch, given, seconds):
    """A clock that goes on by a minute at every look: it is over after the update in which the
    limit is reached."""
    clock = iter(range(100_000))
    monkeypatch.setattr("loopwright.training.steps.monotonic", lambda: next(clock) * 60.0)
    monkeypatch.setattr("loopwright.training.evaluate.monotonic", lambda: next(clock) * 60.0)
    trainer = build()
    trainer.train(points, batch_size=8, max_time=given)
    assert trainer.progress.update == -(-seconds // 60)


def test_public_packages_need_no_import_of_their_own():
    """Messages name them as attributes of `loopwright`, and a program may have imported only
    that."""
    names = (
        "callbacks",
        "interfaces",
        "initializers",
        "losses",
        "metrics",
        "schedules",
        "trackers",
        "tuning",
    )
    program = f"import loopwright\nfor name in {names}: print(getattr(loopwright, name).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [f"loopwright.{name}" for name in names]


# Data

DATA: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "`(frame, series)` of pandas": (
        lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        r"`frame.to_numpy\('float32'\)`",
    ),
    "`((x1, x2), y)`": (lambda x, y: ((x, x), y), r"several inputs as `\(x1, x2, y\)`"),
    "`(x, (y1, y2))`": (lambda x, y: (x, (y, y)), "tuple of"),
}


@pytest.mark.parametrize("what", DATA)
def test_data_of_a_first_guess_is_told_what_to_pass(points, what):
    make, match = DATA[what]
    with pytest.raises(DataError, match=match):
        build().train(make(*points.tensors), 1)


def test_a_dict_whose_names_the_model_does_not_have_is_told_the_rule(points):
    inputs, targets = points.tensors
    with pytest.raises(TypeError) as caught:
        build().train({"image": inputs, "class": targets}, 1)
    assert "passed by their names: image, class." in caught.value.__notes__[0]
    assert (
        "the target is the entry named labels, label, targets, target or y."
        in caught.value.__notes__[0]
    )


def test_accuracy_of_one_hot_targets_takes_a_function(points):
    inputs, targets = points.tensors
    data = inputs, nn.functional.one_hot(targets, build_linear()(inputs).shape[1]).float()
    with pytest.raises(ConfigurationError, match="accuracy-of-shapes"):
        build(metrics="accuracy").train(data, 1, data)
    own = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets.argmax(1)).float()}
    measured = build(metrics=own).evaluate(data)
    assert measured["accuracy"] == build(metrics="accuracy").evaluate(points)["accuracy"]


# Steps and callbacks


class Lit(nn.Linear):
    """A model as Lightning has it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_steps_of_a_model_are_said_not_to_be_called(points, capsys):
    build(Lit(6, 3), progress="lines").train(points, 1)
    said = capsys.readouterr().out.splitlines()[0]
    assert "Lit.training_step is not called" in said


class CallsModel(Trainer):
    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        self.update(loss)
        return loss


def test_a_step_of_ones_own_may_call_methods_of_the_model(points, capsys):
    build(Lit(6, 3), cls=CallsModel, progress="lines").train(points, 1)
    assert "is not called" not in capsys.readouterr().out


class BackwardFirst(CallsModel):
    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.update(loss)


def test_a_backward_before_the_update_is_told_to_go(points):
    with pytest.raises(RuntimeError, match="a second time") as caught:
        build(cls=BackwardFirst).train(points, 1)
    assert caught.value.__notes__ == [
        "`self.update(loss)` runs backward itself: remove `loss.backward()` from `train_step`."
    ]


class ZeroesFirst(CallsModel):
    def train_step(self, batch: Any) -> Any:
        self.optimizer.zero_grad()
        return super().train_step(batch)


def test_gradients_of_a_window_are_not_zeroed_in_it(points):
    trainer = build(cls=ZeroesFirst, accumulate=2)
    with raises("zeroed-in-window", "2 batches"):
        trainer.train(points, 1, batch_size=8)
    trainer.optimizer.zero_grad()  # is the optimizer's own again


def test_zeroing_before_a_step_changes_nothing_without_accumulation(points):
    trainers = [build(cls=cls) for cls in (CallsModel, ZeroesFirst)]
    for trainer in trainers:
        trainer.train(points, 1, batch_size=8)
    assert_same_model(trainers[0].model, trainers[1].model)


def test_a_scheduler_is_not_stepped_twice(points):
    model = build_linear()
    optimizer = sgd(model.parameters())
    scheduler = StepLR(optimizer, 1, 0.5)
    trainer = Trainer(
        *(model, optimizer, cross_entropy),
        scheduler=scheduler,
        callbacks=lambda trainer, metrics: scheduler.step(),
        progress="silent",
    )
    with raises("scheduler-stepped-twice", "StepLR"):
        trainer.train(points, 2)


class Schedules(Trainer):
    """A step that steps the scheduler of the trainer."""

    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        self.update(loss)
        next(iter(self.schedules.values())).scheduler.step()
        return loss


class SchedulesTwoUpdates(Schedules):
    """As `Schedules`, after another update of the same optimizer."""

    def train_step(self, batch: Any) -> Any:
        self.update(cross_entropy(self.model(batch[0]), batch[1]))
        return super().train_step(batch)


@pytest.mark.parametrize("cls", [Schedules, SchedulesTwoUpdates])
@pytest.mark.parametrize(
    "scheduler", [partial(StepLR, step_size=3), partial(OneCycleLR, max_lr=0.1, total_steps=99)]
)
def test_a_scheduler_is_not_stepped_by_the_trainer_and_in_its_step(points, scheduler, cls):
    trainer = build(cls=cls, scheduler=scheduler)
    with raises("scheduler-stepped-twice", scheduler.func.__name__, "train_step"):
        trainer.train(points, 2, batch_size=8)


def test_a_zero_grad_of_ones_own_is_called_in_the_steps_and_still_there_after_them(points):
    calls: list[int] = []
    model = build_linear()
    optimizer = sgd(model.parameters())
    own = optimizer.zero_grad = lambda: calls.append(1)

    class Zeroes(CallsModel):
        def train_step(self, batch: Any) -> Any:
            if self.progress.step % 2 == 0:
                optimizer.zero_grad()
            return super().train_step(batch)

    Zeroes(model, optimizer, cross_entropy, accumulate=2, progress="silent").train(
        points, 1, batch_size=8
    )
    assert calls
    assert optimizer.zero_grad is own


def test_an_error_in_a_function_of_the_epoch_says_what_a_scheduler_function_takes(points):
    with pytest.raises(TypeError) as caught:
        build(scheduler=lambda epoch: 0.9**epoch).train(points, 1)
    assert "takes the optimizer and returns a scheduler" in caught.value.__notes__[0]


class Reads(Callback):
    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        print(trainer.current_epoch)


def test_a_name_of_another_framework_in_a_callback_has_a_short_traceback(points):
    with pytest.raises(AttributeError, match=r"`trainer\.progress\.epoch`") as caught:
        build(callbacks=[Reads()]).train(points, 1)
    frames = [entry.frame.code.name for entry in caught.traceback]
    assert "train_epoch" not in frames
    assert "on_epoch_end" in frames
