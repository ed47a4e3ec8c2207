"""What people write before they have read a page: it works, or the error says what to write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from loopwright import Callback, ConfigurationError, DataError, Trainer, seed_everything
from loopwright.callbacks import BestModel, EarlyStopping

from .loops import assert_same_model, build_linear

sgd = partial(torch.optim.SGD, lr=0.1)
cross_entropy = nn.functional.cross_entropy


class DataModule:
    """As Lightning has it."""

    def train_dataloader(self) -> Any:
        return []


def build(
    model: Any = None, loss_fn: Any = cross_entropy, cls: type[Trainer] = Trainer, **options: Any
) -> Trainer:
    return cls(
        build_linear() if model is None else model,
        sgd,
        loss_fn,
        **({"progress": "silent"} | options),
    )


# Calls

CALLED: dict[str, tuple[Callable[[Trainer, Any], Any], type[Exception], str]] = {
    "`Trainer(..., max_epochs=3, accelerator='gpu', logger=False)`": (
        lambda t, d: build(max_epochs=3, accelerator="gpu", logger=False),
        TypeError,
        "3 unexpected keyword arguments:\n  - max_epochs: .*\n  - accelerator: .*'cuda'.*\n  - "
        "logger: ",
    ),
    "`train(loader, epochs=3, patience=2)`": (
        lambda t, d: t.train(d, epochs=3, patience=2),
        TypeError,
        "  - patience: it is unknown.\nTrainer.train is called as `train",
    ),
    "`train(x, y, num_epochs=3)`": (
        lambda t, d: t.train(*d.dataset.tensors, num_epochs=3),
        TypeError,
        r"one argument: `data=\(x, y\)`, then `num_epochs=`",
    ),
    "`train(x, y)`": (
        lambda t, d: t.train(*d.dataset.tensors),
        ConfigurationError,
        r"order is `train\(\(x, y\), num_epochs\)`",
    ),
    "`train(loader, ckpt_path='last')`": (
        lambda t, d: t.train(d, ckpt_path="last"),
        TypeError,
        "continues by itself",
    ),
    "`evaluate(x, y)`": (
        lambda t, d: t.evaluate(*d.dataset.tensors),
        TypeError,
        r"as one `\(x, y\)`",
    ),
    "`log('loss', value, prog_bar=True)`": (
        lambda t, d: t.log("loss", 0.5, prog_bar=True),
        TypeError,
        r"pass a dict: `trainer.log\(",
    ),
    "`seed_everything(0, workers=True)`": (
        lambda t, d: seed_everything(0, workers=True),
        TypeError,
        "leave it out: workers of a DataLoader are seeded too",
    ),
    "`precision='bf16-mixed'`": (
        lambda t, d: build(precision="bf16-mixed"),
        ConfigurationError,
        "write precision='bf16'",
    ),
    "`precision=16`": (
        lambda t, d: build(precision=16),
        ConfigurationError,
        "write precision='fp16'",
    ),
    "`metrics='acc'`": (
        lambda t, d: build(metrics="acc"),
        ConfigurationError,
        "'acc' is not known; give 'accuracy'",
    ),
    "`EarlyStopping('eval_loss', restore_best_weights=True)`": (
        lambda t, d: EarlyStopping("eval_loss", restore_best_weights=True),
        TypeError,
        "`BestModel.*restore=True",
    ),
    "`BestModel(monitor='val_loss', save_top_k=2)`": (
        lambda t, d: BestModel(monitor="val_loss", save_top_k=2),
        TypeError,
        "  - monitor: write `metric=`.*\n  - save_top_k: write `keep=`",
    ),
    "`history.history['loss']`": (
        lambda t, d: t.train(d, 1).history["loss"],
        AttributeError,
        r"write `history\['loss'\]`",
    ),
    "`trainer.should_stop = True`": (
        lambda t, d: setattr(t, "should_stop", True),
        AttributeError,
        r"write `trainer.stop\(reason\)`",
    ),
    "`trainer.stop_training = True`": (
        lambda t, d: setattr(t, "stop_training", True),
        AttributeError,
        r"write `trainer.stop\(reason\)`",
    ),
    "`from loopwright.callbacks import LambdaCallback`": (
        lambda t, d: exec("from loopwright.callbacks import LambdaCallback"),
        ImportError,
        r"a function of \(trainer, metrics\)",
    ),
    "`scheduler=lambda epoch: 0.95`": (
        lambda t, d: build(scheduler=lambda epoch: 0.95).train(d, 1),
        ConfigurationError,
        r"returned 0\.95\. A function given as scheduler takes the optimizer.*LambdaLR",
    ),
    "A data module as data": (
        lambda t, d: t.train(DataModule()),
        DataError,
        r"data\.train_dataloader\(\)",
    ),
}


@pytest.mark.parametrize("what", CALLED)
def test_a_first_guess_is_told_what_to_write(mistake, points, what):
    call, error, match = CALLED[what]
    with mistake("Arguments", what, error, match=match):
        call(build(), DataLoader(points, 8))


def test_a_stop_flag_is_not_there_to_be_read_either():
    assert not hasattr(build(), "should_stop")


def test_public_packages_need_no_import_of_their_own():
    """Messages name them as attributes of `loopwright`, and a program may have imported only
    that."""
    names = (
        "callbacks",
        "interfaces",
        "initializers",
        "losses",
        "metrics",
        "scaling",
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
    "`(x.tolist(), y.tolist())`": (
        lambda x, y: (x.tolist(), y.tolist()),
        r"`\(torch.tensor\(x\), torch.tensor\(y\)\)`",
    ),
    "`(frame, series)` of pandas": (
        lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        r"`frame.to_numpy\('float32'\)`",
    ),
    "`((x1, x2), y)`": (lambda x, y: ((x, x), y), r"several inputs as `\(x1, x2, y\)`"),
    "`(x, (y1, y2))`": (lambda x, y: (x, (y, y)), "several targets, override `split_batch`"),
}


@pytest.mark.parametrize("what", DATA)
def test_data_of_a_first_guess_is_told_what_to_pass(mistake, points, what):
    make, match = DATA[what]
    with mistake("Data", what, DataError, match=match):
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


def test_arrays_of_whole_numbers_are_told_the_conversion_of_arrays(points):
    with pytest.raises(RuntimeError) as caught:
        build().train((np.ones((8, 6), np.uint8), np.zeros(8, np.int64)), 1)
    assert "arrays with `.astype('float32')`" in caught.value.__notes__[0]


def test_a_loss_of_swapped_arguments_shows_what_it_was_called_with(points):
    with pytest.raises(RuntimeError) as caught:
        build(loss_fn=lambda targets, outputs: cross_entropy(outputs, targets)).train(points, 1)
    assert "as outputs and an int64 tensor of shape" in caught.value.__notes__[0]


def test_outputs_with_the_classes_last_are_told_to_be_transposed():
    data = torch.randn(4, 7, 6), torch.zeros(4, 7, dtype=torch.long)
    with pytest.raises(RuntimeError) as caught:
        build(nn.Linear(6, 5)).train(data, 1)
    assert "`outputs.transpose(1, 2)`" in caught.value.__notes__[0]
    build(
        nn.Linear(6, 5), lambda outputs, targets: cross_entropy(outputs.transpose(1, 2), targets)
    ).train(data, 1)


def test_accuracy_of_one_hot_targets_is_told_a_function_that_works(mistake, points):
    inputs, targets = points.tensors
    data = inputs, nn.functional.one_hot(targets, build_linear()(inputs).shape[1]).float()
    with mistake(
        "Data",
        "`metrics='accuracy'` with one-hot targets",
        ConfigurationError,
        match="for one-hot targets",
    ):
        build(metrics="accuracy").train(data, 1, data)
    own = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets.argmax(1)).float()}
    measured = build(metrics=own).evaluate(data)
    assert measured["accuracy"] == build(metrics="accuracy").evaluate(points)["accuracy"]


# Steps and callbacks


class OfLightning(Callback):
    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pass


class OfKeras(Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "event"), [(OfLightning, "on_train_step_end"), (OfKeras, "on_epoch_start")]
)
def test_an_event_of_another_framework_is_told_the_one_of_the_same_moment(mistake, callback, event):
    name = next(name for name in vars(callback) if name.startswith("on_"))
    with mistake(
        "Arguments",
        f"`{name}` in a callback",
        ConfigurationError,
        match=rf"did you mean {event}\?$",
    ):
        build(callbacks=[callback()])


class Lit(nn.Linear):
    """A model as Lightning has it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_steps_of_a_model_are_said_not_to_be_called(mistake, points, capsys):
    build(Lit(6, 3), progress="lines").train(points, 1)
    said = capsys.readouterr().out.splitlines()[0]
    assert "Lit.training_step is not called" in said
    mistake.said(
        "Steps that train nothing, or the wrong thing", "`training_step` in the model", said
    )


