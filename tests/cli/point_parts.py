"""What the projects of these tests train: it is copied to each of them as `cli_project.py`."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from loopwright import Callback
from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig


class Net(nn.Module):
    def __init__(self, width: int = 8, is_broken: bool = False):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1)
        )
        self.is_broken = is_broken

    def forward(self, x):
        if self.is_broken:
            raise ZeroDivisionError("no luck today")
        return self.body(x)


class TwoHeads(Net):
    def forward(self, x):
        mean = self.body(x)
        return {"mean": mean, "heads": (mean + 1, mean.to(torch.bfloat16))}


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
        if isinstance(forward_output, dict):
            forward_output = forward_output["mean"]
        return {"mse": nn.functional.mse_loss(forward_output, targets["y"])}


class Signal(Callback):
    """Sends this process a signal after an update, but only where no run went that far before."""

    def __init__(self, number: int, update: int, marker: str = "sent"):
        self.number, self.update, self.marker = number, update, marker

    def on_update_end(self, trainer):
        if trainer.progress.update == self.update and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), self.number)


class Hold(Callback):
    """Says that the fifth update is over, and waits there for the file `go`."""

    def on_update_end(self, trainer):
        if trainer.progress.update == 5:
            Path("held").touch()
            while not Path("go").exists():
                time.sleep(0.01)


class HoldUntilSignal(Callback):
    """Says that the fifth update is over, and waits there for a signal that asks to stop."""

    def on_update_end(self, trainer):
        if trainer.progress.update == 5:
            Path("held").touch()
            while trainer.run.stopping.signals.requested is None:
                time.sleep(0.01)
