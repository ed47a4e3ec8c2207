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
from loopwright.callbacks import BestModel, Checkpoints
from loopwright.cli import main
from tests.forked import call_forked, end_as_program

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
        callbacks=[BestModel(keep=2), Checkpoints(every_epochs=1, keep=3)],
        seed=seed,
        run_dir=directory,
        progress="silent",
    )
    trainer.train(data, 3, eval_data=data, batch_size=8)
    return trainer


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command about checkpoints without a terminal, in a process of its own."""
    command = ["checkpoint", *map(str, arguments)]
    ended = call_forked(lambda: main(command), Path.cwd())
    return subprocess.CompletedProcess(command, ended.code, ended.out, ended.err)


def run_on_terminal(
    *arguments: object,
    columns: int = 120,
    group: tuple[str, ...] = ("checkpoint",),
    folder: Path | None = None,
) -> tuple[int, str]:
    """The exit code of a command on a terminal, and what it shows there."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid, terminal = pty.fork()
    if pid == 0:
        end_as_program(
            lambda: _main_on_terminal([*group, *map(str, arguments)], columns), folder or Path.cwd()
        )
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:  # raised when no process has the terminal open any more
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def _main_on_terminal(command: list[str], columns: int) -> int:
    termios.tcsetwinsize(1, (50, columns))
    os.environ["TERM"] = "xterm"
    return main(command)


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
