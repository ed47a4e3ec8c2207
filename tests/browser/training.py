"""A real training in a process of its own, slow enough to be watched."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import chdir
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

# (the first optimizer imports it, which takes seconds: once here, not in every process)
import torch._dynamo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loopwright
from loopwright.callbacks import Checkpoints

# Processes are forked from a process that has imported torch and does nothing else: it has no
# threads, unlike the one
# of the tests, in which a server and a browser's driver run.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__])


class SlowTrainer(loopwright.Trainer):
    """A trainer that waits in every step, and at `halt` until it is killed."""

    halt = 0
    wait = 0.005

    def train_step(self, batch: object) -> object:
        while self.halt and self.progress.step + 1 == self.halt:
            time.sleep(0.01)
        time.sleep(self.wait)
        return super().train_step(batch)


def train(run_dir: str, num_epochs: int, halt: int = 0, wait: float = 0.005) -> None:
    """Train a small model; the same call continues a run that was killed."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    data = TensorDataset(inputs, (inputs.sum(1, keepdim=True) > 0).float())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    saving = Checkpoints(every_epochs=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = SlowTrainer(
        model, optimizer, nn.BCEWithLogitsLoss(), run_dir=run_dir, callbacks=[saving]
    )
    trainer.halt, trainer.wait = halt, wait
    trainer.train(DataLoader(data, 16, shuffle=True), num_epochs, DataLoader(data, 64))


def start(run_dir: Path, num_epochs: int, halt: int = 0, wait: float = 0.005) -> BaseProcess:
    """Begin, or continue, a training."""
    return start_process(train, str(run_dir), num_epochs, halt, wait)


def start_process(function: Callable[..., None], *arguments: object) -> BaseProcess:
    process = processes.Process(target=function, args=arguments, daemon=True)
    # where the fork server, which the first process starts, finds this module
    with chdir(Path(__file__).parents[2]):
        process.start()
    return process
