"""The settings of the run under way as one immutable value, and what there is to know about the
processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class TrainerRunConfig:
    """The settings of a run and the numbers that follow from them.

    Args:
        num_epochs: Epochs of the run; fewer than you asked for if `max_num_train_steps` ends it
            earlier.
        train_per_device_batch_size: Samples in a training batch of each process.
        train_dl_kwargs: The options of the training loader.
        eval_per_device_batch_size: Samples in an evaluation batch of each process.
        eval_dl_kwargs: The options of the evaluation loader.
        gradient_accumulation_steps: Batches in an update.
        gradient_clip_value: The largest absolute value of a gradient, or None.
        train_total_batch_size: Samples in an update, over all processes and accumulated batches.
        eval_total_batch_size: Samples in an evaluation step, over all processes.
        num_update_steps_per_epoch: Updates in an epoch, or None if the data has no length.
        num_local_update_steps_per_epoch: The same number, under the name of earlier releases.
        max_num_train_steps: The limit of updates, or None.
        is_local_process_zero: Whether this is the first process on its machine.
        is_world_process_zero: Whether this is the first process of all.
        is_distributed: Whether there are several processes.
        mixed_precision: "no", "bf16" or "fp16".
        num_processes: How many processes there are.
    """

    num_epochs: int = 0
    train_per_device_batch_size: int | None = None
    train_dl_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eval_per_device_batch_size: int | None = None
    eval_dl_kwargs: Mapping[str, Any] = field(default_factory=dict)
    gradient_accumulation_steps: int = 1
    gradient_clip_value: float | None = None
    train_total_batch_size: int | None = None
    eval_total_batch_size: int | None = None
    num_update_steps_per_epoch: int | None = None
    num_local_update_steps_per_epoch: int | None = None
    max_num_train_steps: int | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_distributed: bool = False
    mixed_precision: str = "no"
    num_processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def is_distributed() -> bool:
    """Whether there is a process group with more than this process in it."""
    return num_processes() > 1


def num_processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_world_process_zero() -> bool:
    return num_processes() == 1 or dist.get_rank() == 0


def is_local_process_zero() -> bool:
    """Whether this is the first process on its machine, as launchers say with LOCAL_RANK."""
    return num_processes() == 1 or int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0
