"""Names of a package that are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

OTHERS = {  # names that other frameworks have
    "ModelCheckpoint": "`callbacks.BestModel` keeps the best models, and `callbacks.Checkpoints` says when to save",
    "LightningModule": "subclass `Trainer` and override `train_step`",
    "fit": "`Trainer(model, optimizer, loss_fn).train(data, num_epochs)`",
    "train": "`Trainer(model, optimizer, loss_fn).train(data, num_epochs)`",
    "TrainingArguments": "pass arguments to `Trainer` and `Trainer.train`",
    "LearningRateMonitor": "`callbacks.LearningRateLog`",
    "ReduceLROnPlateau": "`Trainer(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)`",
    "BackupAndRestore": "a run with `Trainer(run_dir=...)` resumes by itself",
    "LearningRateScheduler": "`Trainer(scheduler=...)`, see loopwright.schedules",
    "TensorBoardLogger": "`loopwright.trackers.TensorBoard` in `callbacks`",
    "WandbLogger": "`loopwright.trackers.WandB` in `callbacks`",
    "CSVLogger": "`loopwright.trackers.CSV` in `callbacks`",
    "Accelerator": "`Trainer(model, optimizer, loss_fn)` prepares everything itself",
    "Learner": "`Trainer(model, optimizer, loss_fn)`",
    "StochasticWeightAveraging": "`callbacks.EMA` averages weights",
    "Timer": "`callbacks.TimeLimit`",
    "RichProgressBar": "`Trainer(progress='bar')`",
}


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, given the module of each public name."""
    names = sorted(homes)

    def find(name: str) -> Any:
        if name in OTHERS and name not in homes:  # no AttributeError: `from ... import` would hide the message
            raise ImportError(f"{package!r} has no {name}: {OTHERS[name]}.", name=package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; available: {', '.join(names)}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: names
