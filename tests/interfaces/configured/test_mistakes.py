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

from loopwright import Callback
from loopwright.config import ConfigError, load_config
from loopwright.errors import LoopwrightError
from loopwright.interfaces.configured import (
    BaseTrainer,
    BaseTrainerConfig,
    Experiment,
    TrainerResult,
)

from . import gan
from .parts import CustomTrainer, build_trainer

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


# Steps

STEPS = {
    "the loss": (lambda self, b, m: loss_of(b, m), "no-trainer-result", "TrainerResult(total_loss"),
    "nothing": (lambda self, b, m: None, "no-trainer-result", "None"),
    "loss.item()": (lambda self, b, m: TrainerResult(loss_of(b, m).item()), "", "item()"),
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
    with refused("backward-twice", "self.update(loss)"):
        build_trainer(step(backward_and_return)).train()


def test_a_step_of_the_optimizer_where_updates_are_made_of_several_batches():
    with refused("", "max_batch_size"):
        build_trainer(step(plain), max_batch_size=4).train()


@pytest.mark.parametrize(("body", "error"), [(updating, LoopwrightError), (plain, RuntimeError)])
def test_an_update_in_an_evaluation(body, error):
    trainer = build_trainer(step(body))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with refused("", "override `eval_step(self, batch, model)`", error):
        trainer.evaluate("test")
    now = trainer.model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())


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


def test_a_forgotten_super_init():
    class Custom(CustomTrainer):
        def __init__(self, trainer_config, **kwargs):
            self.weight = trainer_config.weight

    trainer = build_trainer(Custom)
    with refused("no-super-init", "super().__init__(trainer_config, "):
        trainer.train()


# Settings and data


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"max_epoch": 3}, "max_epoch\n  Extra inputs are not permitted"),
        ({}, "exactly one of max_epochs, max_updates, max_samples"),
        ({"max_epochs": 1, "max_updates": 1}, "found max_epochs and max_updates"),
    ],
)
def test_settings(settings, value):
    with refused("", value, ValidationError):
        BaseTrainerConfig(**settings)


def test_batches():
    with refused("no-forward-properties", "CustomTrainer"):
        build_trainer(forward_properties=[])
    with refused("unknown-property", "did you mean coordinates?"):
        build_trainer(forward_properties=["coords"]).train()
    with refused("unknown-property", "_split_batch"):
        build_trainer(datasets={"train": TensorDataset(torch.randn(8, 3), torch.randn(8))}).train()


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


# Run files

FILES = {
    "`max_epoch: 3`": (["~trainer.max_updates", "+trainer.max_epoch=3"], "did you mean max_epochs"),
    "a misspelt setting of the model": (["+model.widht=3"], "did you mean width"),
    "a class that is not in the module": (["model.kind=mine.Nett"], "did you mean Net"),
    "a module that is not beside the file": (["model.kind=nowhere.Net"], "nowhere"),
    "a `kind` of the wrong kind": (["trainer.kind=mine.Net"], "is not a .*BaseTrainer"),
    "`optimizer: {kind: Adamm}`": (["model.optimizer.kind=Adamm"], "did you mean Adam"),
    "`effective_batch_size: 0`": (["trainer.effective_batch_size=0"], "greater than or equal to 1"),
    "an optimizer in `model` and at the top": (
        ["++optimizer={kind: SGD, lr: 0.1}"],
        "keep only one of them",
    ),
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
    "a model whose name is no name": ("{a-1: {kind: mine.Net}, b: {kind: mine.Net}}", "a name as in Python"),
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS)
def test_run_files_with_several_models(project, what):
    model, match = PARTS[what]
    with pytest.raises(ConfigError, match=match):
        Experiment.from_config(load_config("run.yaml", [f"model={model}"]))
