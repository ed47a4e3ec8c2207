"""Stored programs of the native `Trainer`; each trains where it is started. Nothing here may
change: see `make.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from loopwright import Schedule, StepResult, Trainer
from loopwright.callbacks import (
    EMA,
    BestModel,
    Checkpoints,
    EarlyStopping,
    LearningRateLog,
    ScheduleWeightDecay,
)
from loopwright.losses import GANLoss
from loopwright.schedules import WarmupCosine

from .parts import classifier, count_steps, eighths, outcome, points


def accumulating(dies_at: int | None = None) -> dict[str, Any]:
    """One model and all that ships around it, stopped inside an epoch and an accumulation
    window."""
    model = classifier()
    calls = count_steps(model, dies_at)
    ema, best, stopping = EMA(0.8), BestModel("eval_loss"), EarlyStopping("eval_loss", patience=3)
    saving = Checkpoints(every_updates=1, keep=1, asynchronous=False)
    trainer = Trainer(
        model,
        partial(torch.optim.AdamW, lr=0.05),
        nn.CrossEntropyLoss(),
        scheduler=partial(OneCycleLR, max_lr=0.05, total_steps=15),
        callbacks=[
            ema,
            best,
            stopping,
            LearningRateLog(),
            ScheduleWeightDecay(WarmupCosine(warmup=0.2)),
            saving,
        ],
        accumulate=2,
        clip_norm=0.5,
        run_dir="run",
        progress="silent",
    )
    trainer.train(points(18), 5, points(7, step=11), batch_size=3)
    return outcome(trainer, ema, best, stopping) | {"calls": len(calls)}


class Nearest:
    """The shortest distance seen in an epoch: a metric with a state."""

    def __init__(self) -> None:
        self.distance = 9.0

    def update(self, values: Tensor) -> None:
        self.distance = min(self.distance, float(values.detach().abs().min()))

    def compute(self) -> float:
        return self.distance

    def reset(self) -> None:
        self.distance = 9.0

    def state_dict(self) -> dict[str, Any]:
        return {"distance": self.distance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.distance = state["distance"]


class Adversaries(Trainer):
    """Two models with their optimizers, schedules by curves, and random numbers in the step."""

    generator: nn.Module
    discriminator: nn.Module
    nearest: Nearest

    def train_step(self, batch: Any) -> StepResult:
        (real,) = batch
        fake = self.generator(torch.rand(len(real), 2))
        judge: Any = self.loss_fn
        d_loss = judge(self.discriminator(real), True) + judge(
            self.discriminator(fake.detach()), False
        )
        self.update(d_loss, "discriminator")
        g_loss = judge(self.discriminator(fake), True)
        self.update(g_loss, "generator")
        self.nearest.update(fake)
        metrics = {"d_loss": d_loss, "g_loss": g_loss, "nearest": self.nearest}
        return StepResult(size=len(real), metrics=metrics)


def adversaries(dies_at: int | None = None) -> dict[str, Any]:
    """Two models and a metric with a state, stopped inside an epoch."""
    torch.manual_seed(3)
    models = {
        "generator": nn.Linear(2, 3),
        "discriminator": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
    }
    calls = count_steps(models["generator"], dies_at)
    trainer = Adversaries(
        models,
        {
            "generator": partial(torch.optim.Adam, lr=0.02, betas=(0.5, 0.9)),
            "discriminator": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        },
        GANLoss(),
        scheduler={"generator": WarmupCosine(warmup_updates=4)},
        callbacks=[Checkpoints(every_updates=1, keep=1, asynchronous=False)],
        run_dir="run",
        progress="silent",
    )
    trainer.nearest = Nearest()
    trainer.train([(batch,) for batch in eighths(20, 3).split(4)], 4)
    return outcome(trainer) | {"calls": len(calls)}


def plateau(dies_at: int | None = None) -> dict[str, Any]:
    """Two calls of `train`, stopped between epochs of the second."""
    model = classifier(2)
    calls = count_steps(model, dies_at)
    trainer = Trainer(
        model,
        partial(torch.optim.SGD, lr=0.4, momentum=0.9),
        nn.CrossEntropyLoss(),
        scheduler=Schedule(partial(ReduceLROnPlateau, factor=0.5, patience=0), metric="eval_loss"),
        callbacks=[
            BestModel("eval_loss", keep=2),
            Checkpoints(every_epochs=1, keep=1, asynchronous=False),
        ],
        clip_value=0.3,
        run_dir="run",
        progress="silent",
    )
    trainer.train(points(16), 2, points(7, step=11), batch_size=4)
    trainer.train(points(16), 3, points(7, step=11), batch_size=4)
    return outcome(trainer) | {"calls": len(calls)}
