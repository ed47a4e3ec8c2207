"""The stages of a run that a subclass may override, with their defaults."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from ...data.stream import batch_size_of
from ...errors import ConfigurationError
from ...training.supervised import call_loss
from .._shared import is_overridden
from . import run_config as processes
from .placeholders import TrainerPlaceholderValues, placeholder_values, resolve

if TYPE_CHECKING:
    from ...runtime import Runtime
    from .core import Core
    from .run_config import TrainerRunConfig
    from .tracking import RunHistory

_KNOWN = [
    name
    for name in inspect.signature(DataLoader.__init__).parameters
    if name not in ("self", "dataset")
]
DlKwargs = Mapping[str, Any] | None


class Stages:
    """The default of each named stage of document 002.

    Methods that begin with *create*, *calculate* or *get* return something, all others act. A
    callback's `on_<stage>` runs right after the method of the same name.
    """

    model: nn.Module
    loss_func: Callable[..., Tensor] | None
    optimizer: Optimizer | None
    scheduler: Any
    run_history: RunHistory
    run_config: TrainerRunConfig
    train_dataset: Any
    eval_dataset: Any
    collate_fn: Callable[[Any], Any] | None
    create_scheduler_fn: Callable[[Optimizer], Any] | None
    _train_dl_kwargs: dict[str, Any]
    _eval_dl_kwargs: dict[str, Any]
    _runtime: Runtime
    _core: Core

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return self._runtime.device

    # Setup

    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: DlKwargs = None) -> Any:
        """Return the training loader: a `DataLoader` with the default options and yours over
        them."""
        self._train_dl_kwargs = loader_options(
            self.train_dataset,
            self.get_default_train_dl_kwargs(batch_size),
            train_dl_kwargs,
            self.collate_fn,
        )
        return build_loader(self.train_dataset, self._train_dl_kwargs)

    def get_default_train_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default options of the training loader: shuffled, no worker processes."""
        return {
            "shuffle": True,
            "pin_memory": self.device.type == "cuda",
            "batch_size": batch_size,
            "num_workers": 0,
        }

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: DlKwargs = None) -> Any:
        """Return the evaluation loader: a `DataLoader` with the default options and yours over
        them."""
        self._eval_dl_kwargs = loader_options(
            self.eval_dataset,
            self.get_default_eval_dl_kwargs(batch_size),
            eval_dl_kwargs,
            self.collate_fn,
        )
        return build_loader(self.eval_dataset, self._eval_dl_kwargs)

    def get_default_eval_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default options of the evaluation loader: in order, no worker processes."""
        return {
            "shuffle": False,
            "pin_memory": self.device.type == "cuda",
            "batch_size": batch_size,
            "num_workers": 0,
        }

    def create_scheduler(self) -> Any:
        """Return the scheduler of this run, or None. Default: what `create_scheduler_fn` makes."""
        if self.create_scheduler_fn is None:
            return None
        scheduler = build_scheduler(
            self.create_scheduler_fn, self.optimizer, placeholder_values(self)
        )
        if isinstance(scheduler, ReduceLROnPlateau) and not is_overridden(
            self, "scheduler_step", Stages
        ):
            raise ConfigurationError(
                "create_scheduler_fn returned a ReduceLROnPlateau, which needs a metric for each "
                "step: use another scheduler, or override `scheduler_step` and step it where you "
                "have the metric, as in `training_run_epoch_end`."
            )
        return scheduler

    # Training run

    def training_run_start(self) -> None:
        """Called when a training run begins: loaders, run config and scheduler exist. Default:
        nothing."""

    def training_run_epoch_end(self) -> None:
        """Called after each epoch and its evaluation. Default: nothing."""

    def training_run_end(self) -> None:
        """Called when the training run is over, also if it was stopped. Default: nothing."""

    # Training epoch

    def train_epoch_start(self) -> None:
        """Called when a training epoch begins. Default: train mode; frozen parts stay in eval
        mode."""
        self._core.set_train_mode()

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Return `{"loss", "model_outputs", "batch_size"}` of a training batch; the loss is the
        mean of its samples."""
        return self._calculate_loss(batch)

    def backward_step(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, which is already divided for accumulation. Default:
        scaled for fp16."""
        self._core.gradients.backward(loss)

    def optimizer_step(self) -> None:
        """Step the optimizer, once per update. Default: `optimizer.step()`, unless the fp16 scaler
        skips it."""
        self._core.gradients.step()

    def scheduler_step(self) -> None:
        """Step the scheduler, after every update that was not left out. Default: `scheduler.step()`
        if there is one."""
        if self.scheduler is not None:
            self.scheduler.step()

    def optimizer_zero_grad(self) -> None:
        """Reset the gradients after an update."""
        self._core.gradients.zero()

    def train_epoch_end(self) -> None:
        """Called after the last batch of a training epoch; `train_loss_epoch` is recorded. Default:
        nothing."""

    # Evaluation epoch

    def eval_epoch_start(self) -> None:
        """Called when an evaluation epoch begins. Default: eval mode."""
        self._core.set_eval_mode()

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Return the same dict for an evaluation batch, in eval mode without gradients."""
        return self._calculate_loss(batch)

    def eval_epoch_end(self) -> None:
        """Called after the last batch of an evaluation epoch; its loss is recorded. Default:
        nothing."""

    # Evaluation run

    def evaluation_run_start(self) -> None:
        """Called when `evaluate` begins. Default: nothing."""

    def evaluation_run_end(self) -> None:
        """Called when `evaluate` is over. Default: nothing."""

    # What the stages share

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once per machine, however many processes it runs."""
        if processes.is_local_process_zero():
            print(*args, **kwargs)

    def _calculate_loss(self, batch: Any) -> dict[str, Any]:
        if self.loss_func is None:
            raise ConfigurationError(
                "Trainer has no loss function: pass `loss_func=`, or override "
                "`calculate_train_batch_loss` and `calculate_eval_batch_loss`."
            )
        inputs, targets = _pair(batch)
        outputs = self.model(inputs)
        loss = call_loss(self.loss_func, outputs, targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": batch_size_of(targets)}


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch, as the default stages expect it."""
    if isinstance(batch, list | tuple) and len(batch) >= 2:
        return batch[0], batch[1]
    kind = (
        f"{type(batch).__name__} of {len(batch)}"
        if isinstance(batch, list | tuple)
        else type(batch).__name__
    )
    raise ConfigurationError(
        f"A batch is a {kind}: the default `calculate_train_batch_loss` and "
        "`calculate_eval_batch_loss` expect (inputs, targets). Return such pairs from the data "
        "set or `collate_fn`, or override both methods."
    )


def loader_options(
    dataset: Any,
    defaults: Mapping[str, Any],
    asked: Mapping[str, Any] | None,
    collate_fn: Callable[[Any], Any] | None,
) -> dict[str, Any]:
    """Arguments for a DataLoader: the user's options, and the defaults that do not contradict
    them."""
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
            "A DataLoader was passed as the data set: pass `loader.dataset`, with the loader's "
            "options as dataloader kwargs, or override `create_train_dataloader` and "
            "`create_eval_dataloader`."
        )
    if (
        isinstance(dataset, tuple)
        and len(dataset) > 1
        and all(isinstance(part, Tensor) for part in dataset)
    ):
        raise ConfigurationError(
            f"The data set is a tuple of {len(dataset)} tensors: make one data set from them, as "
            "in `TensorDataset(inputs, targets)`."
        )
    unknown = next((name for name in options if name not in _KNOWN), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, _KNOWN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(_KNOWN)}."
        raise ConfigurationError(
            f"A DataLoader has no option {unknown!r}, which is in the dataloader kwargs; {hint}"
        )
    return DataLoader(dataset, **options)


def build_scheduler(
    factory: Callable[[Optimizer], Any],
    optimizer: Optimizer | None,
    values: Mapping[TrainerPlaceholderValues, int | None],
) -> Any:
    """What the factory makes of the optimizer, with the placeholders in it filled in."""
    if isinstance(factory, LRScheduler) or not callable(factory):
        raise ConfigurationError(
            f"create_scheduler_fn is a {type(factory).__name__}: pass a function that takes the "
            "optimizer and returns a scheduler, such as `functools.partial(StepLR, step_size=7)`."
        )
    try:
        scheduler = resolve(factory, values)(optimizer)
    except TypeError as error:
        error.add_note(
            "create_scheduler_fn is called with only the optimizer: set the other arguments with "
            "`functools.partial`."
        )
        raise
    if scheduler is None:
        raise ConfigurationError(
            "create_scheduler_fn returned None: return the scheduler, or pass None for no "
            "scheduler."
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
