"""Names of a package that are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

OTHERS = {  # names that other frameworks have
    "ModelCheckpoint": "`callbacks.BestModel` keeps the best models, `callbacks.Checkpoints` says "
    "when to save",
    "LightningModule": "subclass `Trainer` and override `train_step`",
    "TrainingArguments": "pass arguments to `Trainer` and `Trainer.train`",
    "LearningRateMonitor": "`callbacks.LearningRateLog`",
    "TensorBoardLogger": "`loopwright.trackers.TensorBoard` in `callbacks`",
    "WandbLogger": "`loopwright.trackers.WandB` in `callbacks`",
    "Accelerator": "`Trainer(model, optimizer, loss_fn)` prepares everything itself",
    "LambdaCallback": "a function of (trainer, metrics) in `callbacks` is called after every epoch",
    "EarlyStopping": "`loopwright.callbacks.EarlyStopping`",
    "BestModel": "`loopwright.callbacks.BestModel`",
    "load_checkpoint": "`loopwright.load_weights(run_dir)`",
}


def lazily(
    package: str, homes: Mapping[str, str], packages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, given the module of each public name and its
    public packages.

    For a name that another framework has, the error says what to write. `from package import name`
    asks the package from `_handle_fromlist` of Python's import system, which drops an
    `AttributeError` and its text: there it is an `ImportError`. Whoever else asks, such as
    `hasattr`, needs the first.
    """
    names = sorted(homes)

    def find(name: str) -> Any:
        if name in packages:
            return import_module(f".{name}", package)
        if name in homes:
            value = getattr(import_module(f".{homes[name]}", package), name)
            setattr(sys.modules[package], name, value)
            return value
        if name not in OTHERS:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; available: {', '.join(names)}"
            )
        message = f"{package!r} has no {name}: {OTHERS[name]}."
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(message, name=package)
        raise AttributeError(message)

    return find, lambda: names
