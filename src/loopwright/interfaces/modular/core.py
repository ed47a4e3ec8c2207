"""The core trainer behind the modular interface: it finds components on the user's trainer and asks
its methods for every step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..._torch_compat.compiling import uncompiled
from ...callback import Callback as CoreCallback
from ...callback import Dispatch, FunctionCallback, Hook
from ...callbacks.best import BestModel
from ...callbacks.checkpoints import Checkpoints
from ...checkpoint.manifest import check_inside
from ...data.containers import map_tensors
from ...data.open import Stream
from ...errors import ConfigurationError, check_number
from ...metrics.progress import Limits, Progress
from ...metrics.result import StepResult
from ...optim.build import Schedule, build_schedule
from ...runtime.base import is_meta
from ...training.components import (
    check_clipping,
    found_on,
    is_trained,
    swap_parameters,
)
from ...training.program import Display, MessageNames
from ...training.step_checks import refuse_update
from .._shared import InterfaceCore, InterfaceNames
from .callback import Callback, Hooks, States, sort_callbacks
from .config import DreamTrainerConfig, build_runtime, without_callbacks
from .gradients import ModularGradients
from .loops import Loader, TrainingOver, UserLoop, Validation, measured_in

if TYPE_CHECKING:
    from .trainer import DreamTrainer

NAMES = InterfaceNames(
    interface="modular",
    messages=MessageNames(
        step="training_step",
        eval_step="validation_step",
        update="self.backward(loss)",
        accumulate="gradient_accumulation_steps",
        clip="call `self.clip_gradients(optimizer, max_norm)` after `self.backward(loss)`, or "
        "set `gradient_clip_val`",
        takes_count=False,
        record_media="Set `run_dir` in the config.",
        nonfinite="Lower the learning rate, clip gradients (`gradient_clip_val`) or look for bad "
        "samples.",
    ),
    step_methods=("training_step", "training_loop"),
    methods={
        "configure_models": (),
        "init_weights": (),
        "configure_optimizers": (),
        "configure_schedulers": (),
        "configure_metrics": (),
        "configure_dataloaders": (),
        "training_step": ("batch", "batch_idx"),
        "validation_step": ("batch", "batch_idx"),
        "training_loop": (),
        "validation_loop": (),
        "should_validate": (),
        "compute_metrics": ("outputs", "targets"),
        "save_checkpoint": ("path",),
        "load_checkpoint": ("path",),
    },
    methods_elsewhere={
        "train_dataloader": "configure_dataloaders",
        "val_dataloader": "configure_dataloaders",
        "validation_epoch_end": "on_validation_end",
    },
    events={
        "on_train_start": ("on_train_start",),
        "on_epoch_start": ("on_epoch_start", "on_train_epoch_start"),
        "on_optimizer_start": ("on_optimizer_step_start",),
        "on_update_end": ("on_update_end",),
        "on_train_epoch_end": ("on_train_epoch_end",),
        "on_epoch_end": ("on_epoch_end",),
        "on_loop_end": ("on_train_end",),
        "on_exception": ("on_exception",),
    },
    events_elsewhere={
        f"{when}_{phase}": f"on_{here}_{edge}"
        for phase, here in {
            "epoch": "epoch",
            "fit": "fit",
            "optimizer_step": "optimizer_step",
            "train_epoch": "train_epoch",
            "train_step": "train_batch",
            "validation_epoch": "validation",
            "validation_step": "validation_batch",
        }.items()
        for when, edge in (("pre", "start"), ("post", "end"))
    }
    | {
        f"{when}_{phase}": "there is no such event here"
        for phase in ("configure", "configure_models", "launch", "optimizer_zero_grad", "setup")
        for when in ("pre", "post")
    },
)


class RunLimits(Limits):
    """Limits that count from the beginning of the run and not of a call."""

    __slots__ = ()

    def from_call(self, progress: Progress) -> Limits:
        return self


class ModularCore(InterfaceCore):
    """Maps the core's names onto the interface's."""

    names = NAMES
    interface: DreamTrainer

    def __init__(self, interface: DreamTrainer, config: DreamTrainerConfig) -> None:
        check_clipping("gradient_clip_val", config.gradient_clip_val)
        check_number(
            "gradient_accumulation_steps",
            config.gradient_accumulation_steps,
            least=1,
            of="batches per update",
        )
        own, core = sort_callbacks(config.callbacks, NAMES)
        self.interface = interface
        self.overrides = interface._overrides
        self.events = Dispatch(Callback, interface, own, base=Hooks)
        states = States(own, self.events, NAMES.events)
        self.rounds = Rounds()
        super().__init__(
            callbacks=[states, *core, *default_callbacks(config, core), self.rounds],
            accumulate=config.gradient_accumulation_steps,
            clip_norm=config.gradient_clip_val,
            runtime=build_runtime(config),
            seed=config.seed,
            run_dir=config.run_dir,
            progress=cast("Display", config.progress),
        )
        states.held = self.run.files.callback_schedulers
        self.config = config
        self._plateau_metric = config.monitor
        self.loaders: tuple[Any, Any] = (None, None)
        self.gradients = ModularGradients(self)
        self.user_loop: UserLoop | None = None
        self.outputs: Any = None  # of the step just over, as callbacks get it
        self.validation = Validation(self)
        # of `backward` and steps, when an epoch began that is seen whole
        self.calls_before: int | None = None
        self.waiting: list[Callable[[], None]] = []  # what an update under way must not see
        self._logged: dict[str, Any] | None = None  # of the step under way
        self._num_evaluated = 0  # batches of the validation under way
        self._is_in_step = False  # whether a call of `training_step` is under way
        self._returned: Any = None  # by the last call, which a loop of the user's may still train
        self._wrapped: dict[int, nn.Parameter] = {}
        self._broadcasts_requests = False

    # Components

    def configure_models(self) -> None:
        interface = self.interface
        check_assigned(interface, "configure_models")
        check_assigned(interface, "configure_metrics")
        for name, module in modules_of(interface).items():
            raw = raw_module(module)
            self._initialise(raw)
            if module is not raw:
                self.wrap(module)  # here, where it is known not to need compiling
            self.models[name] = raw
        with torch.no_grad():
            interface.init_weights()
        given = as_loaders(interface.configure_dataloaders())
        assigned = self.loaders
        self.loaders = (
            assigned[0] if given[0] is None else given[0],
            assigned[1] if given[1] is None else given[1],
        )

    def _initialise(self, module: nn.Module) -> None:
        """Give a model on the meta device memory, and values by its `init_weights`, unless the
        trainer's follows."""
        init = getattr(module, "init_weights", None)
        if (init is not None or self.overrides("init_weights")) and is_meta(module):
            from ...runtime.fsdp import allocate  # with packages of torch that few models need

            allocate(module, self.runtime.device)
            if init is not None:
                init()

    def configure_optimizers(self) -> None:
        interface = self.interface
        kinds = (LRScheduler, Schedule)
        check_assigned(interface, "configure_optimizers")
        check_assigned(interface, "configure_schedulers")
        self._components.optimizers = found_on(interface, Optimizer, {})
        if not self.optimizers:
            raise ConfigurationError(
                "unseen-optimizer",
                "configure_optimizers made no optimizer that the trainer can see: assign it to "
                "self (`self.optimizer = ...`).",
            )
        for optimizer in self.optimizers.values():
            swap_parameters(optimizer, self._wrapped)
        for name, given in found_on(interface, kinds, {}).items():
            schedule = build_schedule(given, self._components.only_optimizer)
            if schedule.watches:
                schedule = replace(schedule, metric=schedule.metric or self.config.monitor)
            elif schedule.every is None:
                schedule = replace(schedule, every=self.config.scheduler_interval)
            self.schedules[name] = schedule

    def wrap(self, module: nn.Module) -> nn.Module:
        """Place a module and prepare it as the config says, now; later that is not done again."""
        raw = raw_module(module)
        compiles = self.runtime.compile
        self.runtime.place(raw)
        if is_trained(raw):
            self.runtime.compile = None if raw is not module else compiles
            self._wrapped |= self.runtime.wrap(raw)
            self.runtime.compile = compiles
        return module

    def _setup_training(self) -> None:
        super()._setup_training()
        self.gradients.begin_run()

    # Data

    @property
    def train_loader(self) -> Loader | None:
        given = self.loaders[0]
        return None if given is None else Loader(given, self._train_batches, self._train_length)

    @property
    def val_loader(self) -> Loader | None:
        given = self.loaders[1]
        validation = self.validation
        if given is None:
            return None
        return Loader(given, validation.batches, lambda: validation.stream.num_batches)

    def _train_length(self) -> int | None:
        if self.run.data.train_stream is not None:
            return self.run.data.train_stream.num_batches
        stream = self._open(self.loaders[0], None, shuffle=True)
        stream.close()
        return stream.num_batches

    def _train_batches(self) -> Iterator[Any]:
        if self.user_loop is not None:
            return self.user_loop.begin_epoch()
        return (self.prepare_batch(batch) for batch in self.loaders[0])

    # A run

    def _train_epoch(self) -> None:
        """All epochs, in the interface's own loop or one of the user's."""
        self.user_loop = UserLoop(self)
        try:
            with self.gradients.watching():
                self.user_loop.run()
        except TrainingOver:
            pass
        finally:
            self.user_loop = None
        if not self.run.is_done():
            self.stop("training_loop has ended")

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs, unless the user's loop has; ReduceLROnPlateau
        watches the validation."""
        updates = self.run.updates.by_name.values()
        schedulers = self.gradients.own_steps.schedulers
        loss = row.get("val_loss", row.get("val/loss"))
        schedulers.note_between(updates)
        super()._schedule_epoch(row if loss is None else {**row, "eval_loss": loss})
        schedulers.begin_epoch(updates)

    # A step

    def _watch_steps(self) -> None:
        """Nothing: `gradients` looks at `backward`, `step` and what else steps an optimizer."""

    def train_step(self, batch: Any) -> StepResult:
        self.open_step()
        self.interface.training_step(batch, self.run.progress.epoch_step)
        return self.close_step(self.run.window.size, is_returned=True)

    def backward(self, loss: Any, optimizer: Optimizer | str | None, *, retain_graph: bool) -> None:
        """The backward pass of a loss that the program gives to `backward`."""
        if self.run.metrics.is_evaluating:
            refuse_update(self, loss)
        if self._logged is None and not self._is_in_step:
            raise ConfigurationError(
                "backward-outside-batch",
                "`backward(loss)` was called outside of a batch, so no step would follow: call it "
                "in `training_step`, or in a `training_loop` that iterates `self.train_loader`.",
            )
        self.gradients.note_backward()
        self.train_loss(loss, optimizer, retain_graph=retain_graph)

    def train_loss(
        self, loss: Any, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """The backward pass of a loss; a mistake in it is named."""
        try:
            self.gradients.backward(loss, optimizer, retain_graph=retain_graph)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            refuse_update(self, loss)
            raise

    def take_step(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A call of the user's `training_step`, by whichever loop; its gradients are dealt with
        when it is over."""
        if not self.run.updates.by_name:
            self._setup_training()
        is_alone = self._logged is None  # called by neither loop
        if is_alone:
            self.gradients.begin_step()
        self._is_in_step = True
        try:
            with self.gradients.watching(), self.runtime.autocast:
                returned = call(*args, **options)
        finally:
            self._is_in_step = False
        if self.user_loop is None:
            self.gradients.train_returned(returned)
        if self.user_loop is None or self.gradients.is_used:
            self.gradients.end_step()
        else:
            self._returned = returned  # the loop may train it yet
        if is_alone:
            self.gradients.own_steps.end_step()
        self.outputs = map_tensors(Tensor.detach, returned)
        return returned

    def end_batch(self) -> None:
        """A loop of the user's own is done with a batch."""
        returned = self._returned
        self._returned = None
        self.gradients.train_returned(returned)
        self.gradients.end_step()

    def open_step(self) -> None:
        self._logged = {}
        self.outputs = None
        if not self.run.metrics.is_evaluating:
            self.gradients.begin_step()

    def close_step(self, size: int, *, is_returned: bool = False) -> StepResult:
        """What a step has measured: what was logged in it, and what it returned if the user's loop
        logs nothing."""
        logged = self._logged or {}
        self._logged = None
        if not self.run.metrics.is_evaluating:
            self.gradients.own_steps.end_step()
        returned = measured_in(self.interface, self.outputs) if is_returned or not logged else None
        if returned is None or isinstance(returned, Mapping):
            return StepResult.of({**logged, **(returned or {})}, size)
        result = StepResult.of(returned, size)
        return replace(result, metrics={**logged, **result.metrics})

    def eval_step(self, batch: Any) -> StepResult:
        index = self._num_evaluated
        self._num_evaluated += 1
        self.events.emit("on_validation_batch_start", batch, index)
        self.open_step()
        self.interface.validation_step(batch, index)
        result = self.close_step(self.run.window.size, is_returned=True)
        self.events.emit("on_validation_batch_end", self.outputs, batch, index)
        return result

    def measure(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A call of the user's `validation_step`, by whichever loop."""
        with self.runtime.autocast:
            returned = call(*args, **options)
        self.outputs = map_tensors(Tensor.detach, returned)
        return returned

    def log_metrics(self, values: Mapping[str, Any] | None) -> None:
        """Add to the step under way or just over, the validation, or the epoch, whichever is the
        smallest."""
        measured = measured_in(self.interface, values)
        metrics = self.run.metrics
        size = self.run.window.size
        if not measured:
            return
        if self._logged is not None:
            self._logged.update(measured)
        elif metrics.phases:
            if size:
                metrics.phases[-1].add(StepResult.of(measured, size))
        elif metrics.meter.num_pending:
            self.log_step(measured)
        else:
            self.log(measured)

    @contextmanager
    def step_set_aside(self) -> Iterator[None]:
        """Set the step under way aside for a validation inside of it, and go on with it
        afterwards."""
        before = self._logged, self.outputs
        self._logged = None
        try:
            yield
        finally:
            self._logged, self.outputs = before

    @property
    def _defers_signals(self) -> bool:
        return self.validation.defers_signals

    # Files

    def save_soon(self, path: str | Path) -> None:
        """Write everything, as soon as the update under way is whole."""
        if self._broadcasts_requests:
            self.runtime.broadcast_object(Path(path))
        save = partial(self.save, self._without_rank(path))
        if self.run.window.stage:
            self.waiting.append(save)
        else:
            save()

    def save_by(
        self, write: Callable[..., Any], path: str | Path, *args: Any, **options: Any
    ) -> Any:
        """A call of `save_checkpoint`, the user's or ours, so that no two processes write one file.

        With replicated models only the first rank runs it. If it calls
        `super().save_checkpoint(path)`, which writes a full checkpoint and needs all ranks, it
        broadcasts the path; the other ranks wait for such requests. Of a sharded model every rank
        has a part, so each rank runs it, with a path of its own.
        """
        self.setup()
        runtime = self.runtime
        is_main_only = runtime.world > 1 and not runtime.forwards_together
        returned = None
        self.events.emit("on_save_start", path)
        with without_callbacks():
            if not is_main_only:
                own = path if runtime.world == 1 else self._with_rank(path)
                returned = write(own, *args, **options)
            elif runtime.is_main:
                self._broadcasts_requests = True
                try:
                    returned = write(path, *args, **options)
                finally:
                    self._broadcasts_requests = False
                    runtime.broadcast_object(None)
            else:
                while (requested := runtime.broadcast_object(None)) is not None:
                    self.save_soon(requested)
        runtime.barrier("save_checkpoint")
        self.events.emit("on_save_end", path)
        return returned

    def load_by(
        self, read: Callable[..., Any], path: str | Path, *args: Any, **options: Any
    ) -> Any:
        """A call of `load_checkpoint`, the user's or ours."""
        self.setup()
        self.events.emit("on_load_start", path)
        is_divided = self.runtime.forwards_together and not self._without_rank(path).is_dir()
        returned = read(self._with_rank(path) if is_divided else path, *args, **options)
        self.runtime.barrier("load_checkpoint")
        self.events.emit("on_load_end", path)
        return returned

    def _with_rank(self, path: str | Path) -> Path:
        return Path(f"{path}.rank{self.runtime.rank}")

    def _without_rank(self, path: str | Path) -> Path:
        return Path(str(path).removesuffix(f".rank{self.runtime.rank}"))

    def _trainer_given_to(self, callback: CoreCallback) -> Any:
        return self.interface if isinstance(callback, FunctionCallback) else self

    # Events of the core; `States` calls the interface's after these

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        for hooks in self.events.hooks.values():
            hooks[:] = map(function, hooks)

    def on_train_start(self) -> None:
        self.gradients.reset()
        self._logged = None
        self.calls_before = None

    def on_epoch_start(self) -> None:
        self.calls_before = self.run.updates.calls

    def on_eval_start(self, data: Stream) -> None:
        self._num_evaluated = 0
        self.events.emit("on_validation_start")


# Components on a trainer


def check_assigned(owner: object, method: str) -> None:
    """Call a `configure_*`, and refuse what it returns but did not assign: nothing would use it."""
    returned = getattr(owner, method)()
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    parts = returned if isinstance(returned, (list, tuple)) else [returned]
    held = {id(value) for value in vars(owner).values()}
    for part in parts:
        if part is not None and id(part) not in held:
            raise ConfigurationError(
                "unassigned-component",
                f"{method} returned a {type(part).__name__} that it did not assign: write "
                "`self.name = ...` for each model, optimizer or scheduler, and return nothing.",
            )


def modules_of(owner: object) -> dict[str, nn.Module]:
    """The modules assigned to a trainer, each once and under its first name."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, value in vars(owner).items():
        if isinstance(value, nn.parallel.DistributedDataParallel):
            raise ConfigurationError(
                "wrapped-in-ddp",
                f"self.{name} is a DistributedDataParallel: assign the module itself, or the "
                "result of self.wrap_model; the trainer averages gradients over processes "
                "according to its config.",
            )
        if isinstance(value, nn.Module) and id(raw_module(value)) not in seen:
            seen.add(id(raw_module(value)))
            found[name] = value
    return found


def raw_module(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, so that names in state dicts stay as they are."""
    return uncompiled(module) or module


def as_loaders(returned: Any) -> tuple[Any, Any]:
    """(training, validation) from what `configure_dataloaders` returned."""
    pair = returned if isinstance(returned, (tuple, list)) else (returned, None)
    if isinstance(returned, Mapping) or len(pair) != 2:
        raise ConfigurationError(
            "unclear-loaders",
            f"configure_dataloaders returned a {type(returned).__name__} of {len(returned)} "
            "parts: return (train_loader, val_loader), or one loader.",
        )
    return pair[0], pair[1]


# Callbacks that every run has


def default_callbacks(config: DreamTrainerConfig, given: list[CoreCallback]) -> list[CoreCallback]:
    """What a run directory is filled with, as the config says, unless the user brought such
    callbacks."""
    if config.run_dir is None:
        return []
    best = BestModel(
        config.monitor or "val_loss", config.monitor_mode, required=config.monitor is not None
    )
    best.watched.argument = "monitor_mode"
    new = [best, Checkpoints(config.checkpoint_every_n_steps)]
    return [one for one in new if not any(isinstance(other, type(one)) for other in given)]


SAVED = re.compile(r"epoch_\d+")


class Rounds(CoreCallback):
    """Validations, the checkpoints requested inside an update, and the checkpoints of `save_dir`.

    Checkpoints hold its state under the class name, so that the name is part of their format.
    """

    def __init__(self) -> None:
        self.validated_at = 0  # the update of the last validation

    def on_train_start(self, trainer: Any) -> None:
        if trainer.config.save_dir is not None:
            names = None if trainer.overrides("save_checkpoint") else SAVED
            check_inside(trainer.config.save_dir, names, "save_dir")

    def on_update_end(self, trainer: Any) -> None:
        core: ModularCore = trainer
        every = core.config.val_every_n_steps
        if every is not None and core.progress.update % every == 0 and self._is_time(core):
            with core.validation.deferring_signals():
                core.interface.validation_loop()
        waiting = core.waiting
        core.waiting = []
        for action in waiting:
            action()

    def on_train_epoch_end(self, trainer: Any) -> None:
        core: ModularCore = trainer
        if core.run.updates.calls == core.calls_before:
            raise ConfigurationError(
                "modular-trained-nothing",
                f"Nothing was trained: in epoch {core.progress.epoch + 1} your code stepped none "
                f"of the optimizers ({', '.join(core.optimizers)}). Call `self.backward(loss)` in "
                "`training_step`, or step an optimizer after `loss.backward()`, or return the "
                "loss itself, neither detached nor as a plain number.",
            )
        if core.config.val_every_n_steps is None and self._is_time(core):
            core.interface.validation_loop()

    def on_epoch_end(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        config: DreamTrainerConfig = trainer.config
        epoch = trainer.progress.epoch
        if config.save_dir is not None and epoch % config.save_every_n_epochs == 0:
            folder = Path(config.save_dir)
            folder.mkdir(parents=True, exist_ok=True)
            trainer.interface.save_checkpoint(folder / f"epoch_{epoch}")

    def _is_time(self, core: ModularCore) -> bool:
        """Whether to validate now; a training loop of the user's own says itself when."""
        return not core.overrides("training_loop") and core.interface.should_validate()

    def state_dict(self) -> dict[str, Any]:
        return {"validated_at": self.validated_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.validated_at = state["validated_at"]