class CallsModel(Trainer):
    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        self.update(loss)
        return loss


def test_a_step_of_ones_own_may_call_methods_of_the_model(points, capsys):
    build(Lit(6, 3), cls=CallsModel, progress="lines").train(points, 1)
    assert "is not called" not in capsys.readouterr().out


def test_the_optimizers_of_a_model_are_said_not_to_be_called(mistake, points):
    what = "`configure_optimizers` in the model"
    with mistake(
        "Arguments", what, ConfigurationError, match="a method of the model, which is not called"
    ):
        Trainer(Lit(6, 3), loss_fn=cross_entropy, progress="silent").train(points, 1)


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


def test_gradients_of_a_window_are_not_zeroed_in_it(mistake, points):
    trainer = build(cls=ZeroesFirst, accumulate=2)
    section = "Steps that train nothing, or the wrong thing"
    with mistake(
        section,
        "`optimizer.zero_grad()` in a step with `accumulate=2`",
        ConfigurationError,
        match="remove it",
    ):
        trainer.train(points, 1, batch_size=8)
    trainer.optimizer.zero_grad()  # is the optimizer's own again


def test_zeroing_before_a_step_changes_nothing_without_accumulation(points):
    trainers = [build(cls=cls) for cls in (CallsModel, ZeroesFirst)]
    for trainer in trainers:
        trainer.train(points, 1, batch_size=8)
    assert_same_model(trainers[0].model, trainers[1].model)


