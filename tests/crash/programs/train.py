"""A program that trains through one of the interfaces with everything that has state, and prints a
hash of all of it.

python -m tests.crash.programs.train RUN_DIR --interface native --workers 2 --precision fp16 --at
step:5=KILL
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from loopwright import Callback, Trainer
from loopwright.callbacks import (
    EMA,
    BestModel,
    Checkpoints,
    EarlyStopping,
    LearningRateLog,
    TorchMetrics,
)

from .digest import digest_of, kept_in, parts_of, rows_in
from .killing import Moment, arm, happens
from .parts import BATCH_SIZE, Augmented, Streamed, build_net

cross_entropy = torch.nn.functional.cross_entropy


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--interface", choices=["native", "simple", "lifecycle"], default="native")
    parser.add_argument("--data", choices=["map", "iterable"], default="map")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--eval-workers", type=int, default=0)
    parser.add_argument(
        "--group", action="store_true", help="a process group of its own, to which signals go"
    )
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--schedule", choices=["step", "cycle"], default="step")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--calls", choices=["one", "epochs", "updates"], default="one", help="how train is called"
    )
    parser.add_argument("--patience", type=int, default=50)
    parser.add_argument(
        "--every", type=int, default=2, help="updates between two resume points; 0 for none"
    )
    parser.add_argument("--on-error", choices=["raise", "warn"], default="raise")
    parser.add_argument(
        "--light",
        action="store_true",
        help="do without torchmetrics, which takes seconds to import",
    )
    parser.add_argument(
        "--at", type=Moment.of, action="append", default=[], help="place:number=SIGNAL"
    )
    return parser.parse_args(arguments)


def build_loader(options: argparse.Namespace) -> Any:
    if options.data == "iterable":
        return DataLoader(Streamed(), batch_size=BATCH_SIZE)
    return DataLoader(
        Augmented(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.persistent and options.workers > 0,
    )


def build_schedule(options: argparse.Namespace, num_updates: int) -> Any:
    if options.schedule == "step":
        return partial(StepLR, step_size=1, gamma=0.7)
    return partial(OneCycleLR, max_lr=0.05, total_steps=num_updates)


class Happening(Callback):
    """Lets the ends of epochs be moments, too."""

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        happens("epoch")


def build_trainer(options: argparse.Namespace, updates_per_epoch: int) -> Trainer:
    callbacks: list[Callback] = [
        Happening(),
        EMA(0.9),
        EarlyStopping(patience=options.patience),
        LearningRateLog(),
        BestModel("eval_loss", keep=2),
        Checkpoints(
            every_updates=options.every or None,
            every_epochs=1 if options.every else None,
            keep=2 if options.every else 99,
            on_error=options.on_error,
        ),
    ]
    if not options.light:
        from torchmetrics.classification import MulticlassAccuracy

        callbacks.insert(
            1, TorchMetrics({"accuracy": MulticlassAccuracy(num_classes=3)}, on="both")
        )
    schedule = build_schedule(options, updates_per_epoch * options.epochs)
    return Trainer(
        build_net(),
        partial(torch.optim.AdamW, lr=0.02),
        cross_entropy,
        scheduler=schedule,
        callbacks=callbacks,
        accumulate=options.accumulate,
        precision=options.precision,
        run_dir=options.run_dir,
        progress="silent",
    )


def train_native(options: argparse.Namespace) -> dict[str, Any]:
    loader = build_loader(options)
    held_out = Streamed(8) if options.data == "iterable" else Augmented(8)
    steps = -(-len(Augmented()) // BATCH_SIZE)
    updates = -(-steps // options.accumulate)
    trainer = build_trainer(options, updates)
    persistent = options.persistent and options.eval_workers > 0
    evaluating = {
        "eval_data": DataLoader(
            held_out,
            batch_size=BATCH_SIZE,
            num_workers=options.eval_workers,
            persistent_workers=persistent,
        )
    }
    if options.calls == "epochs":
        trainer.train(loader, 1, **evaluating)
        trainer.train(loader, options.epochs - 1, **evaluating)
    elif options.calls == "updates":
        trainer.train(loader, num_updates=updates + 1, **evaluating)
        trainer.train(loader, num_updates=updates * (options.epochs - 1) - 1, **evaluating)
    else:
        trainer.train(loader, options.epochs, **evaluating)
    happens("end")
    run_dir = Path(options.run_dir)
    return parts_of(trainer) | {"rows": rows_in(run_dir), "kept": kept_in(run_dir)}


def _train_through(interface: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    if interface == "native":
        return train_native
    from .lifecycle import train_lifecycle
    from .simple import train_simple

    return train_simple if interface == "simple" else train_lifecycle


def main(arguments: list[str]) -> None:
    options = read_arguments(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    # more workers than processors
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    arm(options.at, options.run_dir, has_group=options.group)
    parts = _train_through(options.interface)(options)
    print(json.dumps({name: digest_of(value) for name, value in parts.items()}), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
