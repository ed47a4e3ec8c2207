"""Loaders and schedulers from what the user asked for, and the sizes of a run that follow from it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from ...errors import ConfigurationError
from .placeholders import TrainerPlaceholderValues, resolve

_KNOWN = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in ("self", "dataset")]


def loader_options(
    dataset: Any,
    defaults: Mapping[str, Any],
    asked: Mapping[str, Any] | None,
    collate_fn: Callable[[Any], Any] | None,
) -> dict[str, Any]:
    """Arguments for a DataLoader: the defaults without those that exclude what was asked for, then what was asked."""
    asked = dict(asked or {})
    excluded: set[str] = set()
    if isinstance(dataset, IterableDataset) or "sampler" in asked:
        excluded = {"shuffle"}
    if "batch_sampler" in asked:
        excluded = {"shuffle", "batch_size", "drop_last", "sampler"}
    options = {name: value for name, value in defaults.items() if name not in excluded}
    if collate_fn is not None:
        options["collate_fn"] = collate_fn
    return options | asked


def build_loader(dataset: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    if dataset is None:
        raise ConfigurationError("There is no data set: pass it to `train` or `evaluate`.")
    if isinstance(dataset, DataLoader):
        raise ConfigurationError(
            "A DataLoader was passed as the data set: pass `loader.dataset`, with the loader's options as dataloader "
            "kwargs, or override `create_train_dataloader` and `create_eval_dataloader`."
        )
    if isinstance(dataset, tuple) and len(dataset) > 1 and all(isinstance(part, Tensor) for part in dataset):
        raise ConfigurationError(
            f"The data set is a tuple of {len(dataset)} tensors: make one data set of them, as in "
            "`TensorDataset(inputs, targets)`."
        )
    unknown = next((name for name in options if name not in _KNOWN), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, _KNOWN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(_KNOWN)}."
        raise ConfigurationError(f"A DataLoader has no option {unknown!r}, which the dataloader kwargs hold; {hint}")
    return DataLoader(dataset, **options)


def build_scheduler(
    factory: Callable[[Optimizer], Any],
    optimizer: Optimizer | None,
    values: Mapping[TrainerPlaceholderValues, int | None],
) -> Any:
    """What the factory makes of the optimizer, with the placeholders in it filled in."""
    if isinstance(factory, LRScheduler) or not callable(factory):
        raise ConfigurationError(
            f"create_scheduler_fn is a {type(factory).__name__}: pass a function of the optimizer that makes a "
            "scheduler, such as `functools.partial(StepLR, step_size=7)`."
        )
    try:
        scheduler = resolve(factory, values)(optimizer)
    except TypeError as error:
        error.add_note("create_scheduler_fn is called with the optimizer alone: fix the rest with `functools.partial`.")
        raise
    if scheduler is None:
        raise ConfigurationError(
            "create_scheduler_fn returned None: return the scheduler that it makes, or pass None for no scheduler."
        )
    return scheduler


def planned_updates(num_batches: int | None, accumulation_steps: int) -> int | None:
    """Updates in an epoch: one for each full window of batches, and one for the rest."""
    return None if num_batches is None else -(-num_batches // accumulation_steps)


def smaller_limit(num_epochs: int, max_updates: int | None, updates_per_epoch: int | None) -> int:
    """The number of epochs, the last one perhaps not whole, that the two limits leave."""
    if max_updates is None or not updates_per_epoch:
        return num_epochs
    return min(num_epochs, -(-max_updates // updates_per_epoch))
