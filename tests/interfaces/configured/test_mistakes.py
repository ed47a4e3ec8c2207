"""The commonest mistakes, and what is said of each: what happened, what was expected, what to do,
in config keys."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, NonFiniteLossError
from loopwright.callbacks import OfflineLoss
from loopwright.config import ConfigError, load_config
from loopwright.errors import LoopwrightError
from loopwright.interfaces.configured import (
    BaseTrainer,
    BaseTrainerConfig,
    Experiment,
    TrainerResult,
)

from . import gan
from .parts import CustomTrainer, Net, Points, build_trainer

FOREIGN = re.compile(
    r"runtime=|clip_norm|NonFiniteGuard|\baccumulate\b|split_supervised|StepResult"
)


@contextmanager
def refused(code, value="", error=LoopwrightError):
    """Expect an error with this code, unless the core gives it, in the words of this interface."""
    with pytest.raises(error) as caught:
        yield
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert value in text
    assert not code or caught.value.code == code
    assert not FOREIGN.search(text), text


def step(body):
    """A trainer whose `train_step` is this function of (self, batch, model)."""
    return type("CustomTrainer", (CustomTrainer,), {"train_step": body})


def losses(body):
    """A trainer whose `loss_compute` is this function of the prediction and the labels."""

    def loss_compute(self, forward_output, targets):
        return body(forward_output, targets["labels"])

    return type("CustomTrainer", (BaseTrainer,), {"loss_compute": loss_compute})


def loss_of(batch, model):
    return nn.functional.mse_loss(model(batch["coordinates"], batch["features"]), batch["labels"])


mse = nn.functional.mse_loss

# Losses

RETURNED = {
    "nothing": (lambda out, y: None, "no-losses", ""),
    "loss.item()": (lambda out, y: mse(out, y).item(), "loss-no-tensor", "'loss'"),
    "a number among the losses": (
        lambda out, y: {"mse": mse(out, y), "weight": 0.5},
        "loss-no-tensor",
        "'weight'",
    ),
    "a loss for each sample": (lambda out, y: (out - y) ** 2, "", "shape (8,)"),
    "a loss that was detached": (lambda out, y: mse(out.detach(), y), "", "no graph"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_a_loss_that_cannot_be_trained(what):
    body, code, value = RETURNED[what]
    with refused(code, value):
        build_trainer(losses(body)).train()


def test_a_target_that_is_not_there():
    class Looking(BaseTrainer):
        def loss_compute(self, forward_output, targets):
            return mse(forward_output, targets["label"])

    with pytest.raises(KeyError, match="label") as caught:
        build_trainer(Looking).train()
    assert caught.value.__notes__[0] == (
        "`loss_compute` was given forward_output=a float32 tensor of shape (8,) and "
        "targets={labels: a float32 tensor of shape (8,)}. Name the keys of a batch that it needs "
        "in target_properties."
    )


def test_a_loss_that_is_not_a_number():
    with refused("", "`skip_nan_loss: true`", NonFiniteLossError):
        build_trainer(losses(lambda out, y: mse(out, y) * float("nan"))).train()


# Steps

STEPS = {
    "the loss": (lambda self, b, m: loss_of(b, m), "no-trainer-result", "TrainerResult(total_loss"),
    "a dict": (lambda self, b, m: {"loss": loss_of(b, m)}, "no-trainer-result", "{loss: "),
    "nothing": (lambda self, b, m: None, "no-trainer-result", "None"),
    "a number": (lambda self, b, m: TrainerResult(total_loss=1.0), "", "float (1)"),
    "loss.item()": (lambda self, b, m: TrainerResult(loss_of(b, m).item()), "", "item()"),
    "loss.detach()": (lambda self, b, m: TrainerResult(loss_of(b, m).detach()), "", "no graph"),
    "None as the loss": (lambda self, b, m: TrainerResult(None), "", "is None"),
}


@pytest.mark.parametrize("what", STEPS)
def test_a_step_that_returns_the_wrong_thing(what):
    body, code, value = STEPS[what]
    with refused(code, value):
        build_trainer(step(body)).train()


def backward_and_return(self, batch, model):
    loss = loss_of(batch, model)
    loss.backward()
    return TrainerResult(loss)


def backward_and_retain(self, batch, model):
    loss = loss_of(batch, model)
    loss.backward(retain_graph=True)
    return TrainerResult(loss)


def backward_and_detach(self, batch, model):
    loss = loss_of(batch, model)
    loss.backward()
    return TrainerResult(loss.detach())


def plain(self, batch, model):
    loss = loss_of(batch, model)
    self.optimizer.zero_grad()
    loss.backward()
    self.optimizer.step()
    return TrainerResult(loss)


def updating(self, batch, model):
    loss = loss_of(batch, model)
    self.update(loss)
    return TrainerResult(loss)


def test_backward_without_a_step():
    with refused("", "remove `loss.backward()`", RuntimeError):
        build_trainer(step(backward_and_return)).train()
    with refused("backward-twice", "self.update(loss)"):
        build_trainer(step(backward_and_retain)).train()
    with refused("", "no graph"):
        build_trainer(step(backward_and_detach)).train()


def test_a_step_of_the_optimizer_where_updates_are_made_of_several_batches():
    with refused("", "max_batch_size"):
        build_trainer(step(plain), max_batch_size=4).train()


@pytest.mark.parametrize("body", [updating, plain])
def test_an_update_in_an_evaluation(body):
    trainer = build_trainer(step(body))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with refused("update-in-evaluation", "override `eval_step(self, batch, model)`"):
        trainer.evaluate("test")
    now = trainer.model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())
    with refused("update-in-evaluation"):
        build_trainer(step(body), callbacks=[OfflineLoss("test")]).train()


def test_an_optimizer_step_in_an_evaluation():
    class Sneaking(CustomTrainer):
        def eval_step(self, batch, model):
            with torch.enable_grad():
                loss = loss_of(batch, model)
                loss.backward()
            self.optimizer.step()
            return TrainerResult(loss)

    with refused("update-in-evaluation", "`eval_step`"):
        build_trainer(Sneaking).evaluate("test")


# Several models


def build_gan(kind=gan.Gan, **given):
    models = {"generator": gan.Generator(), "discriminator": gan.Discriminator()}
    optimizers = dict.fromkeys(models, partial(torch.optim.SGD, lr=0.1))
    data = {"train": gan.Pairs()}
    config = BaseTrainerConfig(max_epochs=1, effective_batch_size=8, forward_properties=["z"])
    return kind(
        config,
        **{
            "model": models,
            "datasets": data,
            "optimizer": optimizers,
            "progress": "silent",
            **given,
        },
    )


def gan_step(optimizer):
    def train_step(self, batch, model):
        _, loss = self.discriminate(batch, model)
        self.update(loss, optimizer)
        return TrainerResult(loss)

    return type("Gan", (gan.Gan,), {"train_step": train_step})


def test_an_update_that_does_not_say_which_optimizer():
    with refused("", "update(loss, 'generator')"):
        build_gan(gan_step(None)).train()
    with refused("", "update(loss, 'generator')"):
        build_gan(type("Gan", (gan.Gan,), {"train_step": gan.Gan.eval_step})).train()


def test_an_update_for_an_optimizer_that_is_not_there():
    with refused("", "'discriminater'"):
        build_gan(gan_step("discriminater")).train()


def test_several_models_without_a_step_for_them():
    class OnlyLoss(BaseTrainer):
        def loss_compute(self, forward_output, targets):
            return forward_output.mean()

    with refused("several-models", "generator, discriminator"):
        build_gan(OnlyLoss)


def test_predictions_of_several_models_must_be_said():
    kind = type("Gan", (gan.Gan,), {"predict_step": BaseTrainer.predict_step})
    with refused("no-predict-step", "generator, discriminator"):
        build_gan(kind).predict("train")


def test_the_optimizer_where_there_are_two():
    with refused("several-optimizers", "self.optimizers[name]"):
        _ = build_gan().optimizer


# The class


@pytest.mark.parametrize(
    ("name", "method", "code", "value"),
    [
        ("compute_loss", lambda self, batch: None, "", "did you mean loss_compute"),
        ("training_step", lambda self, batch: None, "", "did you mean train_step"),
        ("split_batch", lambda self, batch: None, "", "did you mean _split_batch"),
        ("loss_compute", lambda self, outputs, targets: None, "", "forward_output"),
        ("train_step", lambda self, batch: None, "", "def train_step(self, batch, model)"),
        ("on_epoch_end", lambda self, metrics: None, "event-on-trainer", "on_epoch_end"),
    ],
)
def test_methods_under_other_names_or_with_other_arguments(name, method, code, value):
    with refused(code, value):
        build_trainer(type("Custom", (BaseTrainer,), {name: method}))


def test_neither_a_loss_nor_a_step():
    with refused("no-loss-compute", "BaseTrainer"):
        build_trainer(BaseTrainer)


def test_a_forgotten_super_init():
    class Custom(CustomTrainer):
        def __init__(self, trainer_config, **kwargs):
            self.weight = trainer_config.weight

    trainer = build_trainer(Custom)
    with refused("no-super-init", "super().__init__(trainer_config, "):
        trainer.train()


def test_what_is_no_model_and_no_config():
    with refused("", "class Net"):
        build_trainer(model=Net)
    for config in (None, {"max_epochs": 1}):
        with refused("no-trainer-config", "BaseTrainerConfig"):
            CustomTrainer(config, model=Net(), datasets={"train": Points()})


# Settings and data


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"max_epoch": 3}, "max_epoch\n  Extra inputs are not permitted"),
        ({}, "exactly one of max_epochs, max_updates, max_samples"),
        ({"max_epochs": 1, "max_updates": 1}, "found max_epochs and max_updates"),
        (
            {"max_epochs": 1, "max_batch_size": 4, "disable_gradient_accumulation": True},
            "leave one of them out",
        ),
    ],
)
def test_settings(settings, value):
    with refused("", value, ValidationError):
        BaseTrainerConfig(**settings)


def test_batches():
    with refused("no-forward-properties", "CustomTrainer"):
        build_trainer(forward_properties=[])
    with refused("unknown-property", "'coords', which a batch does not have; did you mean coord"):
        build_trainer(forward_properties=["coords"]).train()
    with refused("unknown-property", "'label'"):
        build_trainer(target_properties=["label"]).train()
    with refused("batch-no-dict", "_split_batch"):
        build_trainer(datasets={"train": TensorDataset(torch.randn(8, 3), torch.randn(8))}).train()
    with refused("no-such-data-set", "'tset' under `datasets`; did you mean test?"):
        build_trainer().evaluate("tset")
    with refused("no-such-data-set", "'train' under `datasets`; available: test."):
        build_trainer(datasets={"test": Points()}).train()


def test_a_model_with_other_arguments():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 1)

        def forward(self, x):
            return self.line(x)

    with pytest.raises(TypeError, match="unexpected keyword argument 'coordinates'") as caught:
        build_trainer(model=Other(), forward_properties=["coordinates"]).train()
    assert caught.value.__notes__[0] == (
        "The model was called with {coordinates: a float32 tensor of shape (8, 3)}. If that is "
        "not what it takes, override `_split_batch` (which part of a batch is input) or "
        "`train_step` (how the model is called)."
    )


@pytest.mark.parametrize(
    ("event", "code", "value"),
    [
        ("on_epoch_ended", "", "did you mean on_epoch_end"),
        ("after_update", "event-elsewhere", "here that event is on_update_end"),
    ],
)
def test_events_under_other_names(event, code, value):
    with refused(code, value):
        build_trainer(callbacks=[type("Mine", (Callback,), {event: lambda self, trainer: None})()])


def test_a_callback_of_a_data_set_that_is_not_there():
    with refused("", "no data set with that name"):
        build_trainer(callbacks=[OfflineLoss("tset")]).train()


# Run files

FILES = {
    "`max_epoch: 3`": (["~trainer.max_updates", "+trainer.max_epoch=3"], "did you mean max_epochs"),
    "a misspelt setting of the model": (["+model.widht=3"], "did you mean width"),
    "a class that is not in the module": (["model.kind=mine.Nett"], "did you mean Net"),
    "a module that is not beside the file": (["model.kind=nowhere.Net"], "nowhere"),
    "a `kind` of the wrong kind": (["trainer.kind=mine.Net"], "is not a .*BaseTrainer"),
    "`optimizer: {kind: Adamm}`": (["model.optimizer.kind=Adamm"], "did you mean Adam"),
    "`dataset_key: tset`": (["trainer.callbacks.0.dataset_key=tset"], r"did you mean test\?"),
    "`effective_batch_size: 0`": (["trainer.effective_batch_size=0"], "greater than or equal to 1"),
    "an optimizer in `model` and at the top": (
        ["++optimizer={kind: SGD, lr: 0.1}"],
        "keep only one of them",
    ),
    "`model.optimizer: null`": (["model.optimizer=null"], "leave it out to use AdamW"),
}


@pytest.mark.parametrize("what", FILES)
def test_run_files(project, what):
    overrides, match = FILES[what]
    with pytest.raises(ConfigError, match=match):
        Experiment.from_config(load_config("run.yaml", overrides))


PARTS = {
    "two models, of which one has no optimizer": (
        "{a: {kind: mine.Net, optimizer: {kind: SGD, lr: 0.1}}, b: {kind: mine.Net}}", "`optimizer: null`"),
    "an optimizer beside two models": (
        "{a: {kind: mine.Net}, b: {kind: mine.Net}, optimizer: {kind: SGD, lr: 0.1}}", "put one into each"),
    "a scheduler in one of two models without an optimizer": (
        "{a: {kind: mine.Net, scheduler: {kind: Cosine}}, b: {kind: mine.Net}}", "has no optimizer to schedule"),
    "a model whose name is no name": ("{a-1: {kind: mine.Net}, b: {kind: mine.Net}}", "usable as the name of a model"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_run_files_with_several_models(project, what):
    model, match = PARTS[what]
    with pytest.raises(ConfigError, match=match):
        Experiment.from_config(load_config("run.yaml", [f"model={model}"]))
