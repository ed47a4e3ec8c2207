"""Runs with everything that has state, ways to end them, and what it means that two are the
same."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from loopwright import Callback, Schedule, Trainer
from loopwright.callbacks.checkpoints import Checkpoints
from loopwright.run import MetricsStore, MetricsView

from .loops import assert_same_model, assert_same_optimizer, build_net

cross_entropy = nn.functional.cross_entropy
adam = partial(torch.optim.Adam, lr=0.01)


class Killed(BaseException):
    """Stands for SIGKILL: nothing that could save anything hears of it in time."""


class KillAt(Callback):
    """Ends the program at an update, before anything else that happens there."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_step_start(self, trainer, batch):
        if trainer.progress.update == self.update:
            raise Killed


def build_trainer(run_dir: Path | None, callbacks=(), **options: object) -> Trainer:
    """Everything that has state: dropout, batch norm, Adam, schedules per update, resume points at
    every update."""
    options = {"scheduler": Schedule(partial(ExponentialLR, gamma=0.95), every="update"), **options}
    saving = [Checkpoints(every_updates=1, asynchronous=False)] if run_dir is not None else []
    return Trainer(
        build_net(),
        adam,
        cross_entropy,
        run_dir=run_dir,
        callbacks=[*callbacks, *saving],
        progress="silent",
        **options,
    )


def steps_of(store: MetricsStore, name: str | None = None) -> list[tuple[int, int, str, float]]:
    """The (update, step, name, value) rows of one metric, or of all, in the order of steps."""
    store.flush()
    rows = MetricsView(store.path).rows("step", name)
    return [(point.update, point.at, key, point.value) for key, point in rows]


def epochs_of(store: MetricsStore, name: str | None = None) -> list[tuple[int, int, str, float]]:
    """The (epoch, update, name, value) rows of one metric, or of all, in the order of epochs."""
    store.flush()
    rows = MetricsView(store.path).rows("epoch", name)
    return [(point.at, point.update, key, point.value) for key, point in rows]


def rows(trainer: Trainer) -> tuple[list, list]:
    store = MetricsStore(trainer.run.files.directory.metrics_path)
    try:
        return steps_of(store), epochs_of(store)
    finally:
        store.close()


def commit_metrics(run) -> None:
    """Have what a run has logged so far in its file, as before a resume point; else a second of it
    may be queued."""
    for callback in run.callbacks:
        callback.write_before_save(run.program)


def assert_same_run(trainer: Trainer, other: Trainer) -> None:
    """Weights, optimizers, schedules, history and counters."""
    for name, model in trainer.models.items():
        assert_same_model(model, other.models[name])
    for name, optimizer in trainer.optimizers.items():
        assert_same_optimizer(optimizer, other.optimizers[name])
    for name, schedule in trainer.schedules.items():
        assert schedule.scheduler.state_dict() == other.schedules[name].scheduler.state_dict()
    assert trainer.history.epochs == other.history.epochs
    for name, series in trainer.history.steps.items():
        assert (series.steps, series.values) == (
            other.history.steps[name].steps,
            other.history.steps[name].values,
        )
    own, others = trainer.progress.state_dict(), other.progress.state_dict()
    for name in ("epoch", "step", "update", "sample", "epoch_step", "epoch_sample"):
        assert own[name] == others[name]
