"""Experiments from the run file of a project, what they recorded, and the loop that one of them
stands for."""

from pathlib import Path

import torch

from loopwright.config import load_config
from loopwright.data.order import permutation
from loopwright.data.random import seed_everything
from loopwright.interfaces.configured import Experiment
from loopwright.run import MetricsStore
from tests.runs import epochs_of, steps_of

from .parts import Net, Points


def experiment(*overrides, file="run.yaml"):
    return Experiment.from_config(load_config(file, overrides), progress="silent")


def rows(run):
    store = MetricsStore(Path(run) / "metrics.sqlite")
    try:
        return steps_of(store), epochs_of(store)
    finally:
        store.close()


def train_by_hand(updates=37, width=16, weight=0.25):
    seed_everything(0)
    model, data = Net(width), Points(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), fused=True)
    seed_everything(0)
    done = epoch = 0
    while True:
        for indices in permutation(0, epoch, len(data)).split(8):
            error = model(**data.rows(indices)) - data.labels[indices]
            ((error**2).mean() + weight * error.abs().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == updates:
                return model
        epoch += 1
