"""What somebody writes who comes from another framework: it works where it is plain, and else says
what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import loopwright
from loopwright import Callback, CheckpointError, ConfigurationError, Trainer
from loopwright.callbacks import BestModel, Checkpoints, EarlyStopping, Throughput

from .loops import build_linear

sgd = partial(torch.optim.SGD, lr=0.1)
cross_entropy = nn.functional.cross_entropy
HERE = str(Path(__file__))
PACKAGE = str(Path(loopwright.__file__).parent)


def build(
    model: Any = None, optimizer: Any = sgd, loss_fn: Any = cross_entropy, **options: Any
) -> Trainer:
    return Trainer(
        build_linear() if model is None else model,
        optimizer,
        loss_fn,
        **({"progress": "silent"} | options),
    )


# Arguments of the constructor

CONSTRUCTED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "`Trainer(model, optimizer, nn.MSELoss)`": (
        lambda: build(loss_fn=nn.MSELoss),
        ConfigurationError,
        r"`MSELoss\(\)`",
    ),
    "`Trainer(model, nn.MSELoss(), optimizer)`": (
        lambda: build(optimizer=nn.MSELoss(), loss_fn=sgd),
        ConfigurationError,
        r"optimizer is MSELoss, .*order is `Trainer\(model, optimizer, loss_fn\)`",
    ),
    "`Trainer(model, F.mse_loss, optimizer)`": (
        lambda: build(optimizer=nn.functional.mse_loss, loss_fn=sgd),
        ConfigurationError,
        "optimizer is mse_loss, which is not an optimizer",
    ),
    "`Trainer(model, optimizer, optimizer)`": (
        lambda: build(loss_fn=torch.optim.Adam(build_linear().parameters())),
        ConfigurationError,
        "loss_fn is an optimizer",
    ),
    '`loss_fn="mse"`': (
        lambda: build(loss_fn="mse"),
        ConfigurationError,
        "loss_fn is a str, 'mse': pass a function",
    ),
    '`optimizer="adamw"`': (
        lambda: build(optimizer="adamw"),
        ConfigurationError,
        r"partial\(torch.optim.AdamW, lr=1e-3\)",
    ),
    "`optimizer=model.parameters()`": (
        lambda: build(optimizer=build_linear().parameters()),
        ConfigurationError,
        "optimizer is a generator: pass a torch optimizer",
    ),
    "`optimizer=[first, second]`": (
        lambda: build(optimizer=[sgd, sgd]),
        ConfigurationError,
        "as a dict of them by name",
    ),
    "`optimizer=StepLR`": (
        lambda: build(optimizer=StepLR),
        ConfigurationError,
        "is a scheduler: pass it as `scheduler=`",
    ),
    "`Trainer(Net, ...)`, the class": (
        lambda: build(nn.ReLU),
        ConfigurationError,
        r"is the class ReLU: .*`ReLU\(...\)`",
    ),
    "`Trainer(lambda x: x, ...)`": (
        lambda: build(lambda x: x),
        ConfigurationError,
        "is a function: pass a torch.nn.Module",
    ),
    "`device='gpu'`": (
        lambda: build(device="gpu"),
        ConfigurationError,
        "'gpu' is not a device that torch knows: write",
    ),
    "`device='cpu', runtime='meta'`": (
        lambda: build(device="cpu", runtime="meta"),
        ConfigurationError,
        "device='cpu' was given together with a runtime on 'meta': set it in only one place",
    ),
    "`run_dir=True`": (
        lambda: build(run_dir=True),
        ConfigurationError,
        "run_dir=True: use the path of a directory",
    ),
    "`seed='0'`": (lambda: build(seed="0"), ConfigurationError, "seed='0': use a whole number"),
    "`callbacks='early_stopping'`": (
        lambda: build(callbacks="early_stopping"),
        ConfigurationError,
        "is not a callback",
    ),
    "`callbacks=[MeanMetric()]`": (
        lambda: build(callbacks=[torchmetrics.MeanMetric()]),
        ConfigurationError,
        r"pass it as `Trainer\(metrics=MeanMetric\(...\)\)`",
    ),
    "`callbacks=[MeanMetric]`, the class": (
        lambda: build(callbacks=[torchmetrics.MeanMetric]),
        ConfigurationError,
        r"MeanMetric is a metric, not a callback",
    ),
    "`callbacks=[NeedsArguments]`, the class": (
        lambda: build(callbacks=[NeedsArguments]),
        ConfigurationError,
        "The callback NeedsArguments, passed as a class, does not take the arguments .*'patience'",
    ),
    "`Trainer(..., max_epochs=3)`": (
        lambda: build(max_epochs=3),
        TypeError,
        r"`trainer.train\(data, num_epochs, ",
    ),
    "`Trainer(..., criterion=...)`": (
        lambda: Trainer(build_linear(), criterion=1),
        TypeError,
        "write `loss_fn=`",
    ),
    "`Trainer(..., lr=1e-3)`": (
        lambda: build(lr=1e-3),
        TypeError,
        r"`optimizer=partial\(torch.optim.Adam, lr=1e-3\)`",
    ),
    "`Trainer(..., gradient_clip_val=1)`": (
        lambda: build(gradient_clip_val=1),
        TypeError,
        "write `clip_norm=`",
    ),
    "`Trainer(..., accumulate_grad_batches=4)`": (
        lambda: build(accumulate_grad_batches=4),
        TypeError,
        "`accumulate=`",
    ),
    "`Trainer(..., accelerator='gpu')`": (
        lambda: build(accelerator="gpu"),
        TypeError,
        "`device='cuda'`",
    ),
    "`Trainer(..., compute_metrics=...)`": (
        lambda: build(compute_metrics=len),
        TypeError,
        r"metrics=\{",
    ),
    "`Trainer(..., gpus=1)`": (lambda: build(gpus=1), TypeError, "one GPU is used by itself"),
    "`Trainer(..., logger='tensorboard')`": (
        lambda: build(logger="tensorboard"),
        TypeError,
        r"trackers.TensorBoard\(\)",
    ),
    "`Trainer(..., val_check_interval=100)`": (
        lambda: build(val_check_interval=100),
        TypeError,
        r"OfflineLoss\('eval', every_n_updates=n\)",
    ),
    "`Trainer(..., data_collator=...)`": (
        lambda: build(data_collator=1),
        TypeError,
        "DataLoader with `collate_fn=`",
    ),
    "`Trainer(..., tokenizer=...)`": (
        lambda: build(tokenizer=1),
        TypeError,
        "tokenise the data first",
    ),
    "`precision='16-mixed'`": (
        lambda: build(precision="16-mixed"),
        ConfigurationError,
        "write precision='fp16'",
    ),
    "`Trainer(..., schedular=...)`": (
        lambda: build(schedular=1),
        TypeError,
        "did you mean `scheduler=`?",
    ),
}


class NeedsArguments(Callback):
    def __init__(self, patience: int) -> None:
        self.patience = patience


@pytest.mark.parametrize("what", CONSTRUCTED)
def test_a_mistaken_argument_of_the_constructor_is_told_what_to_write(mistake, what):
    make, error, match = CONSTRUCTED[what]
    with mistake("Arguments", what, error, match=match):
        make()


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has the device that is to be missing"
)
@pytest.mark.parametrize("name", ["device", "runtime"])
def test_cuda_where_there_is_none_says_what_is_there(mistake, name):
    with mistake(
        "Arguments",
        f"`{name}='cuda'` without CUDA",
        ConfigurationError,
        match="'cuda' is not available",
        hide=WHY,
    ):
        build(**{name: "cuda"})


WHY = r"(?<=is not available: )[^.]*"  # depends on how torch was built


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


# Calls

CALLED: dict[str, tuple[Callable[[Trainer, Any], Any], type[Exception], str]] = {
    "`train(loader, epochs=3)`": (
        lambda t, d: t.train(d, epochs=3),
        TypeError,
        "'epochs': write `num_epochs=`",
    ),
    "`train(loader, max_epochs=3)`": (
        lambda t, d: t.train(d, max_epochs=3),
        TypeError,
        "write `num_epochs=`",
    ),
    "`train(loader, n_epochs=3)`": (
        lambda t, d: t.train(d, n_epochs=3),
        TypeError,
        "write `num_epochs=`",
    ),
    "`train(loader, max_steps=3)`": (
        lambda t, d: t.train(d, max_steps=3),
        TypeError,
        "write `num_updates=`",
    ),
    "`train(loader, validation_data=...)`": (
        lambda t, d: t.train(d, validation_data=d),
        TypeError,
        "write `eval_data=`",
    ),
    "`train(x=x, y=y)`": (lambda t, d: t.train(x=1, y=2), TypeError, r"`data=\(x, y\)`"),
    "`train(loader, num_epoch=3)`": (
        lambda t, d: t.train(d, num_epoch=3),
        TypeError,
        "did you mean `num_epochs=`?",
    ),
    "`train(loader, shuffle=True)`": (
        lambda t, d: t.train(d, shuffle=True),
        TypeError,
        "training data is shuffled",
    ),
    "`train(loader, eval_steps=100)`": (
        lambda t, d: t.train(d, eval_steps=100),
        TypeError,
        "OfflineLoss",
    ),
    "`train(data, collate_fn=...)`": (
        lambda t, d: t.train(d, collate_fn=1),
        TypeError,
        "a DataLoader with `collate_fn=`",
    ),
    "`train(data, class_weight=...)`": (
        lambda t, d: t.train(d, class_weight={}),
        TypeError,
        "CrossEntropyLoss",
    ),
    "`train(data, batch_size=loader)`": (
        lambda t, d: t.train(d.dataset, batch_size=d),
        ConfigurationError,
        "batch_size is a DataLoader",
    ),
    "`train(data, resume=True)` without `run_dir`": (
        lambda t, d: t.train(d, resume=True),
        ConfigurationError,
        "the trainer has no `run_dir=`",
    ),
    "`trainer.cuda()`": (lambda t, d: t.cuda(), AttributeError, r"`Trainer\(device='cuda'\)`"),
    "`trainer.get_preds()`": (
        lambda t, d: t.get_preds(),
        AttributeError,
        r"`trainer.predict\(data\)`",
    ),
    "`train(loader, verbose=0)`": (
        lambda t, d: t.train(d, verbose=0),
        TypeError,
        r"`Trainer\(progress='silent'\)`",
    ),
    "`train(loader, 3, loader, 32)`": (
        lambda t, d: t.train(d, 3, d, 32),
        TypeError,
        "is called as `train.*batch_size=",
    ),
    "`train(loader, eval_loader)`": (
        lambda t, d: t.train(d, d),
        ConfigurationError,
        "num_epochs is a DataLoader: use",
    ),
    "`train(loader, 3.0)`": (
        lambda t, d: t.train(d, 3.0),
        ConfigurationError,
        "num_epochs=3.0: use a whole number",
    ),
    "`train(loader, True)`": (
        lambda t, d: t.train(d, True),
        ConfigurationError,
        "num_epochs is True: use",
    ),
    "`max_time='1 hour'`": (
        lambda t, d: t.train(d, max_time="1 hour"),
        ConfigurationError,
        "a number of seconds, .*'1h30m'",
    ),
    "`max_time=-1`": (
        lambda t, d: t.train(d, max_time=-1),
        ConfigurationError,
        "max_time=-1: use a number of seconds",
    ),
    "`evaluate()` without data": (
        lambda t, d: t.evaluate(),
        TypeError,
        r"`evaluate\(data, batch_size=\)`",
    ),
    "`log('accuracy', 0.5)`": (
        lambda t, d: t.log("accuracy", 0.5),
        TypeError,
        r"`trainer.log\({'accuracy': value}\)`",
    ),
    "`log(0.5)`": (lambda t, d: t.log(0.5), ConfigurationError, "pass a dict of names and values"),
    "`log({'image': tensor})`": (
        lambda t, d: t.log({"image": torch.zeros(3, 4, 4)}),
        ConfigurationError,
        r"'image': it is a tensor of shape \(3, 4, 4\); pass a number",
    ),
    "`trainer.fit(loader)`": (
        lambda t, d: t.fit(d),
        AttributeError,
        r"`trainer.train\(data, num_epochs\)`",
    ),
    "`trainer.compile(...)`": (
        lambda t, d: t.compile(),
        AttributeError,
        r"`Trainer\(model, optimizer, loss_fn\)`",
    ),
    "`trainer.start(loader)`": (lambda t, d: t.start(d), AttributeError, "`trainer.train"),
    "`trainer.validate(loader)`": (
        lambda t, d: t.validate(d),
        AttributeError,
        r"write `trainer.evaluate\(data\)`",
    ),
    "`trainer.test(loader)`": (
        lambda t, d: t.test(d),
        AttributeError,
        r"write `trainer.evaluate\(data\)`",
    ),
    "`trainer.save_checkpoint(path)`": (
        lambda t, d: t.save_checkpoint("x"),
        AttributeError,
        r"`trainer.save\(path\)`",
    ),
    "`trainer.current_epoch`": (
        lambda t, d: t.current_epoch,
        AttributeError,
        "`trainer.progress.epoch`",
    ),
    "`EarlyStopping(monitor='val_loss')`": (
        lambda t, d: EarlyStopping(monitor="val_loss"),
        TypeError,
        "write `metric=`",
    ),
    "`BestModel(monitor='val_loss')`": (
        lambda t, d: BestModel(monitor="val_loss"),
        TypeError,
        "write `metric=`",
    ),
    "`Checkpoints('folder')`": (
        lambda t, d: Checkpoints("folder"),
        ConfigurationError,
        "use a number above 0, or None",
    ),
    "`loopwright.callbacks.ModelCheckpoint`": (
        lambda t, d: loopwright.callbacks.ModelCheckpoint,
        AttributeError,
        "`callbacks.BestModel` keeps the best models",
    ),
    "`from loopwright import LightningModule`": (
        lambda t, d: exec("from loopwright import LightningModule"),
        ImportError,
        "'loopwright' has no LightningModule: subclass `Trainer`",
    ),
    "`history['val_loss']`": (
        lambda t, d: t.train(d, 1, d)["val_loss"],
        KeyError,
        "Did you mean 'eval_loss'?",
    ),
    "`history[-1]`": (
        lambda t, d: t.train(d, 1)[-1],
        KeyError,
        "rows of the epochs are in `history.epochs`",
    ),
    "`export('model')` without a suffix": (
        lambda t, d: t.export("model"),
        CheckpointError,
        "use 'model.safetensors'",
    ),
    "`export('model.onnx')`": (
        lambda t, d: t.export("model.onnx"),
        CheckpointError,
        "export_module",
    ),
    "`Trainer()` without a model": (
        lambda t, d: Trainer().train(d),
        ConfigurationError,
        "has no model: pass `model=`",
    ),
    "`Trainer([first, second], ...)`": (
        lambda t, d: build([build_linear()]),
        ConfigurationError,
        "a dict of several models by name",
    ),
    "several models and no step": (
        lambda t, d: build({"a": build_linear(), "b": build_linear()}).train(d),
        ConfigurationError,
        "the models are a, b: override `train_step`",
    ),
    "`trainer.optimizers()`": (
        lambda t, d: (t.setup(), t.optimizers()),
        loopwright.errors.CallError,
        r"is a dict .* write `self.optimizers\['optimizer'\]`",
    ),
    "`Trainer.load_from_checkpoint(path)`": (
        lambda t, d: Trainer.load_from_checkpoint("last.ckpt"),  # type: ignore[attr-defined]
        AttributeError,
        r"then write `trainer.load\(path\)`",
    ),
    "`trainer.load_from_checkpoint(path)`": (
        lambda t, d: t.load_from_checkpoint("last.ckpt"),
        AttributeError,
        r"write `trainer.load\(path\)`",
    ),
    "`trainer.checkpoint_callback.best_model_path`": (
        lambda t, d: t.checkpoint_callback.best_model_path,
        AttributeError,
        r"write `trainer.load_weights\(trainer.run_dir\)`",
    ),
    "`self.accelerator.backward(loss)`": (
        lambda t, d: t.accelerator.backward(None),
        AttributeError,
        r"write `self.update\(loss\)` in `train_step`, in place of",
    ),
    "`trainer.gather_for_metrics(tensor)`": (
        lambda t, d: t.gather_for_metrics(torch.ones(1)),
        AttributeError,
        r"write `trainer.runtime.gather\(tensor\)`",
    ),
    "`scheduler=StepLR`, which needs a step size": (
        lambda t, d: build(scheduler=StepLR).train(d),
        ConfigurationError,
        r"'step_size'. Set its other arguments with `functools.partial\(StepLR, ...\)`",
    ),
}


@pytest.mark.parametrize("what", CALLED)
def test_a_mistaken_call_is_told_what_to_write(mistake, points, what):
    call, error, match = CALLED[what]
    with mistake("Arguments", what, error, match=match):
        call(build(), DataLoader(points, 8))


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


def test_a_number_in_place_of_a_metric_is_refused(mistake) -> None:
    with mistake(
        "Up or down", "`EarlyStopping(3)`", ConfigurationError, match="not the name of a metric"
    ):
        EarlyStopping(3)  # type: ignore[arg-type]


def test_a_callback_written_for_keras_is_refused(mistake) -> None:
    class Printing(Callback):
        def on_epoch_end(self, epoch: Any, logs: Any) -> None:  # type: ignore[override]
            print(epoch, logs)

    what = "`on_epoch_end(self, epoch, logs)`, as in Keras"
    with mistake("Arguments", what, ConfigurationError, match="'epoch' first"):
        Trainer(nn.Linear(2, 1), torch.optim.Adam, nn.MSELoss(), callbacks=[Printing()])


def test_a_checkpoint_that_is_not_there_is_said_not_to_exist(tmp_path: Path, mistake) -> None:
    trainer = Trainer(nn.Linear(2, 1), torch.optim.Adam, nn.MSELoss())
    with mistake(
        "Checkpoints and resuming", "`trainer.load` of a path that does not exist", CheckpointError
    ):
        trainer.load(tmp_path / "missing")
