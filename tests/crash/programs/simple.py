"""The crash program through the simple interface."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from loopwright.checkpoint import CheckpointStore, read_checkpoint
from loopwright.interfaces.simple import Trainer

from .digest import parts_of
from .killing import happens
from .parts import BATCH_SIZE, NUM_SAMPLES, Augmented, Streamed, build_net


def build_loader(options: argparse.Namespace) -> Any:
    if options.data == "iterable":
        return DataLoader(Streamed(), batch_size=BATCH_SIZE)
    persistent = options.persistent and options.workers > 0
    return DataLoader(
        Augmented(),
        BATCH_SIZE,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=persistent,
    )


def train_simple(options: argparse.Namespace) -> dict[str, Any]:
    """What somebody writes who wants to go on from the newest checkpoint in `save_dir`, if there is
    one."""
    run_dir = Path(options.run_dir)
    random.seed(3)
    np.random.seed(3)
    model = build_net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    num_steps = -(-NUM_SAMPLES // BATCH_SIZE) * options.epochs
    cycle = options.schedule == "cycle"
    scheduler = (
        OneCycleLR(optimizer, 0.05, total_steps=num_steps) if cycle else StepLR(optimizer, 1, 0.7)
    )
    config = {"training": {"max_grad_norm": 0.5, "scheduler_step_per_batch": cycle}}
    trainer = Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), config, scheduler=scheduler)
    newest = CheckpointStore(run_dir, keep=sys.maxsize).newest()
    earlier: dict[str, list[float]] = {}
    num_done = 0
    if newest is not None:
        loaded = trainer.load_checkpoint(newest.path)
        earlier, num_done = loaded["history"], loaded["num_epochs"]
    history = trainer.train(
        build_loader(options),
        options.epochs - num_done,
        DataLoader(Augmented(8), batch_size=BATCH_SIZE),
        save_dir=run_dir,
        early_stopping_patience=options.patience,
        callbacks=[lambda trainer, epoch, metrics: happens("epoch")],
    )
    happens("end")
    names = list(dict.fromkeys([*earlier, *history]))
    best = read_checkpoint(run_dir / "best_model")
    return parts_of(trainer._core) | {
        "interface_history": {
            name: [*earlier.get(name, []), *history.get(name, [])] for name in names
        },
        "best": [best.tree["models"], best.tree["simple"]],
        "saved": sorted(path.name for path in run_dir.glob("checkpoint_epoch_*")),
    }
