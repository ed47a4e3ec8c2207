"""The settings of the run under way as one immutable value, and what there is to know about the processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class TrainerRunConfig:
    """The settings of a run and the numbers that follow: the smaller limit, batch sizes, updates per epoch."""

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
        """The fields by name; what the loaders were given is in it as it is, samplers and generators included."""
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
