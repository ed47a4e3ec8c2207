"""Names for values of a run that are not known when a scheduler is described, and arithmetic on
them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NoReturn

from ...errors import ConfigurationError
from .loaders import length_of


def _deferred(operation: Callable[..., Any]) -> tuple[Any, Any]:
    """An operator of a placeholder, and its reflection: both wait until the value is known."""

    def method(self: Any, *others: Any) -> Expression:
        return Expression(operation, self, *others)

    def reflected(self: Any, other: Any) -> Expression:
        return Expression(operation, other, self)

    return method, reflected


class _Arithmetic:
    """Makes a placeholder usable like the number that it stands for."""

    __add__, __radd__ = _deferred(operator.add)
    __sub__, __rsub__ = _deferred(operator.sub)
    __mul__, __rmul__ = _deferred(operator.mul)
    __truediv__, __rtruediv__ = _deferred(operator.truediv)
    __floordiv__, __rfloordiv__ = _deferred(operator.floordiv)
    __mod__, __rmod__ = _deferred(operator.mod)
    __pow__, __rpow__ = _deferred(operator.pow)
    __neg__ = _deferred(operator.neg)[0]
    __round__ = _deferred(round)[0]

    def __int__(self) -> NoReturn:
        raise ConfigurationError(
            "placeholder-as-number",
            f"{self!r} is not known before training starts, so it cannot be converted to a whole "
            "number yet: use `//` or `round(...)`, which are evaluated later, or override "
            "`create_scheduler`.",
        )

    __float__ = __index__ = __int__


class Expression(_Arithmetic):
    """An operation on placeholders and numbers, done when `resolve` is called."""

    __slots__ = ("operands", "operation")

    def __init__(self, operation: Callable[..., Any], *operands: Any) -> None:
        self.operation = operation
        self.operands = operands

    def __repr__(self) -> str:
        return f"{self.operation.__name__}({', '.join(map(str, self.operands))})"


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


def replace_trainer_placeholder_values(trainer: Any, instance: Any) -> Any:
    """A factory, such as a `functools.partial`, with the placeholders in it filled in from a
    trainer's run."""
    config = trainer.run_config
    known = TrainerPlaceholderValues
    values = {
        known.NUM_EPOCHS: config.num_epochs,
        known.NUM_UPDATE_STEPS_PER_EPOCH: config.num_update_steps_per_epoch,
        known.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: config.num_local_update_steps_per_epoch,
        known.TRAIN_DATALOADER_LEN: length_of(trainer._train_dataloader),
        known.EVAL_DATALOADER_LEN: length_of(trainer._eval_dataloader),
    }
    return resolve(instance, values)


def resolve(given: Any, values: Mapping[TrainerPlaceholderValues, int | None]) -> Any:
    """The same thing with every placeholder in it replaced: in partials, lists, tuples and dicts
    too."""
    if isinstance(given, TrainerPlaceholderValues):
        value = values.get(given)
        if value is None:
            raise ConfigurationError(
                "unknown-placeholder",
                f"TrainerPlaceholderValues.{given.name} is not known in this run: {given.value} "
                "cannot be determined from the data. Pass data that has a length (and "
                "`eval_dataset=`, if the value depends on it), or the number.",
            )
        return value
    if isinstance(given, Expression):
        return given.operation(*resolve(given.operands, values))
    if isinstance(given, partial):
        function = resolve(given.func, values)
        return partial(function, *resolve(given.args, values), **resolve(given.keywords, values))
    if type(given) in (list, tuple):
        return type(given)(resolve(item, values) for item in given)
    if type(given) is dict:
        return {key: resolve(value, values) for key, value in given.items()}
    return given
