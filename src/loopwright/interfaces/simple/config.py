"""The settings that the simple interface reads from the user's config, a mapping or an object."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import ConfigurationError

SECTION = "training"
NEAR = 0.75  # the similarity, from 0 to 1, from which on one name is a misspelling of another


@dataclass(frozen=True, slots=True)
class Settings:
    """The section `training` of a config; None where it has no value.

    Args:
        learning_rate: The learning rate of the default AdamW. With an optimizer of your own it is
            not used, and a line says so if the two differ. Default: AdamW's.
        weight_decay: The weight decay of the default AdamW, and of the parameter groups of your
            optimizer that have their class's default; a line says which were changed. Default: the
            optimizer's.
        max_grad_norm: Clip gradients to this norm before every step, above 0. Default: no clipping.
        scheduler_step_per_batch: Step the scheduler after each update (True) or after each epoch
            (False). Default: after each epoch; `OneCycleLR` and `CyclicLR` after each update.
        gradient_accumulation_steps: The number of batches in an update; their gradients are those
            of one big batch. Default: 1.
        best_model_mode: Which values of `best_model_metric` are better. "auto" goes by its name: a
            loss, an error or a perplexity falls; an accuracy, an F1 or an AUC rises; any other name
            needs "min" or "max".
        compile: "step" compiles the whole training step, unless you override `train_step`. Default:
            nothing is compiled.
    """

    learning_rate: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    scheduler_step_per_batch: bool | None = None
    gradient_accumulation_steps: int | None = None
    best_model_mode: Literal["auto", "min", "max"] = "auto"
    compile: Literal["step"] | None = None

    @classmethod
    def of(cls, config: Any) -> Settings:
        """Read a config of nested mappings, objects with attributes, or a mix of both."""
        _check_kind(config)
        training = _entry(config, SECTION)
        if config is not None:
            _check_names(config, training)
        mode = _entry(training, "best_model_mode")
        if mode not in (None, "auto", "min", "max"):
            raise ConfigurationError(
                f"config: training.best_model_mode is {mode!r}; use 'min' if smaller values of "
                "best_model_metric are better, 'max' if larger values are better, or 'auto' to "
                "decide by its name."
            )
        return cls(
            _above_zero(training, "learning_rate", "leave it out to use AdamW's default"),
            _not_negative(training, "weight_decay"),
            _above_zero(training, "max_grad_norm", "leave it out for no clipping"),
            _per_batch(training),
            _accumulation(training),
            mode or "auto",
            _compiled(training),
        )


def _per_batch(training: Any) -> bool | None:
    value = _entry(training, "scheduler_step_per_batch")
    if value is None or isinstance(value, bool):
        return value
    raise ConfigurationError(
        f"config: training.scheduler_step_per_batch is {value!r}; use True (after each batch) or "
        "False (after each epoch)."
    )


def _accumulation(training: Any) -> int | None:
    value = _entry(training, "gradient_accumulation_steps")
    if value is None or (type(value) is int and value >= 1):
        return value
    raise ConfigurationError(
        f"config: training.gradient_accumulation_steps is {value!r}; use the number of batches "
        "per update, 1 or more."
    )


def _compiled(training: Any) -> Literal["step"] | None:
    value = _entry(training, "compile")
    if value is None or value == "step":
        return None if value is None else "step"
    raise ConfigurationError(f"config: training.compile is {value!r}; use 'step', or leave it out.")


def _above_zero(training: Any, name: str, otherwise: str) -> float | None:
    value = _number(training, name)
    if value is None or value > 0:
        return value
    raise ConfigurationError(
        f"config: training.{name} is {value:g}; use a number above 0, or {otherwise}."
    )


def _not_negative(training: Any, name: str) -> float | None:
    value = _number(training, name)
    if value is None or value >= 0:
        return value
    raise ConfigurationError(f"config: training.{name} is {value:g}; use 0 or more, such as 0.01.")


def _number(training: Any, name: str) -> float | None:
    value = _entry(training, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(
            f"config: training.{name} is {value!r}, a {type(value).__name__}; use a number (YAML "
            "reads 1e-2 as a string, 1.0e-2 as a number)."
        )
    return float(value)


def _entry(holder: Any, name: str) -> Any:
    """The value under a name in a mapping or an object; a config may be made of both."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _check_kind(config: Any) -> None:
    """Refuse another argument in the place of the config, and the name of a file."""
    order = "The order is Trainer(model, optimizer, loss_fn, config, device, scheduler)"
    if isinstance(config, LRScheduler):
        raise ConfigurationError(
            f"config is a {type(config).__name__}: pass it as `scheduler=`. {order}."
        )
    if isinstance(config, torch.device) or (isinstance(config, str) and _is_device(config)):
        raise ConfigurationError(
            f"config is the device {str(config)!r}: pass it as `device=`. {order}."
        )
    if isinstance(config, (str, bytes, int, float, list, tuple, set, nn.Module, Optimizer)):
        raise ConfigurationError(
            f"config is {config!r:.60}, a {type(config).__name__}: pass a mapping or an object with the section "
            '`training`, such as {"training": {"max_grad_norm": 1.0}}.'
        )


def _is_device(text: str) -> bool:
    return text.split(":")[0] in ("cpu", "cuda", "mps", "auto")


def _check_names(config: Any, training: Any) -> None:
    """Refuse settings that would not be read: misspelt, outside of their section, or in a misspelt
    section."""
    known = [field.name for field in fields(Settings)]
    for name in _names(config):
        if name in known and _entry(training, name) is None and _entry(config, name) is not None:
            value = _entry(config, name)
            raise ConfigurationError(
                f"config: {name} is {value!r} outside of the section `training`, where it is not read: write "
                f'{{"training": {{"{name}": {value!r}}}}}.'
            )
        if (
            training is None
            and _is_near(name, SECTION)
            and set(_names(_entry(config, name))) & set(known)
        ):
            raise ConfigurationError(
                f"config: the section {name!r} is not read. Did you mean 'training'?"
            )
    for name in _names(training):
        if name not in known and (
            near := next((one for one in known if _is_near(name, one)), None)
        ):
            raise ConfigurationError(
                f"config: training.{name} is not read. Did you mean training.{near}?"
            )


def _is_near(name: str, known: str) -> bool:
    """Whether a name is a misspelling of a known one, and not that with further words, which says
    something else."""
    if set(known.split("_")) < set(name.split("_")):
        return False
    return difflib.SequenceMatcher(None, name.lower(), known).ratio() >= NEAR


def _names(holder: Any) -> Iterator[str]:
    if isinstance(holder, Mapping):
        yield from (str(name) for name in holder)
    elif holder is not None and not isinstance(holder, (str, bytes, int, float)):
        yield from (name for name in dir(holder) if not name.startswith("_"))
