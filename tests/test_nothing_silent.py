"""What strangers found: ordinary programs that went wrong, or on, without a word."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from loopwright import Callback, ConfigurationError, Schedule, Trainer
from loopwright.callbacks import EMA, BestModel, Checkpoints, EarlyStopping

from .loops import build_linear, build_net
from .mistakes import raises

sgd = partial(torch.optim.SGD, lr=0.1)
SECTION = "Steps that train nothing, or the wrong thing"


def build(kind: type[Trainer] = Trainer, loss_fn: Any = F.cross_entropy, **options: Any) -> Trainer:
    return kind(build_linear(), sgd, loss_fn, **({"progress": "silent"} | options))


# The same program, or another one


@pytest.mark.parametrize("name", ["forward", "prepare_batch", "split_batch"])
def test_parts_of_the_step_that_are_overridden_are_part_of_the_program(points, tmp_path, name):

    class Other(Trainer):
        pass

    setattr(Other, name, lambda self, value: getattr(Trainer, name)(self, value))
    build(run_dir=tmp_path).train(points, 1, batch_size=8)
    with pytest.raises(ConfigurationError, match=f"{name}: the default before, overridden now"):
        build(Other, run_dir=tmp_path).train(points, 2, batch_size=8)


# A run that has ended


class Worse(Trainer):
    def eval_step(self, batch: Any) -> Any:
        return {"loss": float(self.progress.epoch)}


def test_a_run_that_a_callback_ended_says_so_and_goes_on_when_asked(points, tmp_path, capsys):
    def train(patience: int, **options: Any) -> Trainer:
        trainer = build(
            Worse, run_dir=tmp_path, callbacks=[EarlyStopping(patience=patience)], progress="lines"
        )
        trainer.train(points, 5, points, batch_size=8, **options)
        return trainer

    train(1)
    capsys.readouterr()
    assert train(9).progress.epoch == 2
    line = capsys.readouterr().out.splitlines()[0]
    assert "it ended because: eval_loss has not improved for 1 epoch" in line
    assert train(9, changes="accept").progress.epoch == 5


def test_the_first_of_two_calls_is_said_to_be_finished_and_no_more(points, tmp_path, capsys):
    class Dies(Callback):
        def on_epoch_start(self, trainer: Trainer) -> None:
            if trainer.progress.epoch == 3:
                raise KeyboardInterrupt

    def program(*callbacks: Callback) -> Trainer:
        saving = Checkpoints(every_updates=1, asynchronous=False)
        trainer = build(run_dir=tmp_path, callbacks=[*callbacks, saving], progress="lines")
        trainer.train(points, 2, batch_size=8)
        trainer.train(points, 2, batch_size=8)
        return trainer

    with pytest.raises(KeyboardInterrupt):
        program(Dies())
    capsys.readouterr()
    assert program().progress.epoch == 4
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert (
        first
        == "Call 1 of `train` was finished by an earlier process; the run continues in call 2."
    )
    assert second.startswith("epoch")


# What is trained, and when


def test_parameters_that_no_optimizer_has_are_named_at_the_start(points, capsys):
    net = build_net()
    trainer = Trainer(net, sgd(net[0].parameters()), F.cross_entropy, progress="lines")
    trainer.train(points, 1, batch_size=8)
    line = capsys.readouterr().out.splitlines()[0]
    assert "No optimizer trains model.1.weight" in line


def test_the_line_at_the_start_says_how_often_a_scheduler_is_stepped(points, capsys):
    for scheduler, text in (
        (partial(CosineAnnealingLR, T_max=15), "CosineAnnealingLR stepped once per epoch"),
        (Schedule(partial(CosineAnnealingLR, T_max=15), every="update"), None),
    ):
        build(scheduler=scheduler, progress="lines").train(points, 1, batch_size=8)
        line = capsys.readouterr().out.splitlines()[0]
        assert text in line if text else "stepped" not in line


def test_a_sum_is_refused_where_a_batch_is_put_together_from_parts(points):
    trainer = build(loss_fn=nn.CrossEntropyLoss(reduction="sum"), accumulate=2)
    with raises("summed-loss", "accumulate=2"):
        trainer.train(points, 1, batch_size=8)


@pytest.mark.parametrize("size", [2, 8])
def test_a_split_batch_that_returns_one_value_is_refused(points, size):
    class One(Trainer):
        def split_batch(self, batch: Any) -> Any:
            return batch[0]

    with pytest.raises(
        ConfigurationError, match=r"`split_batch` returned a float32 tensor.*\(inputs, targets\)"
    ):
        build(One).train(points, 1, batch_size=size)


def test_predictions_of_a_loader_that_shuffles_are_refused(points, mistake):
    with mistake(
        "Data", "`predict` of a DataLoader that shuffles", ConfigurationError, match="shuffles"
    ):
        build().predict(DataLoader(points, 8, shuffle=True))


def test_a_batch_of_one_for_batch_norm_gets_the_right_advice(points):
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        Trainer(net, sgd, F.cross_entropy, progress="silent").train(points, 1, batch_size=36)
    assert "drop_last=True" in "".join(caught.value.__notes__)


class ByHand(Trainer):
    """Steps of the user's own, in an order that trains nothing."""

    def train_step(self, batch: Any) -> Any:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss.detach()


def test_steps_that_never_had_a_gradient_are_an_error_at_the_end_of_the_first_epoch(
    points, mistake
):
    what = "`loss.backward(); optimizer.zero_grad(); optimizer.step()`"
    with mistake(
        SECTION, what, ConfigurationError, match="stepped 5 times but never had a gradient"
    ):
        build(ByHand).train(points, 2, batch_size=8)


def test_an_optimizer_that_was_never_stepped_is_named_after_the_first_epoch(points, capsys):
    class OnlyFirst(Trainer):
        def train_step(self, batch: Any) -> Any:
            loss = F.cross_entropy(self.first(batch[0]) + self.second(batch[0]), batch[1])
            self.update(loss, "first")
            return loss

    models = {"first": build_linear(), "second": build_linear()}
    OnlyFirst(models, {"first": sgd, "second": sgd}, progress="lines").train(
        points, 2, batch_size=8
    )
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if "did not train everything" in line
    ]
    assert "optimizer 'second' was never stepped, so its 2 parameters have not changed" in line


def test_models_kept_by_a_metric_of_averages_are_said_not_to_be_averages(points, capsys):
    callbacks = [EMA(0.5), BestModel("eval_ema_loss")]
    build(callbacks=callbacks, progress="lines").train(points, 1, points, batch_size=8)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "eval_ema_loss'" in line]
    assert "the model's own weights, but compares them by 'eval_ema_loss'" in line
