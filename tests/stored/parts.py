"""What the stored programs have in common: data that is the same on every machine, a way to die,
and what comes out.

All numbers are eighths, and randomness is uniform: both are exact, so that the samples of a run and
the random numbers it goes on with are those of the machine that wrote it. Nothing here may change:
see `make.py`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def eighths(*shape: int, step: int = 5) -> Tensor:
    """Numbers from -1 to 0.875 in an order that looks like none."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * step * (torch.arange(count) + 3)) % 17 - 8).reshape(shape) / 8


def points(count: int, step: int = 5) -> TensorDataset:
    """Points of four numbers in two classes."""
    inputs = eighths(count, 4, step=step)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def classifier(seed: int = 1) -> nn.Sequential:
    """Batch norm, so that modes and buffers matter; smooth, so that machines differ little."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def count_steps(model: nn.Module, dies_at: int | None) -> list[int]:
    """A list that has as many entries as there were calls of the model in training; SIGKILL in the
    one given."""
    calls: list[int] = []

    def count(module: nn.Module, inputs: Any) -> None:
        if module.training:
            calls.append(1)
            if len(calls) == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    model.register_forward_pre_hook(count)
    return calls


def next_numbers(run: Any) -> torch.Tensor:
    """The random numbers that the next step of a run would draw."""
    with run.own_generators():
        return torch.rand(3)


def outcome(trainer: Any, *callbacks: Any) -> dict[str, Any]:
    """Everything that a run which went on has in common with one that was never stopped."""
    counted = ("epoch", "step", "update", "sample", "epoch_step", "epoch_sample")
    progress = trainer.progress.state_dict()
    return {
        "models": {name: model.state_dict() for name, model in trainer.models.items()},
        "optimizers": {
            name: optimizer.state_dict() for name, optimizer in trainer.optimizers.items()
        },
        "schedules": {
            name: schedule.scheduler.state_dict() for name, schedule in trainer.schedules.items()
        },
        "epochs": trainer.history.epochs,
        "steps": {
            name: (list(s.steps), list(s.values)) for name, s in trainer.history.steps.items()
        },
        "progress": {name: progress[name] for name in counted},
        "stop_reason": trainer.stop_reason,
        "callbacks": [callback.state_dict() for callback in callbacks],
        "random": next_numbers(trainer.run),
    }
