"""A project that is well, and parts of it that are not, for `loopwright check`."""

from __future__ import annotations

MODULE = '''
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from loopwright import Callback
from loopwright.callbacks import Periodic
from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig


class Net(nn.Module):
    def __init__(self, width: int = 8, inputs: int = 4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 3))

    def forward(self, x):
        return self.body(x)


class Points(Dataset):
    def __init__(self, n: int = 32):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


class PointTrainer(BaseTrainer):
    def __init__(self, trainer_config: BaseTrainerConfig, **deps):
        super().__init__(trainer_config, **deps)

    def loss_compute(self, forward_output, targets):
        return {"entropy": nn.functional.cross_entropy(forward_output, targets["y"])}


# Models


class OtherKeys(Net):
    def forward(self, x):
        y = self.body(x)
        return {"logits": y, "auxiliary": y} if self.training else {"logits": y}


class Growing(Net):
    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(3))
        return self.body(x) * self.scale


class Spare(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


class Overflowing(Net):
    def forward(self, x):
        if self.training:
            self.body[0].bias.data[0] = float("inf")
        return self.body(x)


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.body(x) / (1 + self.calls)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.body(self.norm(x))


# Data

class OddLast(Points):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample if index + 1 < len(self) else {"x": sample["x"][:2], "y": sample["y"]}


class Short(Points):
    def __len__(self):
        return len(self.x) + 1


class Spoiling(Points):
    def __getitem__(self, index):
        x = self.x[index]
        x -= 1
        return {"x": x, "y": self.y[index]}


class Missing(Points):
    def __getitem__(self, index):
        return None if index == 9 else super().__getitem__(index)


class Noisy(Points):
    """Randomness from the global generators, things that are no tensors, and batches of its own making."""

    def __getitem__(self, index):
        return {"x": self.x[index] + torch.randn(4), "y": self.y[index], "name": f"point {index}"}

    def collate_fn(self, samples):
        return {key: torch.stack([sample[key] for sample in samples]) for key in ("x", "y")}


class Windows(IterableDataset):
    """Whole windows only; the rest is dropped."""

    def __init__(self, n: int = 5, window: int = 8):
        self.n, self.window = n, window

    def __iter__(self):
        for _ in range(self.n // self.window):
            yield {"x": torch.zeros(4), "y": torch.tensor(0)}


# Trainers


class Nan(PointTrainer):
    def loss_compute(self, forward_output, targets):
        return nn.functional.cross_entropy(forward_output, targets["y"]) * float("nan")


class Constant(PointTrainer):
    def loss_compute(self, forward_output, targets):
        return forward_output.sum() * 0


class Auxiliary(PointTrainer):
    def loss_compute(self, forward_output, targets):
        return sum(nn.functional.cross_entropy(forward_output[k], targets["y"]) for k in ("logits", "auxiliary"))


class Softer(PointTrainer):
    def loss_compute(self, forward_output, targets):
        losses = {"entropy": nn.functional.cross_entropy(forward_output["logits"], targets["y"])}
        if "auxiliary" in forward_output:
            losses["auxiliary"] = forward_output["auxiliary"].square().mean()
        return losses


# Callbacks

class Unsavable(Callback):
    def state_dict(self):
        return {"function": lambda: None}


class OneWay(Callback):
    def __init__(self):
        self.count = 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["number"]


class Forgetful(Callback):
    """Changes the training by what it does not save."""

    def __init__(self):
        self.count = 0

    def on_update_end(self, trainer):
        self.count += 1
        for group in trainer.optimizers["optimizer"].param_groups:
            group["lr"] = 0.01 / self.count


class Late(Periodic):
    """Breaks when it acts, which is late in the run."""

    def measure(self, trainer):
        return {"ratio": 1 / 0}


class Text(Periodic):
    def measure(self, trainer):
        return {"state": "fine"}


'''

CONFIG = """\
seed: 3
name: points
model:
  kind: checked.Net
  width: 8
  optimizer: {kind: AdamW, lr: 0.01}
datasets:
  train: {kind: checked.Points, n: 64}
  test: {kind: checked.Points, n: 32}
trainer:
  kind: checked.PointTrainer
  max_updates: 40
  effective_batch_size: 8
  max_batch_size: 4
  forward_properties: [x]
  target_properties: [y]
  callbacks:
    - {kind: OfflineLoss, dataset_key: test, every_n_updates: 10}
"""