def test_a_scheduler_is_not_stepped_twice(mistake, points):
    model = build_linear()
    optimizer = sgd(model.parameters())
    scheduler = StepLR(optimizer, 1, 0.5)
    trainer = Trainer(
        *(model, optimizer, cross_entropy),
        scheduler=scheduler,
        callbacks=lambda trainer, metrics: scheduler.step(),
        progress="silent",
    )
    what = "`scheduler.step()` in a callback, of a scheduler that the trainer has"
    section = "Steps that train nothing, or the wrong thing"
    with mistake(section, what, ConfigurationError, match="the trainer steps it as well"):
        trainer.train(points, 2)


class Schedules(Trainer):
    """A step that steps the scheduler of the trainer."""

    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        self.update(loss)
        next(iter(self.schedules.values())).scheduler.step()
        return loss


@pytest.mark.parametrize(
    "scheduler", [partial(StepLR, step_size=3), partial(OneCycleLR, max_lr=0.1, total_steps=99)]
)
def test_a_scheduler_is_not_stepped_by_the_trainer_and_in_its_step(mistake, points, scheduler):
    trainer = build(cls=Schedules, scheduler=scheduler)
    what = f"`{scheduler.func.__name__}` of the trainer, with `scheduler.step()` in `train_step`"
    section = "Steps that train nothing, or the wrong thing"
    with mistake(
        section,
        what,
        ConfigurationError,
        match="was stepped in `train_step`, and the trainer steps it",
    ):
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
