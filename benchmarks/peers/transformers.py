"""transformers: its `Trainer` with a module that returns its loss, and samples that are dicts.

By default it clips gradients, lets the learning rate fall and makes a fused optimizer; off is none
of these.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from workloads import Round, Workload

DIFFERS = {"default": "clips gradients and lets the learning rate fall"}


class WithLoss(nn.Module):
    """A workload's model as the trainer wants one."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.model, self.loss_fn = work.build_model(), work.loss_fn

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.model(inputs)
        return {"loss": self.loss_fn(outputs, labels), "logits": outputs}


class Records(Dataset[dict[str, Tensor]]):
    """The workload's samples as dicts."""

    def __init__(self, work: Workload) -> None:
        self.inputs, self.labels = work.build_data().tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def _build(work: Workload, optimizer: Any, model: nn.Module, **options: Any) -> Round:
    data, folder = Records(work), tempfile.mkdtemp()

    class InOrder(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return (
                super()._get_train_sampler(train_dataset)
                if work.order is None
                else list(work.order)
            )

    def run(num_steps: int) -> None:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=num_steps,
            per_device_train_batch_size=work.batch_size,
            learning_rate=work.build_optimizer.keywords["lr"],
            **options,
        )
        InOrder(model, args, train_dataset=data, optimizers=(optimizer, None)).train()

    return run


def off(work: Workload) -> Round:
    model = WithLoss(work)
    optimizer: torch.optim.Optimizer = work.build_optimizer(model.parameters())
    return _build(
        work,
        optimizer,
        model,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
    )


def default(work: Workload) -> Round:
    return _build(work, None, WithLoss(work))
