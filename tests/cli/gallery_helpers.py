"""Runs in every state, made by real trainings, and a run from YAML; commands run in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints

ROOT = Path(__file__).parents[2]

MODULE = """
import torch
from torch import nn
from torch.utils.data import Dataset
from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig

class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)

class Points(Dataset):
    def __init__(self, n: int = 32):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].sum(0, keepdim=True)}

class PointTrainer(BaseTrainer):
    def __init__(self, trainer_config: BaseTrainerConfig, **deps):
        super().__init__(trainer_config, **deps)

    def loss_compute(self, forward_output, targets):
        return {"mse": nn.functional.mse_loss(forward_output, targets["y"])}
"""
CONFIG = """
seed: 3
name: points
tags: [small, demo]
model: {kind: cli_points.Net, width: 8, optimizer: {kind: torch.optim.AdamW, lr: 0.01}}
datasets: {train: {kind: cli_points.Points, n: 24}}
trainer: {kind: cli_points.PointTrainer, max_epochs: 2, effective_batch_size: 8,
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


def train_run(path: Path, seed: int = 0, *, how: str = "finished", epochs: int = 3, lr: float = 0.05) -> None:
    """A few epochs of four updates on a line."""
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    callbacks = [Ending(how), Checkpoints(asynchronous=False)]
    trainer = Trainer(model, optimizer, nn.MSELoss(), seed=seed, run_dir=path, progress="silent", callbacks=callbacks)
    if how in ("finished", "stopped"):
        trainer.train(data, epochs, eval_data=data, batch_size=8)
    else:
        with pytest.raises((RuntimeError, SystemExit)):
            trainer.train(data, epochs, eval_data=data, batch_size=8)


def train_and_be_killed(path: Path) -> None:
    """The same in a process that is killed in its second epoch, once everything it has is written."""
    program = f"""
    import os, signal, sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import gallery_helpers
    gallery_helpers.Ending.on_epoch_end = lambda self, trainer, metrics: (
        trainer.progress.epoch == 2 and os.kill(os.getpid(), signal.SIGKILL))
    gallery_helpers.train_run({str(path)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL


@contextmanager
def locked_by_another_process(path: Path):
    """A process that holds the lock of a run, as one that trains does."""
    program = (
        "import sys\nfrom loopwright.run.directory import RunDirectory\n"
        "with RunDirectory(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.communicate("", timeout=30)


def train_from_yaml(folder: Path, *overrides: str) -> Path:
    """A run as its config describes it, in runs/points of the folder."""
    from loopwright.config import load_config
    from loopwright.doors.configured.experiment import Experiment

    (folder / "cli_points.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    experiment = Experiment.from_config(load_config(folder / "run.yaml", overrides), progress="silent")
    with chdir(folder):
        experiment.train(resume=False)
    assert experiment.run is not None
    return experiment.run
