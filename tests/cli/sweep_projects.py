"""A project whose runs can be held in their middle, for sweeps that are interrupted."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
import time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import Dataset
from loopwright import Callback
from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig


class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))

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
        return nn.functional.mse_loss(forward_output, targets["y"])


class Hold(Callback):
    """Says that the fifth update is over, and waits there for the file `go`."""

    def on_update_end(self, trainer):
        if trainer.progress.update == 5:
            Path("held").touch()
            while not Path("go").exists():
                time.sleep(0.01)
'''

CONFIG = """\
seed: 3
name: points
model: {kind: swept.Net, width: 8, optimizer: {kind: AdamW, lr: 0.01}}
datasets: {train: {kind: swept.Points, n: 24}, test: {kind: swept.Points, n: 16}}
trainer:
  kind: swept.PointTrainer
  max_updates: 9
  effective_batch_size: 8
  forward_properties: [x]
  target_properties: [y]
  callbacks:
    - {kind: OfflineLoss, dataset_key: test, every_n_updates: 3}
"""


def write_project(folder: Path) -> Path:
    (folder / "swept.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    return folder
