"""`LifecycleCore`: the core trainer of one run. The core's loop gives the steps, and the stages of
the interface are their body."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..._torch_compat import version_of
from ...callback import Hook, named_by_class
from ...callbacks.nonfinite import NonFiniteGuard
from ...callbacks.recorder import RunRecorder
from ...checkpoint import read_checkpoint
from ...checkpoint.migrations import complete_state, explained
from ...checkpoint.weights import Parts
from ...data.open import Stream, open_stream
from ...data.random import preserved_rng
from ...data.workers import workers_explained
from ...errors import CheckpointError, ConfigurationError, interruption
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...optim.build import Schedule
from ...runtime.modes import evaluating
from ...training import steps as loop
from ...training.callback_schedulers import (
    CallbackSchedulers,
    schedulers_of,
    set_hyperparameters,
    state_of,
)
from ...training.evaluate import evaluate, measuring_nothing
from ...training.fingerprint import describe_object, describe_program
from ...training.own_steps import refused, scheduler_position, update_in_evaluation
from ...training.program import MessageNames
from ...training.restore import load_parts, own_rng, return_to
from ...training.state import capture, write_together
from ...training.train_call import emit_exception, finish
from .._shared import InterfaceCore, InterfaceNames, other_optimizers, tracked
from .callbacks import RecordRunCallback, TerminateOnNaNCallback
from .steps import Gathering, PreparedLoader, StageGradients
from .tracking import TrackerCallback, num_recorded, only_numbers, values_since

if TYPE_CHECKING:
    from ...trackers import Track
    from .trainer import Trainer
    from .utils import TrainerRunConfig

Stage = Literal["steps", "eval", "end", "over"]
INTERMEDIATE = "intermediate_eval_loss"
OWN = "lifecycle"  # the part of a training state that is the interface's
RESUMABLE = ("on_train_epoch_end", "on_eval_epoch_end", "on_training_run_epoch_end")
WITHOUT_ARGUMENTS = (
    "create_scheduler",
    "training_run_start",
    "train_epoch_start",
    "optimizer_step",
    "scheduler_step",
    "optimizer_zero_grad",
    "train_epoch_end",
    "eval_epoch_start",
    "eval_epoch_end",
    "training_run_epoch_end",
    "training_run_end",
    "evaluation_run_start",
    "evaluation_run_end",
    "_prepare_model_and_optimizer",
    "_prepare_dataloaders",
    "_run_training",
    "_clip_gradients",
)
NAMES = InterfaceNames(
    interface=OWN,
    messages=MessageNames(
        step="backward_step",
        eval_step="calculate_eval_batch_loss",
        update="super().backward_step(loss)",
        accumulate="gradient_accumulation_steps",
        nonfinite="The weights are those of the previous update. Lower the learning rate, pass "
        "`gradient_clip_value=`, or look at the data; without TerminateOnNaNCallback, training "
        "continues.",
        record_media="Add `RecordRunCallback(run_dir)` to the callbacks.",
        clip="they come with `backward_step`. Clip in `optimizer_step`, or pass "
        "`gradient_clip_value=` to `train`",
        takes_count=False,
    ),
    methods={
        "create_train_dataloader": ("batch_size=", "train_dl_kwargs="),
        "create_eval_dataloader": ("batch_size=", "eval_dl_kwargs="),
        "get_default_train_dl_kwargs": ("batch_size",),
        "get_default_eval_dl_kwargs": ("batch_size",),
        "calculate_train_batch_loss": ("batch",),
        "calculate_eval_batch_loss": ("batch",),
        "backward_step": ("loss",),
        "_run_train_epoch": ("train_dl",),
        "_run_eval_epoch": ("valid_dl",),
        **dict.fromkeys(WITHOUT_ARGUMENTS, ()),
    },
)


class LifecycleCore(InterfaceCore):
    """A core trainer whose components are the interface's attributes, looked at again whenever they
    may have changed, and whose steps are the stages of document 002, in their order.

    `stage` is what comes next in the epoch, once the event under way is over; a training state
    holds it, so that a resumed run takes up an epoch exactly where it was.
    """

    names = NAMES
    _plateau_metric = None
    interface: Trainer

    def __init__(self, interface: Trainer, *, trains: bool = False) -> None:
        callbacks = interface.callback_handler.callbacks
        stops = any(isinstance(callback, TerminateOnNaNCallback) for callback in callbacks)
        super().__init__(
            callbacks=[NonFiniteGuard("raise" if stops else "off")],
            runtime=interface._runtime,
            seed=None,
            progress="silent",
        )
        self.interface = interface
        self.trains = trains
        self.order_seed = torch.initial_seed()
        self.gathering = Gathering(self.runtime)
        self._is_ready = False
        self._loaders: list[PreparedLoader] = []
        self._gradients: StageGradients | None = None
        self._first_versions: list[int] = []
        # the epoch under way
        self.stage: Stage = "steps"
        self.is_looking = False  # whether batches are only read, before the first epoch
        self.is_in_window = False
        self.scheduler_position: Any = None  # before the stages of this step
        self._num_passes = 0  # over the training data, since the last epoch was counted
        self._batches: Generator[Any] | None = None
        self.step: loop.Step | None = None  # the one under way
        self._after_update: list[Callable[[], None]] = []
        # an evaluation
        self.eval_metric = ""
        # the modes before an evaluation epoch of the user's own
        self.modes: list[tuple[nn.Module, bool]] = []
        # a resumed run
        self.resumed_event: tuple[str, list[str]] | None = None
        self.waiting_state: Any = None  # for callbacks that have not started yet
        # how many values each metric of the history has of earlier epochs, and trackers have
        self.num_logged: dict[str, int] = {}
        self._num_sent: dict[str, int] = {}
        self._trackers: list[Track] = []

    # Components

    def prepare(self) -> None:
        """Everything that a run needs before its first batch, once."""
        if self._is_ready:
            return
        self.setup()
        if self.trains:
            self._setup_training()
            self.run.updates.reset()
            self._gradients = StageGradients(self.run)
            self._first_versions = list(map(version_of, self._gradients.update.params))
        self._is_ready = True

    def configure_models(self) -> None:
        self._components.models = self.current_models()

    def configure_optimizers(self) -> None:
        self.optimizers.update(self._current_optimizers())

    @property
    def _has_default_step(self) -> bool:
        """Never: a step is the interface's stages."""
        return False

    def use_config(self, config: TrainerRunConfig) -> None:
        """Use the settings of the run's config, which a method of the user's may have made."""
        self.accumulate = config.gradient_accumulation_steps
        self.clip_value = config.gradient_clip_value
        for update in self.run.updates.by_name.values():
            update.clip_value = config.gradient_clip_value

    def use_scheduler(self, scheduler: Any) -> None:
        """Make a scheduler part of the state of the run; the interface's `scheduler_step` is what
        steps it."""
        self._components.schedules = (
            {} if scheduler is None else {"scheduler": Schedule(scheduler, every="update")}
        )

    def _adopt_replaced(self) -> None:
        """Go on with the model and the optimizer that the interface has now, where one was put in
        another's place."""
        models = self.current_models()
        # perhaps put in for an evaluation alone, such as an average of the weights
        if self.run.metrics.phases:
            if models["model"] is not self.modules.get("model"):
                self.runtime.place(models["model"])
                models["model"].eval()
            return
        self.models.update(models)
        self.optimizers.update(self._current_optimizers())
        super()._adopt_replaced()
        for update in self.run.updates.by_name.values():
            update.schedulers = []

    def _current_optimizers(self) -> dict[str, Optimizer]:
        """The optimizer, and those that a subclass has beside it and steps by itself."""
        main = self.interface.optimizer
        others = other_optimizers(self.interface, [main])
        if self.trains and others and (self.runtime.world > 1 or self.runtime.precision == "fp16"):
            raise ConfigurationError(
                "second-optimizer",
                f"self.{min(others)} cannot be stepped on several processes or with "
                "mixed_precision='fp16': only the gradients of self.optimizer are averaged and "
                "unscaled. Give its parameters to self.optimizer, as a parameter group, or use "
                "loopwright.interfaces.modular.",
            )
        return others if main is None else {"optimizer": main} | others

    def current_models(self) -> dict[str, nn.Module]:
        """The model, and whatever else on the interface is trained, such as a loss function with
        parameters."""
        trained = {
            id(param)
            for optimizer in self._current_optimizers().values()
            for group in optimizer.param_groups
            for param in group["params"]
        }
        models = {"model": self.interface.get_model(keep_torch_compile=False)}
        for name, value in vars(self.interface).items():
            is_trained = isinstance(value, nn.Module) and any(
                id(param) in trained for param in value.parameters()
            )
            if is_trained and name != "model":
                models[name] = value
        return models

    @property
    def gradients(self) -> StageGradients:
        """The gradients that the stages of a training step work on."""
        if self.run.metrics.phases:
            raise update_in_evaluation(self.run.message_names)
        if self._gradients is None:
            raise ConfigurationError(
                "update-outside-training",
                "There are no gradients outside of `train`: call this method in a training stage.",
            )
        return self._gradients

    def _check_trained(self) -> None:
        """Refuse a first epoch in which nobody changed a weight."""
        update = self.gradients.update
        num_steps = update.num_updates - update.empty_steps + update.epoch.skipped
        if num_steps or not self.progress.update:
            return
        if list(map(version_of, update.params)) == self._first_versions:
            raise ConfigurationError(
                "nothing-trained",
                f"Nothing was trained: in {self.progress.update} updates, no optimizer step had "
                "gradients. Call `self.optimizer.step()` in `optimizer_step` if you replace it, "
                "and zero the gradients after that step, not before it.",
            )

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        self.interface.callback_handler.map_hooks(function)

    # Data

    def prepare_loaders(self) -> None:
        """Wrap the interface's loaders: from here on the order of samples is a function of seed and
        epoch."""
        interface = self.interface
        if interface._train_dataloader is not None:
            loader = self.prepared(interface._train_dataloader, is_training=True)
            interface._train_dataloader = loader
            if isinstance(loader, PreparedLoader):
                self.run.data.train_stream = loader.stream()
        if interface._eval_dataloader is not None:
            loader = self.prepared(interface._eval_dataloader, is_training=False)
            interface._eval_dataloader = loader
            self.run.data.eval_stream = loader.stream()

    def prepared(self, loader: Any, *, is_training: bool) -> Any:
        """The loader with the run's accounting around it, unless it has that already."""
        if isinstance(loader, PreparedLoader):
            if loader.core is self:
                return loader
            loader = loader.loader
        held = getattr(loader, "__dict__", {}).values() if is_training else ()
        if any(isinstance(value, PreparedLoader) for value in held):
            return loader  # it holds one, as a progress bar around a loader does
        for known in self._loaders:
            if known.loader is loader and known.is_training == is_training:
                return known
        self._loaders.append(PreparedLoader(self, loader, is_training))
        return self._loaders[-1]

    def passed(self, loader: Any, *, is_training: bool) -> Any:
        """The loader of an epoch, prepared; on several processes, anything around a loader is
        refused, whose samples would be shared out twice."""
        num_known = len(self._loaders)
        prepared = self.prepared(loader, is_training=is_training)
        is_new = len(self._loaders) > num_known
        if is_new and self.runtime.world > 1 and not isinstance(loader, DataLoader):
            raise ConfigurationError(
                "loader-wrapped",
                f"An epoch was given a {type(loader).__name__}, whose batches may be this "
                "process's share already: pass on the loader that your method was given, or a "
                "DataLoader.",
            )
        return prepared

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Batch sizes are those of each process, as the document has them."""
        shard = self.runtime.shard
        shard = None if shard is None else replace(shard, is_per_process=True)
        seed = self.runtime.broadcast_object(self.order_seed)
        return open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard)

    def close_loaders(self) -> None:
        for loader in self._loaders:
            loader.close()

    # A training epoch

    def begin_epoch(self) -> bool:
        """Whether an epoch begins; else the run goes on inside one."""
        self.leave_steps()
        self.load_callbacks()
        if self.progress.is_exhausted:  # another pass over the data in the same epoch
            self.progress.next_epoch()
        return not self.progress.in_epoch

    def training_batches(self, loader: PreparedLoader) -> Iterator[Any]:
        """The batches of an epoch, or the rest of them, each of which is a step of the run."""
        if self.is_looking:
            return self._look_at(loader)
        if self.begin_epoch():
            self._num_passes += 1
            self.run.data.train_stream = loader.stream()
        loop.begin_epoch(self.run)
        self.stage = "steps"
        self._batches = self._give_batches()
        return self._batches

    def _look_at(self, loader: PreparedLoader) -> Iterator[Any]:
        with closing(self._open(loader.loader, None, shuffle=True)) as stream:
            stream.begin(0)
            for batch in stream:
                yield self.prepare_batch(batch.value)

    def _give_batches(self) -> Generator[Any]:
        limits = replace(self.run.call.limits, epochs=None)  # the interface decides about epochs
        autocasts = self.runtime.precision != "fp32"
        gradients = self.gradients
        for step in loop.open_steps(self.run, limits=limits):
            self.step = step
            self.is_in_window = True
            self.scheduler_position = scheduler_position(self.interface.scheduler)
            gradients.open_batch()
            if autocasts:
                with self.runtime.autocast:
                    yield step.batch
            else:
                yield step.batch
            gradients.close_batch()
        self.step = None
        loop.end_steps(self.run)
        # after the last update: a resumed run finds the end of the data again
        if self.run.is_interrupted:
            self.progress.is_exhausted = False
        self.leave_if_interrupted()
        self.stage = "eval"

    def leave_steps(self) -> None:
        """Count a step that a loop of the user's left with `break`, and finish the epoch's
        steps."""
        if self.step is not None and self._batches is not None:
            self.step.is_last = True
            next(self._batches, None)

    def drop_steps(self) -> None:
        """Forget the step under way, which an exception ended."""
        self.step = None
        self.is_in_window = False
        self._after_update = []
        batches = self._batches
        self._batches = None
        if batches is not None:
            batches.close()

    def close(self) -> None:
        """End the run: drop its steps, streams and hooks."""
        self.drop_steps()
        self.close_loaders()
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

    def end_train_epoch(self) -> None:
        """`_run_train_epoch` is over; one that took no batch of the run's loader counts as an epoch
        too."""
        self.leave_steps()
        if self.stage == "steps":
            self.progress.is_exhausted = True
            self.stage = "eval"

    def mean_loss(self, meter: Meter | None = None) -> float:
        """The mean loss of a sample over all processes: in this epoch, or of another meter."""
        meter = self.run.metrics.meter if meter is None else meter
        runtime = self.runtime
        return meter.compute(runtime.sum_table, gather=runtime.gather_samples).get("loss", nan)

    def on_update_end(self) -> None:
        self.is_in_window = False
        waiting = self._after_update
        self._after_update = []
        for action in waiting:
            action()
        if self.run.stopping.signals.take_save():
            self.interface.callback_handler.call_event("save_requested_run", self.interface)

    def after_update(self, action: Callable[[], None]) -> None:
        """Run an action now or, inside a step, after the update, when the state of the run is
        complete."""
        if self.is_in_window:
            self._after_update.append(action)
        else:
            action()

    # Epochs of a run

    def end_epoch(self) -> None:
        """Record the epoch, unless a limit cut it short; further passes over the data in it do not
        count.

        Each pass is an epoch of the loop, since the order of samples follows its number, while
        `num_epochs` counts epochs of the interface, of which one may have several passes: so the
        limit moves by the passes beyond the first.
        """
        self.stage = "steps"
        if self._num_passes > 1:
            self.run.leave_out_epochs(self._num_passes - 1)
        self._num_passes = 0
        history = self.interface.run_history
        if self.progress.in_epoch:  # a batch was taken
            self.log(only_numbers(values_since(history, self.num_logged)))
        self.num_logged = num_recorded(history)
        self._track_metrics()
        is_over = self.progress.is_exhausted
        loop.record_epoch(self.run, {})
        if is_over:
            history._increment_epoch()

    def leave_if_interrupted(self) -> None:
        """After a signal: save the state, from which a run can continue, and end the program.

        The core saves at the end of its loop; a run of this interface is saved by its callbacks, in
        the stage it is in.
        """
        if not self.run.is_interrupted:
            return
        signals = self.run.stopping.signals
        self.interface.print(f"{signals.name} after update {self.progress.update}")
        signals.is_saving = True
        self.interface.callback_handler.call_event("save_interrupted_run", self.interface)
        line = f"Interrupted after update {self.progress.update}."
        raise interruption(signals.exit_code, line)

    @property
    def _defers_signals(self) -> bool:
        """Whether an evaluation is under way that a resumed run would not repeat; signals wait for
        its end."""
        is_repeated = self.stage == "eval" and self.eval_metric == "eval_loss_epoch"
        return bool(self.run.metrics.phases) and not is_repeated

    # An evaluation epoch

    @property
    def is_intermediate(self) -> bool:
        """Whether an evaluation inside a training epoch is under way."""
        return self.eval_metric == INTERMEDIATE

    def run_evaluation(self, loader: Any, metric: str) -> None:
        """Evaluate, also inside an epoch; the loss is recorded under the name of the metric."""
        self.load_callbacks()
        data = self.run.data
        before = self.eval_metric, data.eval_stream
        self.eval_metric = metric
        data.eval_stream = self.passed(loader, is_training=False).stream()
        try:
            evaluate(self.run, data.eval_stream)
        finally:
            self.eval_metric, data.eval_stream = before
        if self.stage == "eval" and not self.is_in_window:
            self.leave_if_interrupted()

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Eval mode for the models that the interface has now, and everything as it was
        afterwards."""
        models = (*self.modules.values(), *self.current_models().values())
        modules = {id(module): module for module in models}
        with evaluating(modules.values(), self.optimizers.values()), refused(self.run):
            yield
        self.runtime.reshard()

    def on_eval_start(self, data: Stream) -> None:
        self.interface._run_stage("eval_epoch_start", is_intermediate=self.is_intermediate)

    def eval_step(self, batch: Any) -> StepResult | None:
        interface = self.interface
        window = self.run.window
        call = interface.callback_handler.call_event
        with self._round(self.run.data.eval_stream, window.size, window.total) as is_taken:
            if not is_taken:
                return None
            call("on_eval_step_start", interface)
            output = interface.calculate_eval_batch_loss(batch)
            loss = loss_in(output, "calculate_eval_batch_loss")
            call("on_eval_step_end", interface, batch=batch, batch_output=output)
            return StepResult(loss, output.get("batch_size", window.size))

    def _eval_without_samples(self, batch: Any) -> None:
        self.eval_step(batch)

    @contextmanager
    def _round(self, stream: Any, size: int, total: int | None) -> Iterator[bool]:
        """A round of an evaluation: whether this process takes a step in it.

        Without a sample of its own it takes the step with another's, if the others gather in it:
        metrics do not count it, and nothing of it is gathered.
        """
        gathering = self.gathering
        gathering.begin_round(stream, size, total)
        if size or total is None:
            yield True
            gathering.end_round()
        elif gathering.is_needed() or self.runtime.forwards_together:
            held = {
                f"{at}: {name}": value
                for at, owner in enumerate((self.interface, *self.interface.callback_handler))
                for name, value in vars(owner).items()
                if isinstance(value, nn.Module)
            }
            with measuring_nothing(held):
                gathering.is_stand_in = True
                try:
                    yield True
                finally:
                    gathering.is_stand_in = False
        else:
            yield False

    def evaluation_batches(self, loader: PreparedLoader) -> Iterator[Any]:
        """The batches of an evaluation epoch of the user's own."""
        stream = loader.stream()
        with self._eval_mode(), torch.no_grad(), preserved_rng():
            stream.begin(0)
            for value, size, total in stream:
                batch = self.prepare_batch(value)
                with self._round(stream, size, total) as is_taken, self.runtime.autocast:
                    if is_taken:
                        yield batch
            self.gathering.end()

    def on_eval_end(self, data: Stream) -> None:
        self.gathering.end()
        loss = self.mean_loss(self.run.metrics.phases[-1])
        if self.stage == "eval" and self.eval_metric == "eval_loss_epoch":
            self.stage = "end"
        self.interface.run_history.update_metric(self.eval_metric, loss)
        self.interface._run_stage("eval_epoch_end", is_intermediate=self.is_intermediate)
        if self.is_intermediate:
            self.run.flush()  # trackers want steps in their order
            self._track_metrics()

    def _track_metrics(self) -> None:
        """Send the metrics that are new in the history to the trackers."""
        history = self.interface.run_history
        new = only_numbers(values_since(history, self._num_sent))
        self._num_sent = num_recorded(history)
        for tracker in self._trackers if new else ():
            tracker.log_epoch(self, history.current_epoch, new)

    # Files

    def load_parts(self, parts: Parts, *, optimizers: bool = True, schedules: bool = True) -> None:
        """Load into the components that the interface has now, which may have changed since its run
        began."""
        core = LifecycleCore(self.interface)
        core.setup()
        core.use_scheduler(self.interface.scheduler)
        load_parts(core.run, parts, optimizers=optimizers, schedules=schedules)

    def save_state(self, directory: str | Path, extra: Mapping[str, Any] | None) -> None:
        """Write everything that the run under way, or the last one, needs in order to go on."""
        handler = self.interface.callback_handler
        event = handler.event_under_way()
        self.setup()
        own = {
            "stage": self.stage,
            "event": event if event is not None and event[0] in RESUMABLE else None,
            "seed": self.order_seed,
            "history": self.interface.run_history.state_dict(),
            "callbacks": {
                name: state_of(callback)
                for name, callback in named_by_class(handler.callbacks).items()
            },
            "counts": self.num_logged,
            "extra": dict(extra or {}),
        }
        state = {**capture(self.run), OWN: own}
        write_together(self.run, directory, state, self.run.checkpoint_meta())

    def resume(self, directory: str | Path) -> None:
        """Put the run that is being set up where the saved one was; the callbacks' part comes when
        they have started."""
        tree = self._read_state(directory)
        with explained(f"{OWN}: the training state in {directory} cannot be resumed"):
            self.order_seed = tree[OWN]["seed"]
            self.resumed_event = tree[OWN]["event"]
        self.close_loaders()
        self.prepare_loaders()
        saved = {part: state for part, state in tree.items() if part != OWN}
        return_to(self.run, saved, str(directory))
        self.stage = tree[OWN]["stage"]
        history = self.interface.run_history
        ended = history.current_epoch - 1
        # an earlier version had none, or only of recorded runs: an epoch has one value of a metric
        counts = {name: min(count, ended) for name, count in num_recorded(history).items()}
        self.num_logged = tree[OWN].get("counts") or counts
        self.waiting_state = tree

    def load_callbacks(self) -> None:
        """Let the trainer and the callbacks of a resumed run, which have started by now, go on
        where they were, and the random numbers with them."""
        tree = self.waiting_state
        self.waiting_state = None
        if tree is None:
            return
        interface = self.interface
        with explained("trainer cannot load its part of the training state"):
            for line in interface._restore_own_state(tree.get("trainer"), "The training state"):
                interface.print(line)
        callbacks = named_by_class(interface.callback_handler.callbacks)
        for name, callback in callbacks.items():
            with explained(f"{OWN}: {name} cannot load its part of the training state"):
                if name in tree[OWN]["callbacks"]:
                    CallbackSchedulers().load(callback, tree[OWN]["callbacks"][name])
        if any(schedulers_of(callback) for callback in callbacks.values()):
            # whose rates a new scheduler has set anew
            for name, optimizer in self.optimizers.items():
                set_hyperparameters(optimizer, tree["optimizers"][name]["param_groups"])
        self.run.generators.restore(own_rng(tree["rng"], self.run))

    def load_state(self, directory: str | Path) -> dict[str, Any]:
        """Load model, optimizer, scheduler if there is one, history, callbacks and random numbers
        of a saved run."""
        tree = complete_state(self._read_state(directory), str(directory))
        self.load_parts(
            Parts(Path(directory), tree["models"], tree["optimizers"], tree["schedules"])
        )
        self.waiting_state = tree
        self.load_callbacks()
        return dict(tree[OWN]["extra"])

    def _read_state(self, directory: str | Path) -> dict[str, Any]:
        """The content of a training state; the run history goes on with its part of it."""
        tree: Any = read_checkpoint(directory).tree if Path(directory).exists() else {}
        if "stage" not in tree.get(OWN, {}):
            raise CheckpointError(
                "not-a-training-state",
                f"There is no training state at {directory}: pass a directory that "
                "`save_training_state` wrote. (For a checkpoint of a model, use `load_checkpoint`.)",
            )
        with explained(f"{OWN}: the run history in {directory} cannot be loaded"):
            self.interface.run_history.load_state_dict(tree[OWN]["history"])
        return dict(tree)

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Nothing: the state of the user's trainer is loaded with those of the callbacks, once the
        run has started."""
        return []

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals in the epochs of this block, on all processes at the same update."""
        with self.run.handling_signals(), workers_explained():
            yield
            self.runtime.finish_exchange()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the run in this block, if a callback or the environment says so, and let trackers
        follow it."""
        run = self.run
        callbacks = self.interface.callback_handler.callbacks
        recording = [one for one in callbacks if isinstance(one, RecordRunCallback)]
        if recording and self.runtime.is_main:
            others = [one for one in run.callbacks if not isinstance(one, RunRecorder)]
            run_dir = recording[0].run_dir
            run.bind([*others, RunRecorder("warn", directory=run_dir, existing="continue")])
        if any(isinstance(callback, RunRecorder) for callback in run.callbacks):
            described = describe_program(run, run.opened_stream, looks_at_samples=False)
            run.identify(described | describe_object("loss", self.interface.loss_func))
        if self.waiting_state is None:
            self.num_logged = num_recorded(self.interface.run_history)
        self._num_sent = self.num_logged
        self._trackers = [one.tracker for one in callbacks if isinstance(one, TrackerCallback)]
        with tracked(run, self._trackers, ignored=("on_epoch_end", "on_train_start")):
            run.emit("on_train_start")
            for tracker in self._trackers:  # a second run is a new one to it, and begins at epoch 0
                tracker.begin(self, 0 if self.waiting_state is None else self.progress.epoch)
            run.media.begin()
            try:
                yield
                self._check_trained()
            except BaseException as error:
                emit_exception(run, error)
                raise
            self._track_metrics()
            for tracker in self._trackers:
                tracker.finish("finished" if run.stopping.reason is None else "stopped")
        finish(run)


def loss_in(output: Any, method: str) -> Tensor:
    """The loss in what a `calculate_..._batch_loss` of the user's returned."""
    is_mapping = type(output) is dict or isinstance(output, Mapping)  # most are plain dicts
    loss = output.get("loss") if is_mapping else None
    if isinstance(loss, Tensor):
        return loss
    raise ConfigurationError(
        "no-loss-tensor",
        f"`{method}` returned {output!r:.60} ({type(output).__name__}), in which no tensor is the "
        '"loss": return {"loss": loss, "model_outputs": outputs, "batch_size": len(targets)}.',
    )
