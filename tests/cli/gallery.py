"""Runs in every state, made by real trainings, and a run from YAML; commands run in this
process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.run import RunDirectory
from tests.cli.projects import MODULE
from tests.forked import call_forked
from tests.runs import commit_metrics

ROOT = Path(__file__).parents[2]
forking = multiprocessing.get_context("fork")

CONFIG = """
seed: 3
name: points
tags: [small, demo]
model: {kind: cli_project.Net, width: 8, optimizer: {kind: torch.optim.AdamW, lr: 0.01}}
datasets: {train: {kind: cli_project.Points, n: 24}}
trainer: {kind: cli_project.PointTrainer, max_epochs: 2, effective_batch_size: 8,
          forward_properties: [x], target_properties: [y]}
"""


class Ending(Callback):
    """Ends a run in its second epoch, one way or another."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_epoch_end(self, trainer, metrics):
        if trainer.progress.epoch == 2:
            if self.how == "stopped":
                trainer.stop("enough")
            elif self.how == "failed":
                raise RuntimeError("boom")
            elif self.how == "interrupted":
                os.kill(os.getpid(), signal.SIGTERM)
            elif self.how == "killed":
                commit_metrics(trainer.run)
                os.kill(os.getpid(), signal.SIGKILL)


def train_run(
    path: Path, seed: int = 0, *, how: str = "finished", epochs: int = 3, lr: float = 0.05
) -> None:
    """A few epochs of four updates on a line."""
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    callbacks = [Ending(how), Checkpoints(every_epochs=1, asynchronous=False)]
    trainer = Trainer(
        model,
        optimizer,
        nn.MSELoss(),
        seed=seed,
        run_dir=path,
        progress="silent",
        callbacks=callbacks,
    )
    if how in ("finished", "stopped"):
        trainer.train(data, epochs, eval_data=data, batch_size=8)
    else:
        with pytest.raises((RuntimeError, SystemExit)):
            trainer.train(data, epochs, eval_data=data, batch_size=8)


def train_and_be_killed(path: Path) -> None:
    """The same in a process that is killed in its second epoch, once everything it has is
    written."""
    done = call_forked(lambda: train_run(path, how="killed"), path.parent)
    assert done.code == -signal.SIGKILL, done.err


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """A process that holds the lock of a run, as one that trains does."""
    ours, theirs = forking.Pipe()
    holder = forking.Process(target=_hold, args=(path, theirs))
    holder.start()
    theirs.close()
    assert ours.recv() == "held"
    yield
    ours.send("enough")
    holder.join()


def _hold(path: Path, connection: Connection) -> None:
    with RunDirectory(path):
        connection.send("held")
        connection.recv()


def train_from_yaml(folder: Path, *overrides: str) -> Path:
    """A run as its config describes it, in runs/points of the folder."""
    from loopwright.config import load_config
    from loopwright.interfaces.configured.experiment import Experiment

    (folder / "cli_project.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    experiment = Experiment.from_config(
        load_config(folder / "run.yaml", overrides), progress="silent"
    )
    with chdir(folder):
        experiment.train(resume=False)
    assert experiment.run is not None
    return experiment.run
