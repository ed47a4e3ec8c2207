"""The settings that the simple interface reads from the user's config, a mapping or an object."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import ConfigurationError, check_number
from ...text import near_names

SECTION = "training"
NEAR = 0.75  # the similarity, from 0 to 1, from which on one name is a misspelling of another
NUMBERS: dict[str, dict[str, Any]] = {  # settings that are numbers, with their bounds
    "learning_rate": {"above": 0, "is_whole": False},
    "weight_decay": {"least": 0, "is_whole": False},
    "max_grad_norm": {"above": 0, "is_whole": False, "otherwise": "leave it out for no clipping"},
    "gradient_accumulation_steps": {"least": 1, "of": "batches"},
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "scheduler_step_per_batch": (True, False),
    "best_model_mode": ("auto", "min", "max"),
    "compile": ("step",),
}
NO_CONFIG = (str, int, float, list, tuple, torch.device, Optimizer, LRScheduler)


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The section `training` of a config; None where it has no value.

    Args:
        learning_rate: The learning rate of the default AdamW; not used with an optimizer of your
            own. Default: AdamW's.
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
    def of(cls, config: Any) -> TrainingSettings:
        """Read a config of nested mappings, objects with attributes, or a mix of both."""
        if isinstance(config, NO_CONFIG):
            raise ConfigurationError(
                "config-kind",
                f"config is {config!r:.60}, a {type(config).__name__}: pass a mapping or an object "
                'with the section `training`, such as {"training": {"max_grad_norm": 1.0}}.',
            )
        training = _entry(config, SECTION)
        known = [field.name for field in fields(cls)]
        _check_names(config, training, known)
        given = {name: value for name in known if (value := _entry(training, name)) is not None}
        for name, value in given.items():
            if name in NUMBERS:
                check_number(f"config: training.{name}", value, **NUMBERS[name])
            elif value not in CHOICES[name]:
                choices = ", ".join(map(repr, CHOICES[name]))
                raise ConfigurationError(
                    "config-choice",
                    f"config: training.{name} is {value!r}; use one of {choices}, or leave it out.",
                )
        return cls(**given)

    def build_optimizer(self, params: Iterable[Any]) -> Optimizer:
        """Return the default optimizer."""
        given = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        options = {name: value for name, value in given.items() if value is not None}
        return torch.optim.AdamW(params, **options)  # type: ignore[arg-type]

    def settle_weight_decay(self, optimizer: Optimizer) -> str | None:
        """Give the weight decay to groups without one of their own; the line that says to how many.

        A group's value is its own where it is not the default of its class. Where that default is
        0, a group with 0 beside others with more is meant to have 0.
        """
        value = self.weight_decay
        groups = optimizer.param_groups
        if value is None or all(group.get("weight_decay") == value for group in groups):
            return None
        parameter = inspect.signature(type(optimizer)).parameters.get("weight_decay")
        default = 0.0 if parameter is None else parameter.default
        free = [group for group in groups if group.get("weight_decay") == default]
        if default == 0 and len(free) < len(groups):
            free = []
        for group in free:
            group["weight_decay"] = value
        return (
            f"config: training.weight_decay={value:g} is used in {len(free)} of {len(groups)} "
            f"parameter groups of the optimizer ({type(optimizer).__name__}); any other has its "
            "own, or none."
        )


def _entry(holder: Any, name: str) -> Any:
    """The value under a name in a mapping or an object; a config may be made of both."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _names(holder: Any) -> list[str]:
    if isinstance(holder, Mapping):
        return [str(name) for name in holder]
    is_value = holder is None or isinstance(holder, NO_CONFIG)
    return [] if is_value else [name for name in dir(holder) if not name.startswith("_")]


def _check_names(config: Any, training: Any, known: list[str]) -> None:
    """Refuse settings that would not be read: misspelt, or outside of their section."""
    for name in _names(config):
        is_section = training is None and near_names(name, [SECTION], cutoff=NEAR)
        inside = _names(_entry(config, name)) if is_section else [name]
        for setting in set(inside) & set(known):
            if _entry(training, setting) is None:
                raise ConfigurationError(
                    "config-outside-section",
                    f"config: {setting} is outside of the section `training`, where it is not "
                    f'read: write {{"training": {{"{setting}": ...}}}}.',
                )
    for name in set(_names(training)) - set(known):
        for near in near_names(name, known, cutoff=NEAR):
            if not set(near.split("_")) < set(name.split("_")):  # which says something else
                raise ConfigurationError(
                    "config-misspelt",
                    f"config: training.{name} is not read. Did you mean training.{near}?",
                )
