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

from loopwright import Callback, ConfigurationError, NonFiniteLossError
from loopwright.callbacks import OfflineLoss
from loopwright.config import ConfigError, load_config
from loopwright.interfaces.configured import (
    BaseTrainer,
    BaseTrainerConfig,
    Experiment,
    TrainerResult,
)

from . import gan
from .parts import CustomTrainer, Net, Points, build_trainer

SECTION = "Interface: configured"
FOREIGN = re.compile(
    r"runtime=|clip_norm|NonFiniteGuard|configure_|\baccumulate\b|split_supervised|StepResult"
)
VARYING = r"(?<=\()9\.\d+(?=\))|(?<=number )9\.\d+|https://errors.pydantic\S+"


@pytest.fixture
def refused(mistake):
    """The `mistake` fixture for this interface, whose messages have no words of the core's."""

    @contextmanager
    def check(what, error=ConfigurationError, *, match):
        with mistake(SECTION, what, error, match=match, hide=VARYING) as caught:
            yield
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert not FOREIGN.search(text), text

    return check


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
    "`loss_compute` without a return": (lambda out, y: None, "No losses computed"),
    "`loss_compute` that returns `loss.item()`": (
        lambda out, y: mse(out, y).item(),
        r"returned the number [\d.]+; expected .*without `.item",
    ),
    "a number among the named losses": (
        lambda out, y: {"mse": mse(out, y), "weight": 0.5},
        "'weight'",
    ),
    "a loss for each sample": (lambda out, y: (out - y) ** 2, r"shape \(8,\).*`loss.mean\(\)`"),
    "a loss that was detached": (lambda out, y: mse(out.detach(), y), "no graph"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_a_loss_that_cannot_be_trained(refused, what):
    body, match = RETURNED[what]
    with refused(what, match=match):
        build_trainer(losses(body)).train()


def test_a_target_that_is_not_there(refused):
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


def test_a_loss_that_is_not_a_number(refused):
    with refused("a loss that is NaN", NonFiniteLossError, match="`skip_nan_loss: true`"):
        build_trainer(losses(lambda out, y: mse(out, y) * float("nan"))).train()


# Steps

STEPS = {
    "`train_step` that returns the loss": (
        lambda self, b, m: loss_of(b, m),
        r"return TrainerResult\(total_loss=loss\)",
    ),
    "`train_step` that returns a dict": (
        lambda self, b, m: {"loss": loss_of(b, m)},
        r"train_step returned \{loss: ",
    ),
    "`train_step` without a return": (
        lambda self, b, m: None,
        "train_step returned None; expected a TrainerResult",
    ),
    "`TrainerResult(total_loss=1.0)`": (
        lambda self, b, m: TrainerResult(total_loss=1.0),
        r"float \(1\).*self.update",
    ),
    "`TrainerResult(loss.item())`": (
        lambda self, b, m: TrainerResult(loss_of(b, m).item()),
        r"self.update\(loss\)",
    ),
    "`TrainerResult(loss.detach())`": (
        lambda self, b, m: TrainerResult(loss_of(b, m).detach()),
        r"self.update\(loss\)",
    ),
    "`TrainerResult(total_loss=None)`": (lambda self, b, m: TrainerResult(None), "is None"),
}


@pytest.mark.parametrize("what", STEPS)
def test_a_step_that_returns_the_wrong_thing(refused, what):
    body, match = STEPS[what]
    with refused(what, match=match):
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


def test_backward_without_a_step(refused):
    with refused(
        "`loss.backward()` in `train_step`, and `TrainerResult(loss)`", match="Remove backward"
    ):
        build_trainer(step(backward_and_return)).train()
    with refused(
        "`loss.backward(retain_graph=True)` in `train_step`, and `TrainerResult(loss)`",
        match="Remove backw",
    ):
        build_trainer(step(backward_and_retain)).train()
    with refused(
        "`loss.backward()` in `train_step`, and `TrainerResult(loss.detach())`",
        match=r"self.update\(loss\)",
    ):
        build_trainer(step(backward_and_detach)).train()


def test_a_step_of_the_optimizer_where_updates_are_made_of_several_batches(refused):
    with refused(
        "`self.optimizer.step()` with `max_batch_size` below `effective_batch_size`",
        match="max_batch_size",
    ):
        build_trainer(step(plain), max_batch_size=4).train()


@pytest.mark.parametrize("evaluated", ["by a callback", "by evaluate"])
def test_an_update_in_an_evaluation(refused, evaluated):
    callbacks = [OfflineLoss("test")] if evaluated == "by a callback" else []
    trainer = build_trainer(step(updating), callbacks=callbacks)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with refused(
        "`self.update` in `train_step`, evaluated without an `eval_step`",
        match=r"override `eval_step\(",
    ):
        trainer.train() if callbacks else trainer.evaluate("test")
    if not callbacks:
        assert all(
            torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()
        )


def test_backward_in_an_evaluation(refused):
    with refused(
        "`loss.backward()` in `train_step`, evaluated without an `eval_step`",
        match=r"override `eval_step\(",
    ):
        build_trainer(step(plain)).evaluate("test")


def test_an_optimizer_step_in_an_evaluation(refused):
    class Sneaking(CustomTrainer):
        def eval_step(self, batch, model):
            with torch.enable_grad():
                loss = loss_of(batch, model)
                loss.backward()
            self.optimizer.step()
            return TrainerResult(loss)

    with refused(
        "`self.optimizer.step()` in `eval_step`", match="would train on the evaluation data"
    ):
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


def test_an_update_that_does_not_say_which_optimizer(refused):
    with refused(
        "`self.update(loss)` with two optimizers", match=r'self.update\(loss, "generator"\)'
    ):
        build_gan(gan_step(None)).train()
    with refused(
        "a `total_loss` and no update, with two optimizers",
        match=r'self.update\(loss, "generator"\)',
    ):
        build_gan(type("Gan", (gan.Gan,), {"train_step": gan.Gan.eval_step})).train()


def test_an_update_for_an_optimizer_that_is_not_there(refused):
    with refused('`self.update(loss, "discriminater")`', match=r"did you mean discriminator\?"):
        build_gan(gan_step("discriminater")).train()


def test_several_models_without_a_step_for_them(refused):
    class OnlyLoss(BaseTrainer):
        def loss_compute(self, forward_output, targets):
            return forward_output.mean()

    with refused("two models and only a `loss_compute`", match="override `train_step"):
        build_gan(OnlyLoss)


def test_predictions_of_several_models_must_be_said(refused):
    kind = type("Gan", (gan.Gan,), {"predict_step": BaseTrainer.predict_step})
    with refused("`predict` with two models and no `predict_step`", match="override `predict_step"):
        build_gan(kind).predict("train")


def test_the_optimizer_where_there_are_two(refused):
    with refused("`self.optimizer` with two optimizers", match=r"self.optimizers\[name\]"):
        _ = build_gan().optimizer


# The class


def test_methods_under_other_names_or_with_other_arguments(refused):
    names = {
        "compute_loss": "loss_compute",
        "training_step": "train_step",
        "split_batch": "_split_batch",
    }
    for name, meant in names.items():
        with refused(f"a method `{name}` for `{meant}`", match=f"did you mean {meant}"):
            build_trainer(type("CustomTrainer", (BaseTrainer,), {name: lambda self, batch: None}))
    with refused("`def loss_compute(self, outputs, targets)`", match="Write `def loss_compute"):
        build_trainer(
            type("Custom", (BaseTrainer,), {"loss_compute": lambda self, outputs, targets: None})
        )
    with refused(
        "`def train_step(self, batch)`", match=r"Write `def train_step\(self, batch, model\)`"
    ):
        build_trainer(type("Custom", (BaseTrainer,), {"train_step": lambda self, batch: None}))
    with refused("`on_epoch_end` as a method of the trainer", match="loopwright.Callback"):
        build_trainer(
            type("Custom", (CustomTrainer,), {"on_epoch_end": lambda self, metrics: None})
        )


def test_neither_a_loss_nor_a_step(refused):
    with refused("a trainer without `loss_compute`", match="override `loss_compute`"):
        build_trainer(BaseTrainer)


def test_a_forgotten_super_init(refused):
    class Custom(CustomTrainer):
        def __init__(self, trainer_config, **kwargs):
            self.weight = trainer_config.weight

    trainer = build_trainer(Custom)
    with refused(
        "`__init__` without `super().__init__`", match=r"call `super\(\).__init__\(trainer_config, "
    ):
        trainer.train()


def test_what_is_no_model_and_no_config(refused):
    with refused("`model=Net` in place of `model=Net()`", match="call it, as in Net"):
        build_trainer(model=Net)
    with refused("a dict as the config", match="pass a BaseTrainerConfig"):
        CustomTrainer({"max_epochs": 1}, model=Net(), datasets={"train": Points()})


# Settings and data


def test_settings(refused):
    with refused(
        "`BaseTrainerConfig(max_epoch=3)`",
        ValidationError,
        match=r"no setting max_epoch; did you mean max_epochs\?",
    ):
        BaseTrainerConfig(max_epoch=3)
    with refused(
        "no limit", ValidationError, match="exactly one of max_epochs, max_updates, max_samples"
    ):
        BaseTrainerConfig()
    with refused(
        "`max_epochs` and `max_updates`", ValidationError, match="found max_epochs and max_updates"
    ):
        BaseTrainerConfig(max_epochs=1, max_updates=1)
    with refused(
        "`disable_gradient_accumulation` with a smaller `max_batch_size`",
        ValidationError,
        match="leave one of them out",
    ):
        BaseTrainerConfig(max_epochs=1, max_batch_size=4, disable_gradient_accumulation=True)
    with refused("no `forward_properties`", match="list the keys of a batch"):
        build_trainer(forward_properties=[])


def test_batches(refused):
    with refused(
        "`forward_properties` that a batch does not have",
        match="'coords'.*it has: coordinates, features.*Did you mean coordinates",
    ):
        build_trainer(forward_properties=["coords"]).train()
    with refused("`target_properties` that a batch does not have", match="'label'"):
        build_trainer(target_properties=["label"]).train()
    with refused("samples that are no dicts", match="return dicts from the data set"):
        build_trainer(datasets={"train": TensorDataset(torch.randn(8, 3), torch.randn(8))}).train()
    with refused(
        "`evaluate` with a key that is not there",
        match=r"no data set 'tset'.*Did you mean 'test'\?",
    ):
        build_trainer().evaluate("tset")
    with refused("no data set `train`", match="Add it under `datasets`"):
        build_trainer(datasets={"test": Points()}).train()


def test_a_model_with_other_arguments(refused):
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


def test_callbacks(refused):
    with refused("a callback with a misspelt event", match="did you mean on_epoch_end"):
        build_trainer(
            callbacks=[type("Mine", (Callback,), {"on_epoch_ended": lambda self, trainer: None})()]
        )
    with refused(
        "a callback with an event of the published system", match="here that event is on_update_end"
    ):
        build_trainer(
            callbacks=[
                type("Mine", (Callback,), {"after_update": lambda self, update_counter: None})()
            ]
        )
    with refused(
        "`OfflineLoss` of a data set that is not there", match="no data set with that name"
    ):
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
def test_run_files(project, refused, what):
    overrides, match = FILES[what]
    with refused(what, ConfigError, match=match):
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
def test_run_files_with_several_models(project, refused, what):
    model, match = PARTS[what]
    with refused(what, ConfigError, match=match):
        Experiment.from_config(load_config("run.yaml", [f"model={model}"]))
