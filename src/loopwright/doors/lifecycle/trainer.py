"""The trainer of document 002: hand over data sets, override the stages that differ, listen with callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...components import check_accumulation, check_clipping
from ...errors import ConfigurationError
from ...progress import Limits
from ...runtime import resolve_runtime
from . import run_config, saving
from .building import planned_updates, smaller_limit
from .callbacks import (
    CallbackHandler,
    LimitBatchesCallback,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    TrainerCallback,
)
from .core import Core
from .run_config import TrainerRunConfig
from .stages import DlKwargs, Stages
from .tracking import InMemoryRunHistory, RunHistory

DEFAULT_CALLBACKS: tuple[type[TrainerCallback], ...] = (
    MoveModulesToDeviceCallback,
    TerminateOnNaNCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    LogMetricsCallback,
)


class Trainer(Stages):
    """Trains and evaluates a model on data sets. Every stage is a method: override those that differ."""

    def __init__(
        self,
        model: nn.Module,
        loss_func: Callable[..., Tensor] | None,
        optimizer: Optimizer | None,
        callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = DEFAULT_CALLBACKS,
        run_history: RunHistory | None = None,
    ) -> None:
        self.model, self.loss_func, self.optimizer, self.scheduler = model, loss_func, optimizer, None
        self.run_history = InMemoryRunHistory() if run_history is None else run_history
        self.run_config = TrainerRunConfig()
        self.train_dataset = self.eval_dataset = self.collate_fn = self.create_scheduler_fn = None
        self._train_dataloader: Any = None
        self._eval_dataloader: Any = None
        self._train_dl_kwargs, self._eval_dl_kwargs = {}, {}
        self._runtime = resolve_runtime(None, "fp32")
        self._core = Core(self, self._runtime)
        self._is_training = False
        self.callback_handler = CallbackHandler(callbacks)
        if LimitBatchesCallback.ENVIRONMENT in os.environ:
            self.callback_handler.add_callback(LimitBatchesCallback.from_environment())
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

        `create_scheduler_fn` takes the optimizer and returns a scheduler, which is stepped after every update; it may
        be a `functools.partial` with `TrainerPlaceholderValues` in it. `gradient_clip_value` limits each gradient's
        absolute value. `resume_from` is a directory that `save_training_state` wrote: the run goes on from there, and
        the limits count from where it began.
        """
        self._start_core(gradient_accumulation_steps, gradient_clip_value)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.create_scheduler_fn, self.collate_fn = create_scheduler_fn, collate_fn
        if reset_run_history:
            self.run_history.reset()
        try:
            self._create_dataloaders(per_device_batch_size, train_dataloader_kwargs, eval_dataloader_kwargs)
            self._prepare_model_and_optimizer()
            self._prepare_dataloaders()
            self.run_config = self._create_run_config(
                per_device_batch_size, num_epochs, gradient_accumulation_steps, max_num_train_steps, gradient_clip_value
            )
            self.scheduler = self.create_scheduler()
            self._core.use_scheduler(self.scheduler)
            with self._runtime.supervised():
                self._execute_run(Limits(num_epochs, max_num_train_steps), resume_from)
        finally:
            self._is_training = False
            self._core.close_streams()

    def evaluate(
        self,
        dataset: Any = None,
        per_device_batch_size: int = 8,
        dataloader_kwargs: DlKwargs = None,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        """Run one evaluation epoch, on the data set given or on that of the last training run.

        The loss is recorded in the run history as `evaluation_loss`.
        """
        if dataset is None and self.eval_dataset is None:
            raise ConfigurationError("evaluate() has no data: pass `dataset=`, or train with `eval_dataset=` before.")
        before = (self._core, self.eval_dataset, self._eval_dataloader, self._eval_dl_kwargs, self.collate_fn)
        self.eval_dataset = self.eval_dataset if dataset is None else dataset
        self.collate_fn = collate_fn or self.collate_fn
        if not self._is_training:
            self._core = Core(self, self._runtime)
        try:
            self._core.setup()
            self._eval_dataloader = self.create_eval_dataloader(per_device_batch_size, dataloader_kwargs)
            self.evaluation_run_start()
            self.callback_handler.call_event("on_evaluation_run_start", self)
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
            self.evaluation_run_end()
            self.callback_handler.call_event("on_evaluation_run_end", self)
        finally:
            self._core.close_stream(self._eval_dataloader)
            self._core, self.eval_dataset, self._eval_dataloader, self._eval_dl_kwargs, self.collate_fn = before

    # Internal: setting up

    def _start_core(self, accumulation_steps: int, clip_value: float | None) -> None:
        """Begin a run of its own, so that nothing of an earlier one takes part in it."""
        if self._is_training:
            raise ConfigurationError("train() was called while this trainer is training: call it when that has ended.")
        check_accumulation(accumulation_steps, "gradient_accumulation_steps")
        check_clipping("gradient_clip_value", clip_value)
        earlier = self._core.progress
        self._core = Core(self, self._runtime, accumulate=accumulation_steps, clip_value=clip_value)
        self._core.progress.epoch = earlier.epoch + earlier.in_epoch  # the order of samples goes on changing
        self._core.progress.next_call()
        self._is_training = True

    def _create_dataloaders(self, batch_size: int, train_kwargs: DlKwargs, eval_kwargs: DlKwargs) -> None:
        self._train_dataloader = self.create_train_dataloader(batch_size, train_kwargs)
        self._eval_dataloader, self._eval_dl_kwargs = None, {}
        if self.eval_dataset is not None:
            self._eval_dataloader = self.create_eval_dataloader(batch_size, eval_kwargs)

    def _prepare_model_and_optimizer(self) -> None:
        """Put the model on the device and get ready to update it."""
        self._core.setup_training()
        self._core.optimization.reset()
        guards = [c for c in self.callback_handler.callbacks if isinstance(c, TerminateOnNaNCallback)]
        self._core.use_guard(guards[0] if guards else None)

    def _prepare_dataloaders(self) -> None:
        """Take the loaders over: from here on the order of samples is a function of seed and epoch."""
        self._core.train_stream = self._core.stream(self._train_dataloader, is_training=True)
        if self._eval_dataloader is not None:
            self._core.eval_stream = self._core.stream(self._eval_dataloader, is_training=False)

    def _create_run_config(
        self,
        per_device_batch_size: int,
        num_epochs: int,
        gradient_accumulation_steps: int = 1,
        max_num_train_steps: int | None = None,
        gradient_clip_value: float | None = None,
    ) -> TrainerRunConfig:
        """What this run was asked to do, worked out."""
        updates = planned_updates(self._core.epoch_length(), gradient_accumulation_steps)
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
            max_num_train_steps=max_num_train_steps,
            is_local_process_zero=run_config.is_local_process_zero(),
            is_world_process_zero=run_config.is_world_process_zero(),
            is_distributed=run_config.is_distributed(),
            num_processes=num_processes,
        )

    # Internal: running

    def _execute_run(self, limits: Limits, resume_from: str | Path | None) -> None:
        state = None if resume_from is None else saving.load_run(self, resume_from)
        self._core.until = limits.from_call(self._core.progress)
        self.training_run_start()
        self.callback_handler.call_event("on_training_run_start", self)
        if state is not None:
            saving.load_callbacks(self, state)
        with self._core.together():
            self._run_training()
        self.training_run_end()
        self.callback_handler.call_event("on_training_run_end", self)

    def _run_training(self) -> None:
        """Epochs until a limit is reached or somebody stops the run."""
        core = self._core
        try:
            if core.resumed_event is not None:
                event, heard_by = core.resumed_event
                self.callback_handler.finish_event(event, heard_by, self)
            while core.has_work:
                self._run_epoch()
        except StopTrainingError as error:
            self.print(error)
            self.callback_handler.call_event("on_stop_training_error", self)

    def _run_epoch(self) -> None:
        """An epoch with its evaluation, or what a resumed run has left of it."""
        core = self._core
        if core.stage == "steps":
            self._run_train_epoch(self._train_dataloader)
        if core.stage == "eval" and self._eval_dataloader is not None:
            self._run_eval_epoch(self._eval_dataloader)
        if core.stage != "over":
            core.stage = "over"
            self.training_run_epoch_end()
            self.callback_handler.call_event("on_training_run_epoch_end", self)
        core.end_epoch()
        core.leave_if_interrupted()

    def _run_train_epoch(self, train_dl: Any) -> None:
        """A training epoch; the mean loss of a sample is recorded as `train_loss_epoch`."""
        if self._core.begin_epoch(train_dl):
            self.train_epoch_start()
            self.callback_handler.call_event("on_train_epoch_start", self)
        loss = self._core.run_steps()
        self.run_history.update_metric("train_loss_epoch", loss)
        self.train_epoch_end()
        self.callback_handler.call_event("on_train_epoch_end", self)

    def _clip_gradients(self) -> None:
        """Limit the gradients of a whole update, once before its step."""
        self._core.lane.clip()

    def _run_eval_epoch(self, eval_dl: Any, is_training: bool = True) -> None:
        """An evaluation epoch; modes and random generators are afterwards what they were before."""
        name = "eval_loss_epoch" if is_training else "evaluation_loss"
        self._core.run_evaluation(eval_dl, "intermediate_eval_loss" if self._core.is_intermediate else name)

    # Files

    def save_checkpoint(
        self,
        save_path: str | Path,
        checkpoint_kwargs: Mapping[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write the model, and optimizer and scheduler if asked, to a checkpoint directory.

        `checkpoint_kwargs` are kept beside them and come back from `load_checkpoint`.
        """
        if run_config.is_local_process_zero() if save_per_node else run_config.is_world_process_zero():
            saving.write_checkpoint_of(self, save_path, checkpoint_kwargs, save_optimizer, save_scheduler)

    def load_checkpoint(
        self, checkpoint_path: str | Path, load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Take the state from a checkpoint and return all it holds.

        A scheduler exists only from the start of a run on; where there is none yet, its state is only returned.
        """
        return saving.load_checkpoint_into(self, checkpoint_path, load_optimizer, load_scheduler)

    def save_training_state(self, save_dir: str | Path, checkpoint_kwargs: Mapping[str, Any] | None = None) -> None:
        """Write everything that `train(resume_from=save_dir)` needs to go on exactly here.

        Called inside a training step, it waits until the update is through.
        """
        self._core.after_update(lambda: saving.save_run(self, save_dir, checkpoint_kwargs))

    def load_training_state(self, load_dir: str | Path) -> dict[str, Any]:
        """Take over model, optimizer, history and callbacks from a training state; its `checkpoint_kwargs` come back.

        To go on with the run itself, pass the directory to `train(resume_from=...)` instead.
        """
        return saving.load_state_into(self, load_dir)

    # Helpers

    def gather(self, tensor: Tensor, padding_value: float | None = None) -> Tensor:
        """The values of all processes, one after another; shorter ones filled up with `padding_value`, if given."""
        return run_config.gather(tensor, padding_value)

    def get_model(self) -> nn.Module:
        """The model itself, without what was wrapped around it to compile it or to train it on several devices."""
        model = self.model
        while True:
            compiled = model._modules.get("_orig_mod")  # where torch.compile keeps the model
            inner = model.module if isinstance(model, DistributedDataParallel) else compiled
            if inner is None:
                return model
            model = inner

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or whoever assigned to this object, has a method of their own."""
        return getattr(getattr(self, name), "__func__", None) is not getattr(Trainer, name)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once per machine, however many processes it runs."""
        if run_config.is_local_process_zero():
            print(*args, **kwargs)
