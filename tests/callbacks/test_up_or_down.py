"""Whether a metric is to be small or large: what callbacks and schedulers take for better, and what
they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from loopwright import ConfigurationError, Trainer
from loopwright.callbacks import (
    EMA,
    BestMetric,
    BestModel,
    EarlyStopping,
    OfflineLoss,
)
from loopwright.optim.build import Schedule
from loopwright.run.reading import Run

from ..mistakes import raises
from .runs import Logged, build_trainer, train


class NamedLosses(Trainer):
    """Two losses under names that are in no table, or in the wrong one."""

    def compute_loss(self, outputs: Any, targets: Any) -> dict[str, Tensor]:
        return {
            "fit": nn.functional.cross_entropy(outputs, targets),
            "score": outputs.square().mean(),
        }


def named_losses(callbacks: Sequence[Any], **options: Any) -> Trainer:
    torch.manual_seed(0)
    return NamedLosses(
        nn.Linear(6, 3),
        partial(torch.optim.SGD, lr=0.05),
        callbacks=callbacks,
        progress="silent",
        **options,
    )


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "metric", ["fit", "score", "eval_fit", "eval_score", "eval_ema_score", "held_score"]
)
def test_what_a_step_returns_as_a_loss_is_minimised_under_every_prefix(points, metric):
    stopping = EarlyStopping(metric, patience=9)
    held = OfflineLoss("held", datasets={"held": points}, batch_size=8)
    trainer = train(named_losses([EMA(0.9), held, stopping]), points)
    assert (stopping.mode, trainer.run.metrics.directions.of(metric)) == ("min", "min")
    assert stopping.best == min(trainer.history[metric])


def test_a_name_that_says_nothing_is_asked_about_before_the_first_step(points):
    script = Logged(foo=[1.0])
    trainer = build_trainer([script, EarlyStopping("foo")])
    with raises("unknown-direction", "EarlyStopping", "'foo'"):
        train(trainer, points)
    assert (trainer.progress.step, script.weights) == (0, [])


def test_the_mode_is_noted_in_the_run_and_with_the_model(points, tmp_path):
    callbacks = [
        Logged(foo=[3.0, 1.0, 2.0]),
        BestModel("foo", "min"),
        BestMetric("eval_fit"),
        EMA(0.9),
    ]
    train(named_losses(callbacks, run_dir=tmp_path), points)
    modes = json.loads((tmp_path / "run.json").read_text())["metric_modes"]
    falling = (
        "foo",
        "loss",
        "fit",
        "score",
        "eval_loss",
        "eval_fit",
        "eval_score",
        "eval_ema_fit",
        "best_eval_fit",
    )
    assert {name: modes[name] for name in falling} == dict.fromkeys(falling, "min")
    run = Run(tmp_path)
    (kept,) = [info for info in run.checkpoints() if info.kind == "kept"]
    assert (kept.metric, kept.mode, run.best("foo").value, run.main_metric) == (
        ("foo", 1.0),
        "min",
        1.0,
        "foo",
    )


def test_a_finished_run_puts_the_best_back_by_the_mode_that_was_noted(points, tmp_path):
    def run() -> Trainer:
        return train(
            named_losses([BestModel("eval_score", restore=True)], run_dir=tmp_path), points
        )

    first, again = run(), run()
    assert again.progress.update == first.progress.update
    assert same(first.model.state_dict(), again.model.state_dict())


def plateau(points: Any, own_mode: str, **options: Any) -> Trainer:
    def build(optimizer: Any) -> ReduceLROnPlateau:
        return ReduceLROnPlateau(optimizer, own_mode, factor=0.1, patience=0)

    script = Logged(accuracy=[0.1, 0.2, 0.3])
    return train(build_trainer([script], scheduler=Schedule(build, **options)), points)


def test_a_plateau_scheduler_that_takes_better_for_worse_is_refused(points, mistake):
    with mistake("Up or down", '`Schedule(ReduceLROnPlateau(optimizer), metric="accuracy")`, whose mode is "min"',
                 ConfigurationError, match="larger values are better"):  # fmt: skip
        plateau(points, "min", metric="accuracy")
    with mistake("Up or down", '`ReduceLROnPlateau(optimizer, mode="max")`, which watches the loss',
                 ConfigurationError, match="smaller values are better"):  # fmt: skip
        plateau(points, "max")


def test_a_plateau_scheduler_whose_mode_is_right_or_was_said_is_used(points):
    rising = plateau(points, "max", metric="accuracy")
    assert rising.optimizers["optimizer"].param_groups[0]["lr"] == 0.01
    said = plateau(points, "min", metric="accuracy", mode="min")
    assert said.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 * 0.1**2)


class Pairs(Trainer):
    """A step of the user's own that returns everything by name."""

    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.forward(inputs), targets)
        self.update(loss)
        return {"loss": loss, "margin_x": loss.detach()}


def test_an_own_step_has_its_loss_minimised_and_is_asked_about_other_names(points):
    def build(metric: str) -> Trainer:
        model = nn.Linear(6, 3)
        return Pairs(model, torch.optim.SGD(model.parameters(), 0.1), callbacks=[EarlyStopping(metric)],
                     progress="silent")  # fmt: skip

    build("loss").train(points, 1, batch_size=8)
    with raises("unknown-direction", "'margin_x'"):
        build("margin_x").train(points, 1, batch_size=8)
