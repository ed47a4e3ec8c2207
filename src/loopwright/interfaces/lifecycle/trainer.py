"""`Trainer`: `train`, `evaluate` and every stage of a run, in the order of document 002."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from ...checkpoint.weights import read_parts, write_parts
from ...data.random import all_preserved
from ...data.stream import batch_size_of
from ...errors import ConfigurationError, check_number
from ...metrics.progress import Limits
from ...metrics.result import StepResult
from ...runtime import resolve_runtime
from ...runtime.modes import start_training_mode
from ...training.own_steps import scheduler_position
from ...training.step_checks import check_clipping
from ...training.supervised import call_loss
from ...training.update import Window
from .._shared import LoggingTrainer, check_idle, is_overridden
from .callbacks import LimitBatchesCallback, get_default_callbacks
from .core import INTERMEDIATE, NAMES, OWN, LifecycleCore, loss_in
from .schedulers import TrainerPlaceHolderValues as TrainerPlaceHolderValues
from .schedulers import TrainerPlaceholderValues as TrainerPlaceholderValues
from .schedulers import length_of, replace_trainer_placeholder_values
from .tracking import (
    CallbackHandler,
    CallbackLike,
    InMemoryRunHistory,
    LossTracker,
    RunHistory,
    StopTrainingError,
)
from .utils import Accelerator, TrainerRunConfig, local_rank, unwrapped

DEFAULT_CALLBACKS = get_default_callbacks()
DlKwargs = Mapping[str, Any] | None
# attributes that an evaluation changes for as long as it takes
EVALUATED = (
    "_core",
    "eval_dataset",
    "collate_fn",
    "_train_dataloader",
    "_eval_dataloader",
    "_eval_dl_kwargs",
)


class Trainer(LoggingTrainer):
    """Trains and evaluates a model on data sets. Every stage of a run is a method that you may
    override.

    Methods that begin with *create*, *calculate* or *get* return something, all others act. A
    callback's `on_<stage>` runs right after the method of the same name. A loop of your own takes
    its batches from the loader that it is given: each of them is a step of the run, so limits,
    progress and training states stay right.

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

    _init_arguments = "model, loss_func, optimizer"

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
        NAMES.check_trainer(self)
        self.model = model
        self.loss_func = loss_func
        self.optimizer = optimizer
        self.scheduler: Any = None
        self.run_history: RunHistory = InMemoryRunHistory() if run_history is None else run_history
        self.run_config = TrainerRunConfig()
        self.train_dataset: Any = None
        self.eval_dataset: Any = None
        self.collate_fn: Callable[[Any], Any] | None = None
        self.create_scheduler_fn: Callable[[Optimizer], Any] | None = None
        self._train_dataloader: Any = None
        self._eval_dataloader: Any = None
        self._train_dl_kwargs: dict[str, Any] = {}
        self._eval_dl_kwargs: dict[str, Any] = {}
        self._loss_tracker = LossTracker()
        variable = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self._mixed_precision = variable if mixed_precision is None else mixed_precision
        precision = "fp32" if self._mixed_precision == "no" else self._mixed_precision
        self._runtime = resolve_runtime(None, precision)
        self._is_local_main = local_rank() == 0
        self._accelerator: Accelerator = self._create_accelerator()
        if not isinstance(self._accelerator, Accelerator):
            raise ConfigurationError(
                "own-accelerator",
                f"The settings of the {type(self._accelerator).__name__} that "
                "`_create_accelerator` returned would not be used: remove the method and pass "
                "`Trainer(..., mixed_precision='bf16')`; start several processes with torchrun.",
            )
        limits = LimitBatchesCallback.of_environment()
        self.callback_handler = CallbackHandler([*limits, *(callbacks or ())])
        self._core = LifecycleCore(self)
        self._is_training = False
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
        check_number("num_epochs", num_epochs, least=0)
        check_number("gradient_accumulation_steps", gradient_accumulation_steps, least=1)
        if max_num_train_steps is not None:
            check_number("max_num_train_steps", max_num_train_steps, least=0)
        if gradient_clip_value is not None:
            check_number("gradient_clip_value", gradient_clip_value, above=0, is_whole=False)
        if self.optimizer is None:
            raise ConfigurationError(
                "trainer-without-optimizer",
                "Trainer has no optimizer: pass `optimizer=`, or use `evaluate`.",
            )
        self._start_core()
        core = self._core
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.create_scheduler_fn = create_scheduler_fn
        self.collate_fn = collate_fn
        if reset_run_history:
            self.run_history.reset()
        try:
            with core.run.own_generators():
                core.order_seed = torch.initial_seed()  # that of the run's own generators
                self._train_dataloader = self.create_train_dataloader(
                    batch_size=per_device_batch_size, train_dl_kwargs=train_dataloader_kwargs
                )
                self._eval_dataloader = None
                self._eval_dl_kwargs = {}
                if eval_dataset is not None:
                    self._create_eval_dataloader(per_device_batch_size, eval_dataloader_kwargs)
                self._set_up(
                    num_epochs=num_epochs,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                    max_num_train_steps=max_num_train_steps,
                    per_device_batch_size=per_device_batch_size,
                    gradient_clip_value=gradient_clip_value,
                )
                core.use_config(self.run_config)
                self._use_scheduler()
                with self._runtime.supervised():
                    self._execute_run(resume_from)
        finally:
            self._is_training = False
            core.close()

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
        if dataset is None and self.eval_dataset is None:
            raise ConfigurationError(
                "no-evaluation-data",
                "evaluate() has no data: pass `dataset=`, or train with `eval_dataset=` first.",
            )
        before = {name: getattr(self, name) for name in EVALUATED}
        self.eval_dataset = self.eval_dataset if dataset is None else dataset
        self.collate_fn = collate_fn or self.collate_fn
        try:
            if self._is_training:
                self._create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
                prepared = self._core.prepared(self._eval_dataloader, is_training=False)
                self._eval_dataloader = prepared
                self._run_evaluation()
                return
            self._core = LifecycleCore(self)
            self._train_dataloader = None
            with self._runtime.supervised(), all_preserved():
                self._create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
                self._set_up(num_epochs=1, per_device_batch_size=per_device_batch_size)
                self._run_evaluation()
        finally:
            self._core.prepared(self._eval_dataloader, is_training=False).close()
            vars(self).update(before)

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
        is_first = self._is_local_main if save_per_node else self._runtime.is_main
        has_optimizer = save_optimizer and self.optimizer is not None
        has_scheduler = save_scheduler and self.scheduler is not None
        if is_first:
            write_parts(
                save_path,
                self._core.current_models(),
                {"optimizer": self.optimizer} if has_optimizer else {},
                {"scheduler": self.scheduler} if has_scheduler else {},
                rest={OWN: {"extra": dict(checkpoint_kwargs or {})}},
                meta=self._core.run.checkpoint_meta(),
            )

    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Load a checkpoint into the model, its optimizer and scheduler, and return its content as
        a dict.

        A scheduler exists only once a run has started; before that, its state is returned and not
        loaded.
        """
        parts = read_parts(checkpoint_path)
        self._core.load_parts(parts, optimizers=load_optimizer, schedules=load_scheduler)
        states = {**parts.models, **parts.optimizers, **parts.schedules}
        names = [name for name in ("model", "optimizer", "scheduler") if name in states]
        content = {f"{name}_state_dict": states[name] for name in names}
        return {**content, **parts.rest.get(OWN, {"extra": parts.rest})["extra"]}

    def save_training_state(
        self, output_dir: str | Path, checkpoint_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Write the whole state of the run, from which `train(resume_from=output_dir)` continues
        exactly.

        Called inside a training step, it waits for the end of the update.
        """
        self._core.after_update(lambda: self._core.save_state(output_dir, checkpoint_kwargs))

    def load_training_state(self, input_dir: str | Path) -> dict[str, Any]:
        """Load model, optimizer, history and callbacks from a training state and return its
        `checkpoint_kwargs`.

        To continue the run itself, pass the directory to `train(resume_from=...)` instead.
        """
        return self._core.load_state(input_dir)

    # Utility methods

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

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return self._runtime.device

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once per machine, however many processes it runs."""
        if self._is_local_main:
            print(*args, **kwargs)

    def _run_stage(self, name: str, **options: Any) -> None:
        """Call the method of a stage, then the callbacks' event of the same name."""
        getattr(self, name)()
        self.callback_handler.call_event(f"on_{name}", self, **options)

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or an assignment to this object, replaced a method of `Trainer`."""
        return is_overridden(self, name, Trainer)

    # Setup

    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: DlKwargs = None) -> Any:
        """Return the training loader: a `DataLoader` with the default options and yours over
        them."""
        defaults = self.get_default_train_dl_kwargs(batch_size)
        self._train_dl_kwargs = self._loader_options(self.train_dataset, defaults, train_dl_kwargs)
        return DataLoader(self.train_dataset, **self._train_dl_kwargs)

    def get_default_train_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default options of the training loader: shuffled, no worker processes."""
        return self.get_default_eval_dl_kwargs(batch_size) | {"shuffle": True}

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: DlKwargs = None) -> Any:
        """Return the evaluation loader: a `DataLoader` with the default options and yours over
        them."""
        defaults = self.get_default_eval_dl_kwargs(batch_size)
        self._eval_dl_kwargs = self._loader_options(self.eval_dataset, defaults, eval_dl_kwargs)
        return DataLoader(self.eval_dataset, **self._eval_dl_kwargs)

    def get_default_eval_dl_kwargs(self, batch_size: int) -> dict[str, Any]:
        """Return the default options of the evaluation loader: in order, no worker processes."""
        return {
            "shuffle": False,
            "pin_memory": self.device.type == "cuda",
            "batch_size": batch_size,
            "num_workers": 0,
        }

    def _loader_options(
        self, dataset: Any, defaults: Mapping[str, Any], given: DlKwargs
    ) -> dict[str, Any]:
        """Arguments for a DataLoader: the user's options, and the defaults that do not contradict
        them."""
        options = dict(given or {})
        excluded: tuple[str, ...] = ()
        if isinstance(dataset, IterableDataset) or "sampler" in options:
            excluded = ("shuffle",)
        if "batch_sampler" in options:
            excluded = ("shuffle", "batch_size", "drop_last", "sampler")
        kept = {name: value for name, value in defaults.items() if name not in excluded}
        if self.collate_fn is not None:
            kept["collate_fn"] = self.collate_fn
        return kept | options

    def create_scheduler(self) -> Any:
        """Return the scheduler of this run, or None. Default: what `create_scheduler_fn` makes."""
        if self.create_scheduler_fn is None:
            return None
        return replace_trainer_placeholder_values(self, self.create_scheduler_fn)(self.optimizer)

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
        for part, mode in self._core.modes:
            part.training = mode
        self._core.modes = []
        if self.optimizer is not None:
            start_training_mode([self.model], [self.optimizer])

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        """Return `{"loss", "model_outputs", "batch_size"}` of a training batch; the loss is the
        mean of its samples."""
        return self._calculate_loss(batch)

    def backward_step(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, which is already divided for accumulation. Default:
        scaled for fp16."""
        self._core.gradients.compute(loss)

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
        self._core.gradients.drop()

    def train_epoch_end(self) -> None:
        """Called after the last batch of a training epoch; `train_loss_epoch` is recorded. Default:
        nothing."""

    # Evaluation epoch

    def eval_epoch_start(self) -> None:
        """Called when an evaluation epoch begins. Default: eval mode."""
        core = self._core
        if not core.run.metrics.phases and not core.modes:
            core.modes = [(part, part.training) for part in self.model.modules()]
        self.model.eval()

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

    def _calculate_loss(self, batch: Any) -> dict[str, Any]:
        if self.loss_func is None:
            raise ConfigurationError(
                "trainer-without-loss",
                "Trainer has no loss function: pass `loss_func=`, or override "
                "`calculate_train_batch_loss` and `calculate_eval_batch_loss`.",
            )
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ConfigurationError(
                "not-a-pair",
                f"A batch is a {type(batch).__name__} and no pair of (inputs, targets): return "
                "pairs from the data set or `collate_fn`, or override "
                "`calculate_train_batch_loss` and `calculate_eval_batch_loss`.",
            )
        inputs, targets = batch[0], batch[1]
        outputs = self.model(inputs)
        loss = call_loss(self.loss_func, outputs, targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": batch_size_of(targets)}

    # Internal: setting up

    def _start_core(self) -> None:
        """Begin a run of its own, so that nothing of an earlier one takes part in it."""
        check_idle(self._is_training, "train()")
        before = self._core.run
        self._core = LifecycleCore(self, trains=True)
        self._core.run.media.take_over(before.media)
        # a second run goes on with the random numbers of the first, and with its order of samples
        self._core.run.generators = before.generators
        self._core.progress.go_to_epoch(before.progress.epoch + before.progress.in_epoch)
        self._core.progress.next_call()
        self._is_training = True

    def _create_eval_dataloader(self, batch_size: int, options: DlKwargs) -> None:
        self._eval_dataloader = self.create_eval_dataloader(
            batch_size=batch_size, eval_dl_kwargs=options
        )

    def _set_up(self, **settings: Any) -> None:
        """Prepare what a run needs, also where the user's methods leave that out, and work out its
        config."""
        self._prepare_model_optimizer_and_dataloaders()
        self._core.prepare()
        self._core.prepare_loaders()
        self.run_config = self._create_run_config(**settings)

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
        num_batches = length_of(self._train_dataloader)
        updates = None  # in an epoch: one for each full window of batches, and one for the rest
        if num_batches is not None:
            updates = -(-num_batches // gradient_accumulation_steps)
        if max_num_train_steps is not None and updates:  # the last epoch is perhaps not whole
            num_epochs = min(num_epochs, -(-max_num_train_steps // updates))
        train_size = self._train_dl_kwargs.get("batch_size", per_device_batch_size)
        eval_size = self._eval_dl_kwargs.get("batch_size", per_device_batch_size)
        num_processes = self._runtime.world
        return TrainerRunConfig(
            num_epochs=num_epochs,
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
            is_local_process_zero=self._is_local_main,
            is_world_process_zero=self._runtime.is_main,
            is_distributed=num_processes > 1,
            mixed_precision=self._mixed_precision,
            num_processes=num_processes,
        )

    def _use_scheduler(self) -> None:
        """Take the scheduler of this run, returned or assigned by `create_scheduler`."""
        before = self.scheduler
        scheduler = self.create_scheduler()
        if scheduler is None and self.scheduler is not before:
            scheduler = self.scheduler
        if scheduler is None and self.create_scheduler_fn is not None:
            raise ConfigurationError(
                "no-scheduler-returned",
                "`create_scheduler`, or create_scheduler_fn, returned None, so the run would have "
                "no scheduler: end the function with `return scheduler`.",
            )
        target = getattr(scheduler, "optimizer", None)
        if isinstance(target, Optimizer) and target is not self.optimizer:
            raise ConfigurationError(
                "scheduler-of-another-optimizer",
                "The scheduler belongs to an optimizer that this trainer does not have: create it "
                "with `self.optimizer`, or with the argument of create_scheduler_fn.",
            )
        self.scheduler = scheduler
        self._core.use_scheduler(scheduler)

    # Internal: a training run

    def _execute_run(self, resume_from: str | Path | None) -> None:
        """Run the epochs, or the rest of them, and record them."""
        core = self._core
        has_own_loop = self._overrides("_run_training")
        if resume_from is not None:
            core.resume(resume_from)
        limits = Limits(self.run_config.num_epochs, self.run_config.max_num_train_steps)
        core.run.set_limits(limits)
        if resume_from is not None and has_own_loop:
            if core.stage != "steps":
                core.end_epoch()
            self.print(
                f"Resumed in epoch {self.run_history.current_epoch} with your own "
                "`_run_training`: its epochs must be range(self.run_history.current_epoch - 1, "
                "self.run_config.num_epochs)."
            )
        with core.recorded(), core.handling_signals() if has_own_loop else nullcontext():
            self._run_training()
            core.drop_steps()

    def _run_training(self) -> None:
        """Run the start of a training run, its epochs up to a limit or a stop, and its end."""
        core = self._core
        core.is_looking = True
        self._run_stage("training_run_start")
        core.is_looking = False
        core.load_callbacks()
        is_over = False
        with core.handling_signals():
            try:
                reason = core.run.stopping.reason
                if reason is not None:
                    raise StopTrainingError(
                        f"Nothing to train: the resumed run was stopped ({reason}). To train on, "
                        "pass an earlier training state to `resume_from`, or load this one with "
                        "`load_training_state` and train a new run."
                    )
                if core.resumed_event is not None:
                    self.callback_handler.finish_event(*core.resumed_event, self)
                # a run that was killed may have left the end of an epoch
                while not is_over and (
                    core.stage != "steps" or core.progress.is_unrecorded or not core.run.is_done()
                ):
                    is_over = self._run_epoch()
            except StopTrainingError as error:
                # first, for states that are saved from here on
                core.run.stop(str(error) or type(error).__name__)
                self._stop(error)
        self._run_stage("training_run_end")

    def _stop(self, error: StopTrainingError) -> None:
        self._core.drop_steps()
        self.print(error)
        self.callback_handler.call_event("on_stop_training_error", self)

    def _run_epoch(self) -> bool:
        """An epoch with its evaluation, or what a resumed run has left of it; True when it was the
        last."""
        core = self._core
        is_last = False
        if core.stage == "steps":
            is_last = bool(self._run_train_epoch(self._train_dataloader))
            core.end_train_epoch()
        if core.stage == "eval" and self.eval_dataset is not None:
            self._run_eval_epoch(self._eval_dataloader)
        if core.stage != "over":
            core.stage = "over"
            self._run_stage("training_run_epoch_end")
        core.end_epoch()
        core.leave_if_interrupted()
        return is_last

    def _run_train_epoch(self, train_dl: Any) -> bool | None:
        """Run a training epoch and record `train_loss_epoch`. Returns whether `max_num_train_steps`
        is reached."""
        core = self._core
        train_dl = core.passed(train_dl, is_training=True)
        if core.begin_epoch():
            self._loss_tracker.reset()
            self._run_stage("train_epoch_start")
        for step, batch in enumerate(train_dl, start=core.progress.epoch_step):
            self.callback_handler.call_event("on_train_step_start", self)
            self._perform_forward_and_backward_passes(batch, step)
            if core.run.window.is_last:
                self._update_weights()
        self.run_history.update_metric("train_loss_epoch", core.mean_loss())
        self._run_stage("train_epoch_end")
        limit = core.run.call.limits.updates
        return limit is not None and core.progress.update >= limit

    def _perform_forward_and_backward_passes(self, batch: Any, step: int) -> None:
        """Compute the loss of a batch, call `on_train_step_end`, then `backward_step` with the
        divided loss."""
        core = self._core
        run = core.run
        calculate = self.calculate_train_batch_loss
        output = calculate(batch) if run.progress.step else check_clipping(run, calculate, batch)
        loss = loss_in(output, "calculate_train_batch_loss")
        self.callback_handler.call_event(
            "on_train_step_end", self, batch=batch, batch_output=output, step=step
        )
        loss = output["loss"]  # a callback may have put another one in
        if core.step is not None:
            core.step.result = StepResult(loss, output.get("batch_size", run.window.size))
        self._loss_tracker.is_reported = True
        # divided here and not in the update's `backward`, since `backward_step` gets it divided
        window = run.window
        if core.step is None:
            window = Window(divisor=float(self.run_config.gradient_accumulation_steps))
        share = window.share_of(loss)
        config = self.run_config
        is_token_mean = "num_items_in_batch" in output  # a part of all processes' mean
        if is_token_mean and config.is_distributed and config.gradient_accumulation_steps > 1:
            share = share * config.num_processes  # of which an average is taken
        if core.step is None or not self._overrides("backward_step"):
            self.backward_step(share)
            return
        with core.gradients.own_backward(loss):
            self.backward_step(share)

    def _update_weights(self) -> None:
        """The end of a window of batches: one update of the weights."""
        core = self._core
        gradients = core.gradients
        if gradients.is_taken:
            gradients.drop()  # so that a second step changes nothing
        else:
            gradients.complete()
            if self.run_config.gradient_clip_value is not None:
                self._clip_gradients()
        self.optimizer_step()
        # a `backward_step` or `optimizer_step` of the user's may have stepped the scheduler
        is_scheduled = scheduler_position(self.scheduler) != core.scheduler_position
        if not gradients.was_skipped and (not is_scheduled or self._overrides("scheduler_step")):
            self.scheduler_step()
        self.optimizer_zero_grad()

    def _clip_gradients(self) -> None:
        """Clip the complete gradients, once before each step; only called in runs with a
        `gradient_clip_value`."""
        self._core.gradients.clip()

    # Internal: an evaluation

    def _run_evaluation(self) -> None:
        """Run the start of an evaluation run, one epoch, and its end."""
        self._run_stage("evaluation_run_start")
        try:
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
        except StopTrainingError as error:
            self._stop(error)
        self._run_stage("evaluation_run_end")

    def _run_eval_epoch(
        self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False
    ) -> None:
        """Run an evaluation epoch; afterwards modes and random generators are what they were
        before."""
        metric = "eval_loss_epoch" if is_training else "evaluation_loss"
        if is_intermediate or (is_training and self._core.step is not None):
            metric = INTERMEDIATE
        self._core.run_evaluation(valid_dl, metric)

    # Losses, for epochs of the user's own

    def _update_loss_tracker(self, batch_loss: Tensor, batch_size: int) -> None:
        """Add the loss of a batch to the mean of the epoch, in an epoch of your own."""
        if not self._core.gathering.is_stand_in:
            self._loss_tracker.update(batch_loss.detach().mean().item(), batch_size)

    def _add_epoch_loss_to_run_history(self, metric_name: str) -> None:
        """Record the mean loss of the epoch over all processes, in an epoch of your own."""
        tracker = self._loss_tracker
        if tracker.is_reported:
            self.run_history.update_metric(metric_name, self._core.mean_loss())
            return
        total, count = self._runtime.sum_table(
            {"loss": (tracker.total_loss, tracker.running_count)}
        )["loss"]
        self.run_history.update_metric(metric_name, total / count if count else nan)


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
