"""Keras on torch: the workload's module in a `TorchModuleWrapper`, trained by `fit` with Keras's
optimizer and loss."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch import nn
from torch.utils.data import DataLoader

from workloads import Round, Workload

DIFFERS = dict.fromkeys(("off", "default"), "Keras's Adam adds epsilon elsewhere")
OPTIMIZERS = {torch.optim.Adam: keras.optimizers.Adam, torch.optim.AdamW: keras.optimizers.AdamW}


def _build(work: Workload, **options: int) -> Round:
    made, is_regression = work.build_optimizer, isinstance(work.loss_fn, nn.MSELoss)
    model = keras.Sequential([keras.layers.TorchModuleWrapper(work.build_model())])
    model.compile(
        optimizer=OPTIMIZERS[made.func](made.keywords["lr"], epsilon=1e-8),
        loss=keras.losses.MeanSquaredError()
        if is_regression
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())
    return lambda num_steps: (
        model.fit(loader, epochs=1, steps_per_epoch=num_steps, **options) and None
    )


def off(work: Workload) -> Round:
    return _build(work, verbose=0)


def default(work: Workload) -> Round:
    return _build(work)
