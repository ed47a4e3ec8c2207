"""The settings that the simple door reads from whatever its user calls a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """`training.*` of a config; None where it says nothing."""

    weight_decay: float | None = None
    max_grad_norm: float | None = None
    scheduler_step_per_batch: bool | None = None
    gradient_accumulation_steps: int | None = None
    best_model_mode: Literal["auto", "min", "max"] = "auto"

    @classmethod
    def of(cls, config: Any) -> Settings:
        """Read a config of nested mappings, objects with attributes, or a mix of both."""
        training = _entry(config, "training")
        per_batch = _entry(training, "scheduler_step_per_batch")
        if per_batch is not None and not isinstance(per_batch, bool):
            raise ConfigurationError(
                f"config: training.scheduler_step_per_batch is {per_batch!r}; use True (after each batch) or False "
                "(after each epoch)."
            )
        weight_decay = _number(training, "weight_decay")
        max_grad_norm = _number(training, "max_grad_norm")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ConfigurationError(
                f"config: training.max_grad_norm is {max_grad_norm:g}; use a number above 0, or leave it out for no "
                "clipping."
            )
        accumulation = _entry(training, "gradient_accumulation_steps")
        if accumulation is not None and (type(accumulation) is not int or accumulation < 1):
            raise ConfigurationError(
                f"config: training.gradient_accumulation_steps is {accumulation!r}; use how many batches make an "
                "update, 1 or more."
            )
        mode = _entry(training, "best_model_mode")
        if mode not in (None, "auto", "min", "max"):
            raise ConfigurationError(
                f"config: training.best_model_mode is {mode!r}; use 'min' or 'max', whichever values of "
                "best_model_metric are better, or 'auto' to go by its name."
            )
        return cls(weight_decay, max_grad_norm, per_batch, accumulation, mode or "auto")


def _number(training: Any, name: str) -> float | None:
    value = _entry(training, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(
            f"config: training.{name} is {value!r}, a {type(value).__name__}; use a number (YAML reads 1e-2 as text, "
            "1.0e-2 as a number)."
        )
    return float(value)


def _entry(holder: Any, name: str) -> Any:
    """What a mapping or an object has under a name; the user chose which of them a config is made of."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
