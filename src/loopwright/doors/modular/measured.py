"""What steps of a modular trainer return: checked, without graphs, and with the metrics of outputs and targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ConfigurationError
from ...metrics.meter import ComputedMetric
from ...training.result import StepResult

if TYPE_CHECKING:
    from .trainer import DreamTrainer


def measured_in(door: DreamTrainer, returned: Any) -> Any:
    """What a step returned, with the metrics of its outputs and targets in place of those."""
    if not isinstance(returned, Mapping) or not {"outputs", "targets"} <= returned.keys():
        return returned
    rest = {name: value for name, value in returned.items() if name not in ("outputs", "targets")}
    with torch.no_grad():
        computed = door.compute_metrics(returned["outputs"], returned["targets"])
    if not isinstance(computed, Mapping):
        raise ConfigurationError(
            f"compute_metrics returned {type(computed).__name__}: return a dict of named values, such as "
            "{'accuracy': accuracy}."
        )
    return {**rest, **computed}


def check_returned(returned: Any, step: str) -> None:
    """Refuse what a step returns and no metric can be made of."""
    if not (returned is None or isinstance(returned, int | float | Tensor | Mapping | StepResult)):
        raise ConfigurationError(
            f"`{step}` returned a {type(returned).__name__}: return the loss, a dict of named values such as "
            "{'loss': loss, 'accuracy': accuracy}, or nothing."
        )
    values = returned if isinstance(returned, Mapping) else {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            kind = None if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
        else:
            kind = None if isinstance(value, int | float | ComputedMetric | None) else type(value).__name__
        if kind is not None:
            raise ConfigurationError(
                f"`{step}` returned {name!r}, a {kind}: reduce it to one number, such as its mean, or leave it out. "
                "Only 'outputs' and 'targets' may be more, both together, for `compute_metrics`."
            )


def without_graph(returned: Any) -> Any:
    """What a step returned, as callbacks see it: without what only a backward pass needs."""
    if isinstance(returned, Tensor):
        return returned.detach()
    if isinstance(returned, Mapping):
        return {name: value.detach() if isinstance(value, Tensor) else value for name, value in returned.items()}
    return returned
