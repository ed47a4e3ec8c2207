"""Values of a run that are not known when a scheduler is described: names for them, and arithmetic
on the names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NoReturn

from ...errors import ConfigurationError
from .loaders import length_of


class _Arithmetic:
    """What makes a placeholder usable like the number it stands for: every operation is put off
    until it is known."""

    def __add__(self, other: Any) -> Expression:
        return Expression(operator.add, self, other)

    def __radd__(self, other: Any) -> Expression:
        return Expression(operator.add, other, self)

    def __sub__(self, other: Any) -> Expression:
        return Expression(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Expression:
        return Expression(operator.sub, other, self)

    def __mul__(self, other: Any) -> Expression:
        return Expression(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Expression:
        return Expression(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Expression:
        return Expression(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return Expression(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return Expression(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return Expression(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Expression:
        return Expression(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Expression:
        return Expression(operator.mod, other, self)

    def __pow__(self, other: Any) -> Expression:
        return Expression(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Expression:
        return Expression(operator.pow, other, self)

    def __neg__(self) -> Expression:
        return Expression(operator.neg, self)

    def __round__(self, digits: int | None = None) -> Expression:
        return Expression(round, self) if digits is None else Expression(round, self, digits)

    def __int__(self) -> NoReturn:
        raise ConfigurationError(
            f"{self!r} is not known before training starts, so it cannot be converted to a whole "
            "number yet: use `//` or `round(...)`, which are evaluated later, or override "
            "`create_scheduler`."
        )

    __float__ = __index__ = __int__


class Expression(_Arithmetic):
    """An operation on placeholders and numbers, done when `resolve` is called."""

    __slots__ = ("operands", "operation")

    def __init__(self, operation: Callable[..., Any], *operands: Any) -> None:
        self.operation = operation
        self.operands = operands

    def resolve(self, values: Mapping[TrainerPlaceholderValues, int | None]) -> Any:
        return self.operation(*(resolve(operand, values) for operand in self.operands))

    def __repr__(self) -> str:
        name = getattr(self.operation, "__name__", "round")
        return f"{name}({', '.join(map(str, self.operands))})"


class TrainerPlaceholderValues(_Arithmetic, Enum):
    """Stands for a value that the trainer knows once a run is set up; use it in
    `create_scheduler_fn`.

    Arithmetic works: `TrainerPlaceholderValues.NUM_EPOCHS *
    TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH`. Schedulers are stepped once an update
    whatever the number of processes, so both names of the number of updates in an epoch stand for
    the same.
    """

    NUM_EPOCHS = "the number of epochs"
    NUM_UPDATE_STEPS_PER_EPOCH = "the number of optimizer updates in an epoch"
    PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH = (
        "the number of optimizer updates in an epoch, in this process"
    )
    TRAIN_DATALOADER_LEN = "the number of training batches in an epoch"
    EVAL_DATALOADER_LEN = "the number of evaluation batches"

    @classmethod
    def placeholder_set(cls) -> set[str]:
        return {placeholder.name for placeholder in cls}


TrainerPlaceHolderValues = TrainerPlaceholderValues  # as the document spells it in a heading


def placeholder_values(trainer: Any) -> dict[TrainerPlaceholderValues, int | None]:
    """What the placeholders stand for in a trainer's run; None where it cannot be known."""
    config = trainer.run_config
    return {
        TrainerPlaceholderValues.NUM_EPOCHS: config.num_epochs,
        TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH: config.num_update_steps_per_epoch,
        TrainerPlaceholderValues.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: config.num_local_update_steps_per_epoch,
        TrainerPlaceholderValues.TRAIN_DATALOADER_LEN: length_of(trainer._train_dataloader),
        TrainerPlaceholderValues.EVAL_DATALOADER_LEN: length_of(trainer._eval_dataloader),
    }


def replace_trainer_placeholder_values(trainer: Any, instance: Any) -> Any:
    """A factory, such as a `functools.partial`, with the placeholders in it filled in from a
    trainer's run."""
    return resolve(instance, placeholder_values(trainer))


def resolve(given: Any, values: Mapping[TrainerPlaceholderValues, int | None]) -> Any:
    """The same thing with every placeholder in it replaced: in partials, lists, tuples and dicts
    too."""
    if isinstance(given, TrainerPlaceholderValues):
        value = values.get(given)
        if value is None:
            raise ConfigurationError(
                f"TrainerPlaceholderValues.{given.name} is not known in this run: {given.value} "
                "cannot be determined from the data. Pass data that has a length (and "
                "`eval_dataset=`, if the value depends on it), or the number."
            )
        return value
    if isinstance(given, Expression):
        return given.resolve(values)
    if isinstance(given, partial):
        args = [resolve(arg, values) for arg in given.args]
        keywords = {name: resolve(value, values) for name, value in given.keywords.items()}
        return partial(resolve(given.func, values), *args, **keywords)
    if type(given) in (list, tuple):
        return type(given)(resolve(item, values) for item in given)
    if type(given) is dict:
        return {key: resolve(value, values) for key, value in given.items()}
    return given
