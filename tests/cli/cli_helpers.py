"""Runs to look at, damage to them, and commands as a person or a script would start them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks.checkpoints import BestModel, Checkpoints

LOOPWRIGHT = [sys.executable, "-m", "loopwright", "checkpoint"]


def make_run(directory: Path, seed: int = 0) -> Trainer:
    """Three epochs of five updates, three resume points, the two best models."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(37, 6, generator=generator)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(1)
    trainer = Trainer(
        nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
        partial(torch.optim.Adam, lr=0.01),
        nn.functional.cross_entropy,
        callbacks=[BestModel(keep=2), Checkpoints(keep=3)],
        seed=seed,
        run_dir=directory,
        progress="silent",
    )
    trainer.train(data, 3, eval_data=data, batch_size=8)
    return trainer


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command without a terminal."""
    command = [*LOOPWRIGHT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run_on_terminal(
    *arguments: object, columns: int = 120, group: tuple[str, ...] = ("checkpoint",)
) -> tuple[int, str]:
    """The exit code of a command on a terminal, and what it shows there."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, columns))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
    } | {"TERM": "xterm"}
    command = [*LOOPWRIGHT[:3], *group, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    os.close(master)
    return process.wait(timeout=60), shown.decode()


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Leave only the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()
