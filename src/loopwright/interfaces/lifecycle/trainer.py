"""The trainer of document 002: `train` and `evaluate`, and what they set up before the stages
run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...data.random import all_preserved
from ...errors import ConfigurationError
from ...runtime import resolve_runtime
from .._shared import check_method_names, is_overridden
from . import run_config, saving
from .accelerator import PRECISIONS, Accelerator, checked_accelerator, checked_precision, unwrapped
from .callbacks import (
    CallbackHandler,
    CallbackLike,
    LimitBatchesCallback,
    TrainerCallback,
    get_default_callbacks,
)
from .checks import (
    call_by_name,
    check_components,
    check_limits,
    check_scheduler,
    check_start,
    checked_config,
    checked_loader,
)
from .core import Core
from .epochs import Epochs
from .loaders import length_of
from .placeholders import (
    TrainerPlaceHolderValues,
    TrainerPlaceholderValues,
    replace_trainer_placeholder_values,
)
from .run_config import TrainerRunConfig
from .stages import DlKwargs, planned_updates, smaller_limit
from .tracking import InMemoryRunHistory, LossTracker, RunHistory

__all__ = [
    "DEFAULT_CALLBACKS",
    "Trainer",
    "TrainerPlaceHolderValues",
    "TrainerPlaceholderValues",
    "replace_trainer_placeholder_values",
]

DEFAULT_CALLBACKS = get_default_callbacks()


class Trainer(Epochs):
    """Trains and evaluates a model on data sets. Every stage of a run is a method that you may
    override.

    Args:
        model: The module to train.
        loss_func: A function or module of (outputs, targets); None if you override
            `calculate_train_batch_loss` and `calculate_eval_batch_loss`.
        optimizer: A torch optimizer; None for a trainer that only evaluates.
        callbacks: `TrainerCallback` classes or objects, and trackers of `loopwright.trackers`.
            Default: `DEFAULT_CALLBACKS`, which print, log and stop at a loss that is not finite.
        run_history: Where metrics are recorded. Default: an `InMemoryRunHistory`.
        mixed_precision: "no", "bf16" or "fp16". Default: the variable ACCELERATE_MIXED_PRECISION,
            else "no".

    Example:
        >>> import torch
        >>> from loopwright.interfaces.lifecycle import Trainer
        >>> x, model = torch.ones(8, 2), torch.nn.Linear(2, 1)
        >>> trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
        >>> trainer.train(torch.utils.data.TensorDataset(x, x[:, :1]), num_epochs=2)
        >>> len(trainer.run_history.get_metric_values("train_loss_epoch"))
        2
    """

    def __init__(
        self,
        model: nn.Module,
        loss_func: Callable[..., Tensor] | None,
        optimizer: Optimizer | None,
        callbacks: Iterable[CallbackLike] = DEFAULT_CALLBACKS,
        run_history: RunHistory | None = None,
        *,
        mixed_precision: str | None = None,
    ) -> None:
        check_method_names(self)
        check_components(model, loss_func, optimizer)
        if isinstance(run_history, type):
            raise ConfigurationError(
                f"run_history is the class {run_history.__name__}: pass `{run_history.__name__}()`."
            )
        self.model = model
        self.loss_func = loss_func
        self.optimizer = optimizer
        self.scheduler = None
        self.run_history = InMemoryRunHistory() if run_history is None else run_history
        self.run_config = TrainerRunConfig()
        self.train_dataset = None
        self.eval_dataset = None
        self.collate_fn = None
        self.create_scheduler_fn = None
        self._train_dataloader: Any = None
        self._eval_dataloader: Any = None
        self._train_dl_kwargs = {}
        self._eval_dl_kwargs = {}
        self._loss_tracker = LossTracker()
        self._mixed_precision = checked_precision(mixed_precision)
        self._runtime = resolve_runtime(None, PRECISIONS[self._mixed_precision])
        self._accelerator = checked_accelerator(self._create_accelerator())
        self._core = Core(self, self._runtime)
        self._is_training = False
        self.callback_handler = CallbackHandler([*_limits_of_environment(), *_listed(callbacks)])
        self.callback_handler.call_event("on_init_end", self)

    # Running

    def train(
        self,
        train_dataset: Any,
        num_epochs: int,
        eval_dataset: Any = None,
        per_device_batch_size: int = 8,
        max_num_train_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        gradient_clip_value: float | None = None,
        create_scheduler_fn: Callable[[Optimizer], Any] | None = None,
        train_dataloader_kwargs: DlKwargs = None,
        eval_dataloader_kwargs: DlKwargs = None,
        reset_run_history: bool = True,
        collate_fn: Callable[[Any], Any] | None = None,
        resume_from: str | Path | None = None,
    ) -> None:
        """Train for `num_epochs` epochs or `max_num_train_steps` updates, whichever comes first.

        Args:
            train_dataset: The data set to train on.
            num_epochs: The number of epochs.
            eval_dataset: The data set to evaluate after every epoch.
            per_device_batch_size: Samples in a batch of each process.
            max_num_train_steps: The number of updates; the smaller of the two limits ends the run.
            gradient_accumulation_steps: Batches in one update.
            gradient_clip_value: The largest absolute value of a gradient, above 0. Default: no
                clipping.
            create_scheduler_fn: A function of the optimizer that returns a scheduler, which is
                stepped after every update. A `functools.partial` may hold
                `TrainerPlaceholderValues`.
            train_dataloader_kwargs: Options for the training `DataLoader`, over the defaults.
            eval_dataloader_kwargs: Options for the evaluation `DataLoader`, over the defaults.
            reset_run_history: Whether the run history starts empty.
            collate_fn: Makes a batch of samples, for both loaders.
            resume_from: A directory that `save_training_state` wrote. The run continues exactly
                there, and the limits count from its beginning.
        """
        check_start(self, per_device_batch_size)
        check_limits(
            num_epochs, max_num_train_steps, gradient_accumulation_steps, gradient_clip_value
        )
        self._start_core()
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.create_scheduler_fn = create_scheduler_fn
        self.collate_fn = collate_fn
        if reset_run_history:
            self.run_history.reset()
        with self._core.run.own_generators(), self._closing_core():
            self._core.order_seed = torch.initial_seed()  # that of the run's own generators
            self._create_dataloaders(
                per_device_batch_size, train_dataloader_kwargs, eval_dataloader_kwargs
            )
            self._set_up(
                num_epochs=num_epochs,
                gradient_accumulation_steps=gradient_accumulation_steps,
                max_num_train_steps=max_num_train_steps,
                per_device_batch_size=per_device_batch_size,
                gradient_clip_value=gradient_clip_value,
            )
            self._core.use_config(self.run_config)
            self._create_scheduler()
            self._say_what_is_not_called()
            with self._runtime.supervised(), self._reporting_errors():
                self._execute_run(resume_from)

    def evaluate(
        self,
        dataset: Any = None,
        per_device_batch_size: int = 8,
        dataloader_kwargs: DlKwargs = None,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        """Run one evaluation epoch and record its loss in the run history as `evaluation_loss`.

        Args:
            dataset: The data set. Default: the evaluation data of the last training run.
            per_device_batch_size: Samples in a batch of each process.
            dataloader_kwargs: Options for the `DataLoader`, over the defaults.
            collate_fn: Makes a batch of samples.
        """
        check_start(self, per_device_batch_size)
        if dataset is None and self.eval_dataset is None:
            raise ConfigurationError(
                "evaluate() has no data: pass `dataset=`, or train with `eval_dataset=` first."
            )
        before = self._evaluated_state()
        self.eval_dataset = self.eval_dataset if dataset is None else dataset
        self.collate_fn = collate_fn or self.collate_fn
        try:
            if self._is_training:
                self._create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
                self._core.prepare_loaders()
                self._run_evaluation()
                return
            self._core = Core(self, self._runtime)
            self._train_dataloader = None
            with self._runtime.supervised(), all_preserved():
                self._create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
                self._set_up(
                    num_epochs=1,
                    gradient_accumulation_steps=1,
                    max_num_train_steps=None,
                    per_device_batch_size=per_device_batch_size,
                    gradient_clip_value=None,
                )
                self._run_evaluation()
        finally:
            self._core.close_stream(self._eval_dataloader)
            vars(self).update(before)

    def _evaluated_state(self) -> dict[str, Any]:
        """What an evaluation changes for as long as it takes."""
        names = (
            "_core",
            "eval_dataset",
            "collate_fn",
            "_train_dataloader",
            "_eval_dataloader",
            "_eval_dl_kwargs",
        )
        return {name: getattr(self, name) for name in names}

    # Internal: setting up

    def _start_core(self) -> None:
        """Begin a run of its own, so that nothing of an earlier one takes part in it."""
        if self._is_training:
            raise ConfigurationError(
                "train() was called while this trainer is training: call it after training ends."
            )
        before = self._core.run
        self._core = Core(self, self._runtime, trains=True)
        self._core.run.media.take_over(before.media)
        # a second run goes on with the random numbers of the first
        self._core.run.generators = before.generators
        earlier = before.progress
        # the order of samples goes on changing
        self._core.progress.go_to_epoch(earlier.epoch + earlier.in_epoch)
        self._core.progress.next_call()
        self._is_training = True

    @contextmanager
    def _closing_core(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._is_training = False
            self._core.close()

    def _create_dataloaders(
        self, batch_size: int, train_kwargs: DlKwargs, eval_kwargs: DlKwargs
    ) -> None:
        loader = call_by_name(
            self.create_train_dataloader, batch_size=batch_size, train_dl_kwargs=train_kwargs
        )
        self._train_dataloader = checked_loader(loader, "create_train_dataloader")
        self._eval_dataloader = None
        self._eval_dl_kwargs = {}
        if self.eval_dataset is not None:
            self._create_eval_dataloader(batch_size, eval_kwargs)

    def _create_eval_dataloader(self, batch_size: int, eval_kwargs: DlKwargs) -> None:
        loader = call_by_name(
            self.create_eval_dataloader, batch_size=batch_size, eval_dl_kwargs=eval_kwargs
        )
        self._eval_dataloader = checked_loader(loader, "create_eval_dataloader")

    def _set_up(self, **settings: Any) -> None:
        """Prepare what a run needs, also where the user's methods leave that out, and work out its
        config."""
        self._prepare_model_optimizer_and_dataloaders()
        self._core.prepare()
        self._core.prepare_loaders()
        self.run_config = checked_config(call_by_name(self._create_run_config, **settings))

    def _create_accelerator(self) -> Any:
        """Create the object by which methods written for the published system get device, processes
        and gradients."""
        return Accelerator(self)

    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        """Call the two methods that prepare the parts of a run."""
        self._prepare_model_and_optimizer()
        self._prepare_dataloaders()

    def _prepare_model_and_optimizer(self) -> None:
        """Put the model on the device and get ready to update it."""
        self._core.prepare()

    def _prepare_dataloaders(self) -> None:
        """Prepare the loaders: from here on, seed and epoch alone decide the order of samples."""
        self._core.prepare_loaders()

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int,
        gradient_accumulation_steps: int = 1,
        max_num_train_steps: int | None = None,
        gradient_clip_value: float | None = None,
    ) -> TrainerRunConfig:
        """Return the settings of this run, which uses the epochs, updates, accumulation and
        clipping returned here."""
        check_limits(
            num_epochs, max_num_train_steps, gradient_accumulation_steps, gradient_clip_value
        )
        updates = planned_updates(length_of(self._train_dataloader), gradient_accumulation_steps)
        train_size = self._train_dl_kwargs.get("batch_size", per_device_batch_size)
        eval_size = self._eval_dl_kwargs.get("batch_size", per_device_batch_size)
        num_processes = run_config.num_processes()
        return TrainerRunConfig(
            num_epochs=smaller_limit(num_epochs, max_num_train_steps, updates),
            train_per_device_batch_size=train_size,
            train_dl_kwargs=dict(self._train_dl_kwargs),
            eval_per_device_batch_size=eval_size,
            eval_dl_kwargs=dict(self._eval_dl_kwargs),
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_clip_value=gradient_clip_value,
            train_total_batch_size=train_size * gradient_accumulation_steps * num_processes,
            eval_total_batch_size=eval_size * num_processes,
            num_update_steps_per_epoch=updates,
            num_local_update_steps_per_epoch=updates,
            max_num_train_steps=max_num_train_steps,
            is_local_process_zero=run_config.is_local_process_zero(),
            is_world_process_zero=run_config.is_world_process_zero(),
            is_distributed=run_config.is_distributed(),
            mixed_precision=self._mixed_precision,
            num_processes=num_processes,
        )

    def _create_scheduler(self) -> None:
        """Take the scheduler of this run, returned or assigned by `create_scheduler`."""
        before = self.scheduler
        scheduler = self.create_scheduler()
        if scheduler is None and self.scheduler is not before:
            scheduler = self.scheduler
        check_scheduler(self, scheduler)
        self.scheduler = scheduler
        self._core.use_scheduler(scheduler)

    def _say_what_is_not_called(self) -> None:
        """Print a line about an overridden method that this run does not call."""
        if self._overrides("_clip_gradients") and self.run_config.gradient_clip_value is None:
            self.print(
                "`_clip_gradients` would not be called in this run: it is only for runs with "
                "`train(gradient_clip_value=...)`."
            )

    # Files

    def save_checkpoint(
        self,
        save_path: str | Path,
        checkpoint_kwargs: Mapping[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write the model, and by default its optimizer and scheduler, to a checkpoint directory.

        `checkpoint_kwargs` are kept beside them and come back from `load_checkpoint`.
        """
        if (
            run_config.is_local_process_zero()
            if save_per_node
            else run_config.is_world_process_zero()
        ):
            saving.write_checkpoint_of(
                self, save_path, checkpoint_kwargs, save_optimizer, save_scheduler
            )

    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Load a checkpoint into the model, its optimizer and scheduler, and return its content as
        a dict.

        A scheduler exists only once a run has started; before that, its state is returned and not
        loaded.
        """
        return saving.load_checkpoint_into(self, checkpoint_path, load_optimizer, load_scheduler)

    def save_training_state(
        self, output_dir: str | Path, checkpoint_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Write the whole state of the run, from which `train(resume_from=output_dir)` continues
        exactly.

        Called inside a training step, it waits for the end of the update.
        """
        self._core.after_update(lambda: saving.save_run(self, output_dir, checkpoint_kwargs))

    def load_training_state(self, input_dir: str | Path) -> dict[str, Any]:
        """Load model, optimizer, history and callbacks from a training state and return its
        `checkpoint_kwargs`.

        To continue the run itself, pass the directory to `train(resume_from=...)` instead.
        """
        return saving.load_state_into(self, input_dir)

    # Helpers

    def gather(self, tensor: Any, padding_value: float | None = None) -> Any:
        """Return the rows of all processes, one after another, of a tensor or of tensors in lists,
        tuples and dicts.

        Processes may have different numbers of rows; all of them have to call it. Where other
        dimensions differ, they are filled up with `padding_value`. Nothing else that was filled up
        comes back.
        """
        return self._core.gathering.gather(tensor, padding_value)

    def get_model(self, keep_torch_compile: bool = True) -> nn.Module:
        """Return the model itself; with `keep_torch_compile=False`, also without what
        `torch.compile` put around it."""
        return unwrapped(self.model, keep_torch_compile)

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or an assignment to this object, replaced a method of `Trainer`."""
        return is_overridden(self, name, Trainer)


def _limits_of_environment() -> list[TrainerCallback]:
    given = os.environ.get(LimitBatchesCallback.ENVIRONMENT, "none")
    return [] if given.lower() == "none" else [LimitBatchesCallback.from_environment()]


def _listed(callbacks: Any) -> Iterable[CallbackLike]:
    if isinstance(callbacks, TrainerCallback) or (
        isinstance(callbacks, type) and issubclass(callbacks, TrainerCallback)
    ):
        name = callbacks.__name__ if isinstance(callbacks, type) else type(callbacks).__name__
        raise ConfigurationError(
            f"callbacks={name}: pass a list of callbacks, as in `callbacks=[{name}]`."
        )
    return callbacks if callbacks is not None else ()


class TrainerWithTimmScheduler(Trainer):
    """A trainer for timm's schedulers: steps them with the number of updates, and after each epoch
    with its number."""

    num_updates: int = 0

    def scheduler_step(self) -> None:
        self.num_updates = self._core.progress.update + 1
        if self.scheduler is not None:
            self.scheduler.step_update(num_updates=self.num_updates)

    def training_run_epoch_end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step(self.run_history.current_epoch)
