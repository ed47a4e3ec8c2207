"""Names of a package that are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, NoReturn

OTHERS = {  # names that other frameworks have
    "ModelCheckpoint": "`callbacks.BestModel` keeps the best models, and `callbacks.Checkpoints` says when "
    "to save",
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
    "Timer": "`trainer.train(data, max_time='1h30m')`",
    **dict.fromkeys(
        ("RichProgressBar", "TQDMProgressBar", "ProgressBar", "ProgbarLogger"),
        "`Trainer(progress='bar')`",
    ),
    **dict.fromkeys(
        ("TensorBoard", "WandB", "MLflow", "loggers"), "trackers are in `loopwright.trackers`"
    ),
    "LambdaCallback": "a function of (trainer, metrics) in `callbacks` is called after every epoch",
    "TerminateOnNaN": "leave it out: a loss that is not finite ends the run (`callbacks.NonFiniteGuard`)",
    "History": "`trainer.train` returns the history",
    "LearningRateFinder": "`loopwright.tuning.find_learning_rate(trainer, data)`",
    "BatchSizeFinder": "`loopwright.tuning.find_batch_size(trainer, data)`",
    "DeviceStatsMonitor": "`callbacks.PeakMemory` and `callbacks.Throughput`",
    "WeightAveraging": "`callbacks.EMA` averages weights",
    "BackboneFinetuning": "`callbacks.Freeze` freezes layers and unfreezes them later",
    "Checkpoint": "`callbacks.Checkpoints` says when to save",
    "LightningDataModule": "pass data to `trainer.train`, or override `Trainer.configure_data`",
    "DataModule": "pass data to `trainer.train`, or override `Trainer.configure_data`",
    "EarlyStopping": "`loopwright.callbacks.EarlyStopping`",
    "BestModel": "`loopwright.callbacks.BestModel`",
    **dict.fromkeys(
        ("Sequential", "Model", "layers", "models"), "the model is a `torch.nn.Module`"
    ),
    "optimizers": "optimizers are those of `torch.optim`",
    **dict.fromkeys(
        ("load_model", "load", "load_checkpoint"), "`loopwright.load_weights(run_dir)`"
    ),
    "save": "`trainer.save(path)`, or `trainer.export(path)` for weights",
}


def lazily(
    package: str, homes: Mapping[str, str], packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, given the module of each public name and its
    public packages."""
    names = sorted(homes)

    def find(name: str) -> Any:
        if name in packages:
            return import_module(f".{name}", package)
        if name not in homes:
            _refuse(
                package,
                name,
                names,
                is_from_import=sys._getframe(1).f_code.co_name == "_handle_fromlist",
            )
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: names


def _refuse(package: str, name: str, names: list[str], *, is_from_import: bool) -> NoReturn:
    """Raise for a name that the package does not have, with advice where another framework has it.

    `from package import name` asks the package from `_handle_fromlist` of Python's import system,
    which drops an `AttributeError` and its text: there it is an `ImportError`. Whoever else asks,
    such as `hasattr`, needs the first.
    """
    if name not in OTHERS:
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}; available: {', '.join(names)}"
        )
    message = f"{package!r} has no {name}: {OTHERS[name]}."
    if is_from_import:
        raise ImportError(message, name=package)
    raise AttributeError(message)
