"""The crash program through the lifecycle interface."""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from loopwright.callback import named_by_class
from loopwright.checkpoint import read_checkpoint
from loopwright.interfaces.lifecycle import Trainer
from loopwright.interfaces.lifecycle.callbacks import (
    EarlyStoppingCallback,
    ModelEmaCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    TrainerCallback,
)

from .digest import parts_of
from .killing import happens
from .parts import BATCH_SIZE, NUM_SAMPLES, Augmented, Streamed, build_net


class Happening(TrainerCallback):
    """Lets the ends of epochs be moments, too."""

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        happens("epoch")


def build_scheduler(options: argparse.Namespace) -> Any:
    if options.schedule == "step":
        return partial(StepLR, step_size=3, gamma=0.7)
    num_steps = -(-NUM_SAMPLES // BATCH_SIZE)
    return partial(
        OneCycleLR, max_lr=0.05, total_steps=-(-num_steps // options.accumulate) * options.epochs
    )


def train_lifecycle(options: argparse.Namespace) -> dict[str, Any]:
    """The program that the interface's documentation recommends: the latest state, if there is one,
    is gone on from."""
    run_dir = Path(options.run_dir)
    random.seed(3)
    np.random.seed(3)
    model = build_net()
    saving = SaveTrainingStateCallback(
        run_dir / "states",
        save_every_n_epochs=1,
        save_every_n_steps=options.every * 2,
        max_checkpoints=2,
    )
    callbacks = [
        Happening(),
        ModelEmaCallback(decay=0.9, save_path=run_dir / "ema"),
        EarlyStoppingCallback(options.patience, early_stopping_threshold=0.0),
        SaveBestModelCallback(run_dir / "best", load_saved_checkpoint=False),
        saving,
    ]
    trainer = Trainer(
        model, torch.nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), 0.02), callbacks
    )
    workers = {
        "num_workers": options.workers,
        "persistent_workers": options.persistent and options.workers > 0,
    }
    is_iterable = options.data == "iterable"
    trainer.train(
        Streamed() if is_iterable else Augmented(),
        options.epochs,
        Streamed(8) if is_iterable else Augmented(8),
        per_device_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=options.accumulate,
        gradient_clip_value=0.5,
        create_scheduler_fn=build_scheduler(options),
        train_dataloader_kwargs={"shuffle": False} if is_iterable else workers,
        eval_dataloader_kwargs=None if is_iterable else workers,
        resume_from=saving.latest,
    )
    happens("end")
    named = named_by_class(trainer.callback_handler.callbacks).items()
    return parts_of(trainer._core) | {
        "run_history": {
            name: trainer.run_history.get_metric_values(name) for name in _names(trainer)
        },
        "interface_callbacks": {name: callback.state_dict() for name, callback in named},
        "best": read_checkpoint(run_dir / "best").tree,
        "ema": read_checkpoint(run_dir / "ema").tree,
    }


def _names(trainer: Trainer) -> list[str]:
    return sorted(trainer.run_history.get_metric_names())
