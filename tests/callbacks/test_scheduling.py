"""Learning rates and weight decays that a curve sets over a run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import (
    LearningRateLog,
    Rewind,
    ScheduleWeightDecay,
)
from loopwright.schedules import (
    Constant,
    Cosine,
    Linear,
    WarmupCosine,
)

from ..callbacks.runs import assert_same_after_crash
from ..loops import assert_same_model, build_net, train_by_hand
from ..mistakes import raises

sgd = partial(torch.optim.SGD, lr=0.1)


def build(callbacks: Any = (), model: nn.Module | None = None, **options: Any) -> Trainer:
    options = {"optimizer": sgd, "progress": "silent"} | options
    return Trainer(
        model or build_net(), loss_fn=nn.functional.cross_entropy, callbacks=callbacks, **options
    )


def rates(points: Any, curve: Any, *, num_epochs: int | None = None, **options: Any) -> list[float]:
    limits = {name: options.pop(name) for name in ("num_updates", "num_samples") if name in options}
    trainer = build([LearningRateLog()], scheduler=curve, **options)
    trainer.train(points, num_epochs, batch_size=8, **limits)
    return list(trainer.history.steps["lr"])


def test_by_epochs_it_goes_by_the_samples_of_the_epoch(points):
    done = [(epoch + seen / 37) / 2 for epoch in range(2) for seen in (0, 8, 16, 24, 32)]
    assert rates(points, Linear(), num_epochs=2) == pytest.approx(
        [0.1 * (1 - part) for part in done]
    )


def test_the_nearest_limit_counts(points):
    assert rates(points, Linear(), num_epochs=100, num_updates=4) == pytest.approx(
        [0.1, 0.075, 0.05, 0.025]
    )


def test_a_cosine_is_bit_for_bit_a_hand_written_loop(points):
    model, other = build_net(), build_net()
    trainer = build(model=model, scheduler=Cosine())
    trainer.train(points, num_updates=10, batch_size=8)
    optimizer = sgd(other.parameters(), fused=True)

    class Step:
        """What one would write after `optimizer.step()`."""

        done = 0

        def step(self) -> None:
            self.done += 1
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * self.done / 10)) / 2

    train_by_hand(other, optimizer, points, epochs=2, every_update=Step())
    assert_same_model(model, other)


class Decays(Callback):
    """Notes the weight decay that each update is taken with."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self.seen.append(
            [group["weight_decay"] for group in trainer.optimizers[optimizer].param_groups]
        )


def decays(points: Any, callback: ScheduleWeightDecay) -> list[list[float]]:
    model, seen = build_net(), Decays()
    plain = {id(param) for param in model[4].parameters()}
    decayed = [param for param in model.parameters() if id(param) not in plain]
    groups = [{"params": model[4].parameters(), "weight_decay": 0.0}, {"params": decayed}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.2)
    build([callback, seen], model, optimizer=optimizer).train(points, num_updates=4, batch_size=8)
    return seen.seen


def test_weight_decay_follows_a_curve_and_where_there_is_none_it_stays_none(points):
    seen = decays(points, ScheduleWeightDecay(Linear(1.0, 2.0)))
    assert [second for _, second in seen] == pytest.approx([0.2, 0.25, 0.3, 0.35])
    assert {first for first, _ in seen} == {0.0}


def test_a_second_call_begins_the_curve_again(points):
    trainer = build([LearningRateLog()], scheduler=Linear())
    for _ in range(2):
        trainer.train(points, num_updates=5, batch_size=8)
    own = list(trainer.history.steps["lr"])
    assert own[:5] == own[5:]


@pytest.mark.parametrize("after_update", [4, 12])
def test_a_crashed_run_has_the_same_rates(tmp_path, points, after_update):
    assert_same_after_crash(
        tmp_path,
        points,
        lambda: [LearningRateLog(), ScheduleWeightDecay(Cosine(1.0, 3.0))],
        after_update,
        optimizer=partial(torch.optim.AdamW, lr=0.01),
        scheduler=WarmupCosine(warmup_updates=4),
    )


def test_rates_go_back_with_a_rewind(points):
    inputs, targets = (tensor.clone() for tensor in points.tensors)
    inputs[20] = float("nan")
    data = torch.utils.data.TensorDataset(inputs, targets)
    trainer = build([LearningRateLog(), Rewind(every_updates=3)], scheduler=Linear())
    trainer.train(data, num_updates=8, batch_size=8)
    assert list(trainer.history.steps["lr"]) == pytest.approx([0.1 * (1 - n / 8) for n in range(8)])


def test_a_run_that_is_limited_by_time_only_is_refused(points):
    with raises("curve-needs-length"):
        build(scheduler=Cosine()).train(points, max_time=1.0)


def test_each_of_several_optimizers_has_its_own_curve(points):
    class Pair(Trainer):
        def train_step(self, batch: Any) -> Any:
            loss = nn.functional.cross_entropy(
                self.first(batch[0]) + self.second(batch[0]), batch[1]
            )
            self.update(loss, "first", retain_graph=True)
            self.update(loss, "second")
            return loss

    trainer = Pair(
        {"first": build_net(1), "second": build_net(2)},
        {"first": sgd, "second": sgd},
        scheduler={"first": Linear(), "second": Constant()},
        callbacks=[LearningRateLog()],
        progress="silent",
    )
    trainer.train(points, num_updates=4, batch_size=8)
    assert list(trainer.history.steps["lr/first/0"]) == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert list(trainer.history.steps["lr/second/0"]) == [0.1] * 4
