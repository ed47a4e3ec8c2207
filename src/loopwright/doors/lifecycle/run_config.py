"""The settings of the run under way as one immutable value, and what there is to know about the processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class TrainerRunConfig:
    """What a run was asked to do, worked out: the smaller of the limits, the sizes of batches, the updates."""

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
    max_num_train_steps: int | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_distributed: bool = False
    mixed_precision: str = "no"
    num_processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def gather(tensor: Tensor, padding_value: float | None = None) -> Tensor:
    """The tensors of all processes, one after another along the first dimension.

    Processes may hold different numbers of rows. With `padding_value`, shorter ones are filled up with it, so that
    every process contributes as many rows; without, exactly the rows there are come back.
    """
    if not is_distributed():
        return tensor
    rows = tensor if tensor.dim() else tensor.reshape(1)
    counts = _all_gather(torch.tensor([rows.shape[0]], device=rows.device))
    longest = max(int(count) for count in counts)
    missing = longest - rows.shape[0]
    filler = rows.new_full((missing, *rows.shape[1:]), 0 if padding_value is None else padding_value)
    parts = _all_gather(torch.cat([rows, filler]).contiguous())
    if padding_value is None:
        parts = [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
    return torch.cat(parts)


def _all_gather(tensor: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(num_processes())]
    dist.all_gather(parts, tensor)
    return parts
