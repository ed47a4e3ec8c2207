"""A project to describe in YAML: a module with a model, data, a trainer and callbacks, and a run
file beside it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from loopwright import Trainer
from loopwright.config import Entry, Place, Schema, mapping_of, one_of_kind

MODULE = '''
from __future__ import annotations

import enum
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn
from torch.utils.data import Dataset

from loopwright import Callback, Trainer
from loopwright.config import Place

if TYPE_CHECKING:
    from nowhere import Ghost

CALLS: list[str] = []
an_instance = nn.Linear(2, 2)


class Shape(enum.Enum):
    ROUND = "o"
    SQUARE = "#"


@dataclass
class Options:
    rate: float
    name: str = "plain"


class Net(nn.Module):
    """A net of some width."""

    def __init__(
        self,
        width: int,
        depth: int = 1,
        activation: Literal["relu", "gelu"] = "relu",
        dropout: float = 0.0,
        inner: Optional[nn.Module] = None,
        options: Options | None = None,
        shape: Shape = Shape.ROUND,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        sizes: tuple[int, ...] = (),
        pair: tuple[int, str] | None = None,
        weights: Path | None = None,
        layer: type[nn.Module] = nn.Linear,
        names: dict[str, int] | None = None,
        blocks: list[nn.Module] = (),
        scale: torch.Tensor | None = None,
        ghost: Ghost | None = None,
        use_bias: bool = True,
    ):
        super().__init__()
        CALLS.append("Net")
        self.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.linear = nn.Linear(width, width)


class Loose(nn.Module):
    def __init__(self, width, encoder=None, act=nn.ReLU(), **kwargs):
        super().__init__()
        self.width, self.encoder, self.act = width, encoder, act


class Wide(Net):
    def __init__(self, extra: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra


class Points(Dataset):
    def __init__(self, n: int, noise: float = 0.0):
        CALLS.append("Points")
        self.n, self.noise = n, noise


class Doubled(Dataset):
    def __init__(self, source: Dataset):
        self.source = source


class TrainerConfig(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    kind: str | None = None
    max_updates: int | None = Field(None, description="When to stop.")
    max_epochs: int | None = None
    batch_size: int = Field(8, ge=1)
    callbacks: list[Callback] = []
    forward_properties: list[str] = []
    raw: list[dict] = []

    @model_validator(mode="after")
    def has_one_limit(self):
        if (self.max_updates is None) == (self.max_epochs is None):
            raise ValueError("give exactly one of max_updates and max_epochs")
        return self


class Warmup(BaseModel):
    steps: int
    length: int = 1


class CustomConfig(TrainerConfig):
    alpha: float = 1.0
    warmup: Warmup | None = None
    choice: Options | None = None
    helper: Annotated[Any, Place("helper", nn.Module)] = None


class Custom(Trainer):
    def __init__(self, trainer_config: CustomConfig, **deps):
        CALLS.append("Custom")
        self.config, self.deps = trainer_config, deps


class Grumpy(nn.Module):
    def __init__(self, width: int):
        raise RuntimeError("not today")


def make_net(width):
    CALLS.append("make_net")
    return Net(width)
'''

RUN = """\
seed: 0
name: first
vars:
  width: 16
model:
  kind: mine.Net
  width: ${vars.width}
  dropout: 0.1
  inner:
    kind: torch.nn.Linear
    in_features: 4
    out_features: 2
  optimizer:
    kind: AdamW
    lr: 1e-2
    betas: [0.9, 0.95]
datasets:
  train:
    kind: mine.Points
    n: 64
  test: {kind: mine.Points, n: 32}
trainer:
  kind: mine.Custom
  max_updates: 37
  alpha: 2.0
  callbacks:
    - kind: EarlyStopping
      metric: loss
      patience: 3
    - kind: loopwright.callbacks.EMA
      decay: 0.9
"""

OPTIMIZER = Place("optimizer", Optimizer, given=("params",))
SCHEDULER = Place("scheduler", LRScheduler, given=("optimizer",))
MODEL = Place("model", nn.Module, also={"optimizer": Entry(one_of_kind(OPTIMIZER))})
DATASET = Place("dataset", Dataset)
TRAINER = Place("trainer", Trainer, given=("model", "optimizer", "datasets"))
SCHEMA = Schema(
    {
        "model": Entry(one_of_kind(MODEL), required=True),
        "datasets": Entry(mapping_of(DATASET), required=True),
        "trainer": Entry(one_of_kind(TRAINER), required=True),
        "scheduler": Entry(one_of_kind(SCHEDULER)),
        "name": Entry(str),
        "seed": Entry(int | None),
        "tags": Entry(list[str]),
        **{name: Entry(Any) for name in ("vars", "defaults", "modules")},
        "sweep": Entry(dict[str, Any]),
    }
)


class Project:
    """A folder with the module and the run file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = self.write("run.yaml", RUN)
        self.write("mine.py", MODULE)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path
