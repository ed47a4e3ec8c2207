"""Lightning: a `LightningModule` and its `Trainer`; a new user logs the loss and has bar, logger
and checkpoints."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from workloads import Round, Workload


class Module(L.LightningModule):
    """A workload, which logs its loss where asked to."""

    def __init__(self, work: Workload, *, is_logged: bool) -> None:
        super().__init__()
        self.model, self.loss_fn, self.is_logged = work.build_model(), work.loss_fn, is_logged
        self.made = work.build_optimizer(self.model.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = self.loss_fn(self.model(inputs), targets)
        if self.is_logged:
            self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.made


def _build(work: Workload, *, is_logged: bool, **options: Any) -> Round:
    module = Module(work, is_logged=is_logged)
    loader = DataLoader(work.build_data(), batch_size=work.batch_size, **work.sampling())
    folder = tempfile.mkdtemp()

    def run(num_steps: int) -> None:
        trainer = L.Trainer(max_steps=num_steps, default_root_dir=folder, **options)
        trainer.fit(module, loader)

    return run


def off(work: Workload) -> Round:
    return _build(
        work,
        is_logged=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def default(work: Workload) -> Round:
    return _build(work, is_logged=True)
