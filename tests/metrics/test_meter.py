"""Averages are sums and counts in float64, whatever the batches were and whenever they were
read."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

from loopwright import Callback, ConfigurationError, StepResult, Trainer
from loopwright.callbacks.nonfinite import NonFiniteGuard
from loopwright.metrics.meter import Meter
from tests.loops import build_linear, build_net, evaluate_by_hand

from ..mistakes import raises

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)
finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(
    steps=st.lists(st.tuples(finite, st.integers(1, 50)), min_size=1, max_size=30),
    flush_every=st.integers(1, 40),
)
@settings(max_examples=50, deadline=None)
def test_an_average_weighs_samples_and_does_not_depend_on_when_it_is_read(steps, flush_every):
    meter, other = Meter(), Meter()
    for number, (value, size) in enumerate(steps, start=1):
        meter.add(StepResult(value, size))
        other.add(StepResult(value, size))
        if number % flush_every == 0:
            meter.flush()
    total, count = 0.0, 0
    for value, size in steps:
        total, count = total + value * size, count + size
    assert meter.compute() == other.compute() == {"loss": total / count}


@given(steps=st.lists(st.tuples(finite, st.integers(0, 20)), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_sums_are_divided_by_what_they_counted(steps):
    meter = Meter()
    for total, count in steps:
        meter.add(StepResult(torch.tensor(total, dtype=torch.float64), 4, {}, torch.tensor(count)))
    counted = sum(count for _, count in steps)
    loss = meter.compute()["loss"]
    summed = 0.0
    for total, _ in steps:
        summed += total
    assert loss == summed / counted if counted else math.isnan(loss)


def test_a_metric_of_many_numbers_is_refused_by_name():
    meter = Meter()
    meter.add(StepResult(None, 2, {"per_class": torch.zeros(3)}))
    with raises("step-metric"):
        meter.flush()


def test_what_is_logged_belongs_to_the_phase():
    meter = Meter()
    meter.log({"lr": 0.1, "norm": torch.tensor(2.0)})
    meter.log({"lr": 0.2})
    assert meter.compute() == {"lr": 0.2, "norm": 2.0}
    with raises("logged-value", "'x'"):
        meter.log({"x": "much"})


def test_logging_to_a_step_needs_a_step():
    with raises("no-step-to-log", "`log`"):
        Meter().add_to_last({"x": 1.0})


# In a run


@pytest.mark.parametrize("batch_size", [1, 5, 8, 36, 37])
def test_an_evaluation_is_the_mean_over_samples_under_any_batch_size(points, batch_size):
    net = build_net().double()
    data = torch.utils.data.TensorDataset(points.tensors[0].double(), points.tensors[1])
    trainer = Trainer(net, sgd, cross_entropy, progress="silent")
    loss = trainer.evaluate(data, batch_size=batch_size)["loss"]
    assert loss == pytest.approx(evaluate_by_hand(net, data), rel=1e-13)


def test_torchmetrics_returned_from_a_step_are_computed_at_the_end_and_reset(points):
    class Measured(Trainer):
        def configure_models(self):
            super().configure_models()
            self.accuracy = MulticlassAccuracy(3, average="micro")

        def eval_step(self, batch):
            outputs = self.model(batch[0])
            self.accuracy.update(outputs, batch[1])
            return {"loss": cross_entropy(outputs, batch[1]), "accuracy": self.accuracy}

    net = build_linear()
    trainer = Measured(net, sgd, cross_entropy, progress="silent")
    share = (net(points.tensors[0]).argmax(1) == points.tensors[1]).double().mean().item()
    for _ in range(2):
        assert trainer.evaluate(points, batch_size=8)["accuracy"] == pytest.approx(share, rel=1e-6)


def test_a_training_metric_is_not_lost_when_an_epoch_is_trained_in_two_calls(points):
    class Measured(Trainer):
        def configure_models(self):
            super().configure_models()
            self.seen = SumMetric()

        def train_step(self, batch):
            self.seen.update(len(batch[1]))
            return {"loss": super().train_step(batch).loss, "seen": self.seen}

    trainer = Measured(build_linear(), sgd, cross_entropy, progress="silent")
    trainer.train(points, num_updates=2, batch_size=8)
    assert trainer.history["seen"] == [16.0]
    trainer.train(points, num_updates=3, batch_size=8)
    assert trainer.history["seen"] == [37.0]
    trainer.train(points, num_updates=2, batch_size=8)
    trainer.train([points.tensors], num_epochs=1)
    assert trainer.history["seen"] == [37.0, 16.0, 37.0]


def test_skipped_steps_are_left_out_of_the_epoch(points):
    pairs = list(zip(points.tensors[0].clone().split(8), points.tensors[1].split(8), strict=True))
    pairs[2][0][:] = math.nan
    net = build_linear()
    trainer = Trainer(
        net,
        partial(torch.optim.SGD, lr=0.0),
        cross_entropy,
        callbacks=[NonFiniteGuard("skip")],
        progress="silent",
    )
    history = trainer.train(pairs)
    kept = [cross_entropy(net(x), y).item() * len(y) for x, y in pairs[:2] + pairs[3:]]
    assert history.last("loss") == pytest.approx(sum(kept) / (37 - 8))
    assert math.isnan(history.steps["loss"].values[2])


def test_a_metric_that_no_row_would_have_is_refused_and_one_of_the_epoch_under_way_is_kept(
    points, mistake
):
    def build(event):
        logs = type("Logs", (Callback,), {event: lambda self, trainer, *_: trainer.log({"x": 2.5})})
        return Trainer(build_net(), sgd, cross_entropy, callbacks=[logs()], progress="silent")

    for event in ("on_epoch_start", "on_train_step_end", "on_train_epoch_end", "on_eval_end"):
        trainer = build(event)
        trainer.train(points, 2, eval_data=points)
        assert trainer.history["eval_x" if event == "on_eval_end" else "x"] == [2.5, 2.5], event
    with mistake(
        "Arguments",
        "`trainer.log` in `on_epoch_end`",
        ConfigurationError,
        match="on_train_epoch_end",
    ):
        build("on_epoch_end").train(points)
    with mistake(
        "Arguments",
        "`trainer.log` after training",
        ConfigurationError,
        match="no epoch or evaluation",
    ):
        trainer.log({"accuracy": 0.5})
    with pytest.raises(ConfigurationError, match=r"log\(x\): no epoch"):
        build("on_train_start").train(points)
