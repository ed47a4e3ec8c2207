"""The core trainer behind the modular interface: it finds components on the interface and asks its
methods for every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn, no_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...callback import Dispatch, Hook
from ...data.open import Stream
from ...errors import CheckpointError, ConfigurationError
from ...metrics.history import History
from ...metrics.meter import ComputedMetric
from ...metrics.progress import Limits, Progress
from ...metrics.result import StepResult
from ...optim.build import Schedule, build_schedule
from ...training import steps as loop
from ...training.components import (
    check_accumulation,
    check_clipping,
    found_on,
    is_trained,
    swap_parameters,
)
from ...training.program import Display, Words
from ...training.train_call import run_training
from .._shared import InterfaceCore, InterfaceNames
from .callback import Callback, Hooks, States, sort_callbacks
from .components import (
    as_loaders,
    assign,
    check_models,
    check_owned,
    check_ready,
    initialise,
    modules_of,
    raw_module,
)
from .config import DreamTrainerConfig, build_runtime
from .gradients import Gradients
from .own_steps import EpochSchedulers
from .saving import OwnFiles, Rounds, default_callbacks
from .user_loop import Loader, TrainingOver, UserLoop
from .validation import Validation, check_returned, is_named, measured_in, without_graph

if TYPE_CHECKING:
    from .trainer import DreamTrainer


NAMES = InterfaceNames(
    interface="modular",
    messages=Words(
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
    events_elsewhere={
        **{
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
        },
        **{
            f"{when}_{phase}": "there is no such event here"
            for phase in ("configure", "configure_models", "launch", "optimizer_zero_grad", "setup")
            for when in ("pre", "post")
        },
    },
)


class RunLimits(Limits):
    """Limits that count from the beginning of the run and not of a call."""

    __slots__ = ()

    def from_call(self, progress: Progress) -> Limits:
        return self


class Engine(InterfaceCore):
    """Maps the core's names onto the interface's."""

    names = NAMES

    def __init__(self, interface: DreamTrainer, config: DreamTrainerConfig) -> None:
        check_clipping("gradient_clip_val", config.gradient_clip_val)
        check_accumulation(config.gradient_accumulation_steps, "gradient_accumulation_steps")
        own, core = sort_callbacks(config.callbacks, NAMES)
        states = States(own)
        super().__init__(
            callbacks=[states, *core, *default_callbacks(config, core), Rounds()],
            accumulate=config.gradient_accumulation_steps,
            clip_norm=config.gradient_clip_val,
            runtime=build_runtime(config),
            seed=config.seed,
            run_dir=config.run_dir,
            progress=cast("Display", config.progress),
        )
        states.held = self.run.held
        self.interface = interface
        self.config = config
        self._plateau_metric = config.monitor
        self.events = Dispatch(Callback, interface, own, base=Hooks)
        self.loaders: tuple[Any, Any] = (None, None)
        self.gradients = Gradients(self)
        self.files = OwnFiles(self)
        self.user_loop: UserLoop | None = None
        self.outputs: Any = None
        self.validation = Validation(self)
        self.is_in_window = False
        self.has_computed = False  # whether `compute_metrics` was called
        self.calls_before: int | None = (
            None  # of `backward` and steps, when an epoch began that is seen whole
        )
        self.waiting: list[Callable[[], None]] = []
        self._logged: dict[str, Any] | None = None  # of the step under way
        self._is_in_step = False  # whether a call of `training_step` is under way
        self._returned: Any = (
            None  # value of the last call, which a loop of the user's own may still train
        )
        self._wrapped: dict[int, nn.Parameter] = {}
        self.schedulers = EpochSchedulers(self)

    # Components

    def configure_models(self) -> None:
        interface = self.interface
        assign(interface, interface.configure_models(), nn.Module, "configure_models", "model")
        assign(
            interface,
            interface.configure_metrics(),
            (nn.Module, ComputedMetric),
            "configure_metrics",
            "metrics",
        )
        for name, module in modules_of(interface).items():
            initialise(
                raw_module(module), self.runtime.device, by_interface=self.overrides("init_weights")
            )
            if module is not raw_module(module):
                self.wrap(module)  # here, where it is known not to need compiling
            self.models[name] = raw_module(module)
        check_models(interface, self.models)
        with no_grad():
            interface.init_weights()
        train, val = as_loaders(interface.configure_dataloaders())
        self.loaders = (
            train if train is not None else self.loaders[0],
            val if val is not None else self.loaders[1],
        )

    def configure_optimizers(self) -> None:
        interface = self.interface
        kinds = (LRScheduler, Schedule)
        assign(
            interface,
            interface.configure_optimizers(),
            (Optimizer, *kinds),
            "configure_optimizers",
            "optimizer",
        )
        assign(
            interface, interface.configure_schedulers(), kinds, "configure_schedulers", "scheduler"
        )
        self._components.optimizers = found_on(interface, Optimizer, {})
        if not self.optimizers:
            raise ConfigurationError(
                "configure_optimizers made no optimizer that the trainer can see: assign it to "
                "self (`self.optimizer = ...`) or return it."
            )
        for optimizer in self.optimizers.values():
            swap_parameters(optimizer, self._wrapped)
        only = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else None
        for name, given in found_on(interface, kinds, {}).items():
            schedule = build_schedule(given, only)
            if schedule.every is None and not schedule.watches:
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
        self.setup()
        check_owned(self.interface, self.modules, self.optimizers)
        super()._setup_training()
        self.gradients.begin_run()

    # Data

    @property
    def train_loader(self) -> Loader | None:
        loader = self.loaders[0]
        return (
            None if loader is None else Loader(loader, self._train_batches, self._num_train_batches)
        )

    @property
    def val_loader(self) -> Loader | None:
        loader = self.loaders[1]
        val = self.validation
        return (
            None if loader is None else Loader(loader, val.batches, lambda: val.stream.num_batches)
        )

    def _num_train_batches(self) -> int | None:
        if self.run.train_stream is not None:
            return self.run.train_stream.num_batches
        stream = self._open(self.loaders[0], None, shuffle=True)
        stream.close()
        return stream.num_batches

    def _train_batches(self) -> Iterator[Any]:
        if self.user_loop is not None:
            return self.user_loop.begin_epoch()
        return (self.prepare_batch(batch) for batch in self.loaders[0])

    # A run

    def fit(self) -> History:
        with self.run.own_generators():
            return self._fit()

    def _fit(self) -> History:
        self.setup()
        check_ready(self)
        self.events.emit("on_fit_start")
        limits = RunLimits(epochs=self.config.n_epochs, updates=self.config.max_steps)
        try:
            resume = self.config.resume
            changes = self.config.changes
            run_training(
                self.run,
                self.loaders[0],
                None,
                limits,
                batch_size=None,
                resume=resume,
                changes=changes,
            )
        finally:
            self.validation.close()
        self.events.emit("on_fit_end")
        return self.history

    def overrides(self, name: str) -> bool:
        interface: DreamTrainer = self.interface
        return interface._overrides(name)

    def _train_epoch(self) -> None:
        """All epochs, in the interface's own loop or one of the user's."""
        self.user_loop = user_loop = UserLoop(self)
        try:
            with self.gradients.watching():
                user_loop.run()
        except TrainingOver:
            pass
        finally:
            self.user_loop = None
        if not self.run.is_done():
            self.stop("training_loop has ended")

    def run_epochs(self) -> None:
        """The epochs as the core runs them."""
        self.user_loop = None
        loop.train(self.run, partial(loop.train_epoch, self.run))

    # `schedulers` looks at what the user steps
    _keep_schedules = nullcontext  # type: ignore[assignment]

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs, except schedulers that the user's loop has
        stepped."""
        self.schedulers.step(row)

    # A step

    def _watch_steps(self) -> None:
        """Nothing: `backward`, `step` and what else steps an optimizer are looked at by
        `gradients`."""

    def train_step(self, batch: Any) -> StepResult:
        self.open_step()
        self.interface.training_step(batch, self.run.progress.epoch_step)
        return self.close_step(self.run.window.size, is_returned=True)

    def backward(self, loss: Any, optimizer: Optimizer | str | None, *, retain_graph: bool) -> None:
        """Gradients of a loss; a mistake in it is named."""
        if self.run.is_evaluating:
            self._check_update(loss)
        if self._logged is None and not self._is_in_step:
            raise ConfigurationError(
                "`backward(loss)` was called outside of a batch, so no step would follow: call it "
                "in `training_step`, or in a `training_loop` that iterates `self.train_loader`."
            )
        self.gradients.use("backward")
        self.train_loss(loss, optimizer, retain_graph=retain_graph)

    def train_loss(
        self, loss: Any, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """The backward pass of a loss, given to `backward` or returned by a step."""
        try:
            self.gradients.backward(loss, optimizer, retain_graph=retain_graph)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            self._check_update(loss)
            raise

    def take_step(self, call: Callable[[], Any]) -> Any:
        """A call of the interface's `training_step`, by whichever loop; its gradients are dealt
        with when it is over."""
        if not self.run.updates.by_name:
            self._setup_training()
        is_alone = self._logged is None  # called by neither loop
        if is_alone:
            self.gradients.begin_step()
        self._is_in_step = True
        try:
            with self.gradients.watching(), self.runtime.autocast:
                returned = call()
        finally:
            self._is_in_step = False
        if self.user_loop is None:
            self.gradients.train_returned(returned)
        if self.user_loop is None or self.gradients.is_used:
            self.gradients.end_step()
        else:
            self._returned = returned  # the loop may train it yet
        if is_alone:
            self.gradients.schedulers.follow_all()
        self.outputs = without_graph(returned)
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
        if not self.run.is_evaluating:
            self.gradients.begin_step()

    def close_step(self, size: int, *, is_returned: bool = False) -> StepResult:
        """What a step has measured: what was logged in it, and what it returned if the user's loop
        logs nothing."""
        logged = self._logged or {}
        self._logged = None
        if not self.run.is_evaluating:
            self.gradients.schedulers.follow_all()
        returned = measured_in(self.interface, self.outputs) if is_returned or not logged else None
        check_returned(
            returned, self._words.eval_step if self.run.is_evaluating else self._words.step
        )
        if returned is None or is_named(returned):
            return StepResult.of({**logged, **(returned or {})}, size)
        result = StepResult.of(returned, size)
        return replace(result, metrics={**logged, **result.metrics})

    def eval_step(self, batch: Any) -> StepResult:
        return self.validation.step(batch)

    def measure(self, call: Callable[[], Any]) -> Any:
        """A call of the interface's `validation_step`, by whichever loop."""
        with self.runtime.autocast:
            returned = call()
        self.outputs = without_graph(returned)
        return returned

    def log_metrics(self, values: Mapping[str, Any] | None) -> None:
        """Add to the step under way or just over, the validation, or the epoch, whichever is the
        smallest."""
        measured = measured_in(self.interface, values)
        if not measured:
            return
        if self._logged is not None:
            self._logged.update(measured)
        elif self.run.phases:
            if self.run.window.size:
                self.run.phases[-1].add(StepResult.of(measured, self.run.window.size))
        elif self.run.meter.num_pending:
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

    def load(self, path: str | Path) -> None:
        if not Path(path).exists():
            raise CheckpointError(
                f"load_checkpoint({str(path)!r}): there is no such file or directory."
            )
        super().load(path)

    def save_soon(self, path: str | Path) -> None:
        """Write everything, as soon as the update under way is whole."""
        path = self.files.full_path(path)
        if self.is_in_window:
            self.waiting.append(lambda: self.save(path))
        else:
            self.save(path)

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        for hooks in self.events.hooks.values():
            hooks[:] = map(function, hooks)

    # Events of the core, as the interface calls them

    def on_train_start(self) -> None:
        self.gradients.reset()
        self.schedulers.note()
        self.is_in_window = False
        self._logged = None
        self.calls_before = None
        self.events.emit("on_train_start")

    def on_epoch_start(self) -> None:
        self.schedulers.check()
        self.schedulers.note()
        self.calls_before = self.run.updates.calls
        self.events.emit("on_epoch_start")
        self.events.emit("on_train_epoch_start")

    def on_train_step_start(self, batch: Any) -> None:
        if not self.is_in_window:
            self.is_in_window = True
            self.events.emit("on_update_start")
        self.events.emit("on_train_batch_start", batch, self.run.progress.epoch_step)

    def on_train_step_end(self, batch: Any, result: StepResult) -> None:
        self.events.emit(
            "on_train_batch_end", self.outputs, batch, self.run.progress.epoch_step - 1
        )

    def on_optimizer_start(self, optimizer: str) -> None:
        self.events.emit("on_optimizer_step_start", optimizer)

    def on_update_end(self) -> None:
        self.is_in_window = False
        self.events.emit("on_update_end")

    def on_train_epoch_end(self) -> None:
        self.events.emit("on_train_epoch_end")

    def on_epoch_end(self, metrics: Mapping[str, float]) -> None:
        self.events.emit("on_epoch_end", metrics)

    def on_eval_start(self, data: Stream) -> None:
        self.validation.index = 0
        self.events.emit("on_validation_start")

    def on_loop_end(self) -> None:
        self.schedulers.check()
        self.events.emit("on_train_end")

    def on_exception(self, error: BaseException) -> None:
        self.events.emit("on_exception", error)
