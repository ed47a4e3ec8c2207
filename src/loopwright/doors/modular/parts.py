"""Gradients of an optimizer's parameters, taken off, put back and rescaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...training.update import Lane

Kept = Sequence[Tensor | None]


def scale_of(lane: Lane, device: torch.device) -> Any:
    """What a lane's losses are scaled by, on the device; None where they are not."""
    return None if lane.scaler is None else lane.scaler.scale(torch.ones((), device=device))


def taken_off(params: Sequence[torch.nn.Parameter]) -> Kept:
    """The gradients of these parameters, which have none afterwards."""
    kept = [param.grad for param in params]
    for param in params:
        param.grad = None
    return kept


def add(params: Sequence[torch.nn.Parameter], kept: Kept) -> None:
    """Add what the parameters have now to what they had before."""
    for param, old in zip(params, kept, strict=True):
        if old is not None:
            param.grad = old if param.grad is None else old.add_(param.grad)
