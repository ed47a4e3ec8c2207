"""A real training that logs images, histograms, texts and lines, and waits at gates that the test
opens."""

from __future__ import annotations

import logging
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loopwright

from .training import start_process

STEPS = 8  # of an epoch, and between two images
LOGGER = logging.getLogger("painting")


class PaintingTrainer(loopwright.Trainer):
    """Logs at every eighth step, and waits before every ninth until the file of that step is
    there."""

    gates = Path()
    fail_at = 0

    def train_step(self, batch: object) -> object:
        step = self.progress.step
        if step % STEPS == 0:
            while step and not self.gates.joinpath(str(step)).exists():
                time.sleep(0.01)
            self.paint(step)
        if step and step == self.fail_at:
            raise RuntimeError("no <b>paint</b> is left")
        return super().train_step(batch)

    def paint(self, step: int) -> None:
        source = torch.linspace(0, 1, 16).expand(3, 16, 16)
        made = source * (step / 64)
        self.log_images(
            "triplet", [source, made, 1 - source], captions=["input", "generated", "target"]
        )
        self.log_histogram("weights", self.model.weight)
        self.log_text("note", f"painted after {step} steps")
        LOGGER.warning("painted after %d steps", step)


def paint(run_dir: str, gates: str, num_epochs: int, fail_at: int) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
    model = nn.Linear(4, 2)
    trainer = PaintingTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), run_dir=run_dir
    )
    trainer.gates, trainer.fail_at = Path(gates), fail_at
    trainer.train(DataLoader(data, 8), num_epochs)


def start_painting(run_dir: Path, gates: Path, *, num_epochs: int, fail_at: int = 0) -> BaseProcess:
    """Begin a training; `gates / "8"` lets it pass step 8."""
    gates.mkdir(exist_ok=True)
    return start_process(paint, str(run_dir), str(gates), num_epochs, fail_at)
