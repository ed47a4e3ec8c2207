"""`LifecycleCore`: the core trainer of one run. The core's loop gives the steps, and the stages of
the interface are their body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callback import Hook
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.open import Stream, open_stream
from ...data.random import preserved_rng
from ...data.workers import workers_explained
from ...errors import ConfigurationError, interruption
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...optim.build import Schedule
from ...runtime import Runtime
from ...runtime.modes import evaluating, start_training_mode
from ...training import steps as loop
from ...training.assembly import build_update
from ...training.components import check_owners
from ...training.evaluate import evaluate, measuring_nothing
from ...training.fingerprint import describe_object, describe_program
from ...training.own_steps import refused, update_in_evaluation
from ...training.program import MessageNames
from ...training.update import OptimizerUpdate, UpdateGuard
from .._shared import InterfaceCore, InterfaceNames, other_optimizers
from . import saving
from .callbacks import TerminateOnNaNCallback
from .gradients import StageGradients
from .loaders import Gathering, PreparedLoader, inner_of, prepared
from .tracking import num_recorded, only_numbers, values_since

if TYPE_CHECKING:
    from .run_config import TrainerRunConfig
    from .trainer import Trainer

Stage = Literal["steps", "eval", "end", "over"]


NAMES = InterfaceNames(
    interface="lifecycle",
    messages=MessageNames(
        step="backward_step",
        eval_step="calculate_eval_batch_loss",
        update="super().backward_step(loss)",
        accumulate="gradient_accumulation_steps",
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
        "create_scheduler": (),
        "training_run_start": (),
        "train_epoch_start": (),
        "calculate_train_batch_loss": ("batch",),
        "backward_step": ("loss",),
        "optimizer_step": (),
        "scheduler_step": (),
        "optimizer_zero_grad": (),
        "train_epoch_end": (),
        "eval_epoch_start": (),
        "calculate_eval_batch_loss": ("batch",),
        "eval_epoch_end": (),
        "training_run_epoch_end": (),
        "training_run_end": (),
        "evaluation_run_start": (),
        "evaluation_run_end": (),
        "_prepare_model_and_optimizer": (),
        "_prepare_dataloaders": (),
        "_run_training": (),
        "_run_train_epoch": ("train_dl",),
        "_clip_gradients": (),
        "_run_eval_epoch": ("valid_dl",),
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

    def __init__(self, interface: Trainer, runtime: Runtime, *, trains: bool = False) -> None:
        super().__init__(
            callbacks=[NonFiniteGuard("off")],  # stopping on NaN is a callback of the interface
            runtime=runtime,
            seed=None,
            progress="silent",
        )
        self.interface = interface
        self.trains = trains
        self.order_seed = torch.initial_seed()
        self.gathering = Gathering(runtime)
        self._is_ready = False
        self._streams: dict[int, tuple[Any, Stream]] = {}
        self._gradients: StageGradients | None = None
        # the epoch under way
        self.stage: Stage = "steps"
        self.is_in_window = False
        self.is_checked = False  # whether an epoch has changed the weights
        self.scheduler_position: Any = None  # before the user's methods of this update
        self._has_begun = False
        self._is_looking = False
        self._num_passes = 0  # over the training data, since the last epoch was counted
        self._batches: Iterator[Any] | None = None
        self._step: loop.Step | None = None
        self._after_update: list[Callable[[], None]] = []
        # an evaluation
        self.is_intermediate = False  # inside a training epoch
        self.eval_metric = ""
        self._modes: list[tuple[nn.Module, bool]] = []
        # a resumed run
        self.resumed_event: tuple[str, list[str]] | None = None
        self.waiting_state: Any = None  # for callbacks that have not started yet
        self.was_ended_by_callback = False  # by one that would say so again
        # a recorded run: the values of each metric that earlier epochs logged
        self.num_logged: Mapping[str, int] | None = None

    # Components

    def prepare(self) -> None:
        """Everything that a run needs before its first batch, once."""
        if self._is_ready:
            return
        self.setup()
        if self.trains:
            self._check_optimizer()
            self._setup_training()
            self.run.updates.reset()
            callbacks = self.interface.callback_handler.callbacks
            guards = (one for one in callbacks if isinstance(one, TerminateOnNaNCallback))
            self._rebuild_update(next(guards, None))
        self._is_ready = True

    def describe(self) -> None:
        """Describe the program, for the record of the run."""
        assert self.run.data.train_stream is not None
        described = describe_program(self.run, self.run.data.train_stream, looks_at_samples=False)
        self.run.identify(described | describe_object("loss", self.interface.loss_func))

    @property
    def _has_default_step(self) -> bool:
        """Never: a step is the interface's stages."""
        return False

    def configure_models(self) -> None:
        """The model, and whatever else on the interface is trained, such as a loss function with
        parameters."""
        self._components.models = self._current_models()

    def configure_optimizers(self) -> None:
        self.optimizers.update(self._current_optimizers())

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

    @property
    def optimizer_update(self) -> OptimizerUpdate:
        return self.run.updates.by_name["optimizer"]

    def _adopt_replaced(self) -> None:
        """Go on with the model and the optimizer that the interface has now, where one was put in
        another's place."""
        models = self._current_models()
        # perhaps put in for an evaluation alone, such as an average of the weights
        if self.run.metrics.phases:
            if models["model"] is not self.modules.get("model"):
                self.runtime.place(models["model"])
                models["model"].eval()
            return
        known = {name: self.modules.get(name) for name in models}
        if any(module is not known[name] for name, module in models.items()):
            for module in models.values():
                self.runtime.place(module)
            self._components.models = models
            self._components.modules = dict(models)
        optimizer = self.interface.optimizer
        if not self.trains or optimizer is None:
            return
        if self._gradients is not None:
            self._gradients.has_others = len(self._current_optimizers()) > 1
        is_new = optimizer is not self.optimizers["optimizer"]
        if is_new or models != known:
            self._check_optimizer()
            start_training_mode(self.modules.values(), [optimizer])
        if is_new:
            self.optimizers["optimizer"] = optimizer
            self._rebuild_update(self.optimizer_update.guard)

    def _current_optimizers(self) -> dict[str, Optimizer]:
        """The optimizer, and those that a subclass has beside it and steps by itself."""
        main = self.interface.optimizer
        others = other_optimizers(self.interface, [main])
        return others if main is None else {"optimizer": main} | others

    def _current_models(self) -> dict[str, nn.Module]:
        trained = {
            id(param)
            for optimizer in self._current_optimizers().values()
            for group in optimizer.param_groups
            for param in group["params"]
        }
        attributes = {k: v for k, v in vars(self.interface).items() if isinstance(v, nn.Module)}
        attributes.pop("model", None)
        return {"model": self.interface.get_model(keep_torch_compile=False)} | {
            name: module
            for name, module in attributes.items()
            if any(id(param) in trained for param in module.parameters())
        }

    def _check_optimizer(self) -> None:
        """Refuse to train what the optimizer does not hold, or without one, in the words of this
        interface."""
        interface = self.interface
        if interface.optimizer is None:
            raise ConfigurationError(
                "trainer-without-optimizer",
                "Trainer has no optimizer: pass `optimizer=`, or use `evaluate`.",
            )
        others = list(self._current_optimizers())[1:]
        if others and (self.runtime.world > 1 or self.runtime.precision == "fp16"):
            where = (
                "on several processes" if self.runtime.world > 1 else "with mixed_precision='fp16'"
            )
            raise ConfigurationError(
                "second-optimizer",
                f"{type(interface).__name__} has a further optimizer, self.{others[0]}, which "
                f"cannot be stepped {where}: only the gradients of self.optimizer are averaged "
                "and unscaled. Give its parameters to self.optimizer, as a parameter group, or "
                "use loopwright.interfaces.modular.",
            )
        try:
            check_owners(self._current_models(), {"optimizer": interface.optimizer})
        except ConfigurationError:
            raise ConfigurationError(
                "optimizer-of-another-model",
                "The optimizer holds parameters that do not belong to the model, so training "
                "would not change the model: create it with `model.parameters()` of the trainer's "
                "model. If you replace `trainer.model`, replace `trainer.optimizer` too.",
            ) from None

    def _rebuild_update(self, guard: UpdateGuard | None) -> None:
        update = build_update(self, "optimizer", self.optimizers["optimizer"], guard)
        update.checks_losses = False  # the callback has looked at the loss before `backward_step`
        self.run.updates.replace(update)
        self.run.updates.refresh(self.modules.values())
        self._drop_gradients()
        self._gradients = StageGradients(self.run, update)

    def _drop_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None

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

    # Data

    def prepare_loaders(self) -> None:
        """Wrap the interface's loaders: from here on the order of samples is a function of seed and
        epoch."""
        interface = self.interface
        if interface._train_dataloader is not None:
            loader = prepared(self, interface._train_dataloader, is_training=True)
            interface._train_dataloader = loader
            self.run.data.train_stream = self.stream(loader, is_training=True)
        if interface._eval_dataloader is not None:
            loader = prepared(self, interface._eval_dataloader, is_training=False)
            interface._eval_dataloader = loader
            self.run.data.eval_stream = self.stream(loader, is_training=False)

    def stream(self, loader: Any, *, is_training: bool) -> Stream:
        """The stream over a loader, opened at its first use and adapted by the callbacks."""
        loader = _given_loader(loader)
        if id(loader) not in self._streams:
            self._streams[id(loader)] = (loader, self._open(loader, None, shuffle=is_training))
        stream = self._streams[id(loader)][1]
        for callback in self.interface.callback_handler.callbacks:
            stream = callback.adapt_stream(
                stream, is_training=is_training, is_intermediate=self.is_intermediate
            )
        return stream

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Batch sizes are those of each process, as the document has them."""
        shard = self.runtime.shard
        shard = None if shard is None else replace(shard, is_per_process=True)
        seed = self.runtime.broadcast_object(self.order_seed)
        return open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard)

    def close_stream(self, loader: Any) -> None:
        _, stream = self._streams.pop(id(_given_loader(loader)), (None, None))
        if stream is not None:
            stream.close()

    def close_streams(self) -> None:
        for _, stream in self._streams.values():
            stream.close()
        self._streams = {}

    # A training epoch

    def begin_epoch(self, loader: Any) -> bool:
        """Get ready for the steps of an epoch; False when the run goes on inside one."""
        self.leave_steps()
        progress = self.progress
        self.load_callbacks()
        if progress.is_exhausted:  # another pass over the data in the same epoch of the interface
            progress.next_epoch()
        is_new = not progress.in_epoch
        if is_new:
            self._num_passes += 1
            self.run.data.train_stream = self.stream(loader, is_training=True)
        loop.begin_epoch(self.run)
        self._has_begun = True
        self.stage = "steps"
        return is_new

    def training_batches(self, loader: PreparedLoader) -> Iterator[Any]:
        """The batches of an epoch, or the rest of them, each of which is a step of the run."""
        if self._is_looking:
            return self._look_at(loader)
        if self._step is not None:
            self.leave_steps()
        if not self._has_begun:
            self.begin_epoch(loader)
        self._batches = self._give_batches()
        return self._batches

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Iterating the training loader in this block only reads its batches: no epoch begins."""
        self._is_looking = True
        try:
            yield
        finally:
            self._is_looking = False

    def _look_at(self, loader: PreparedLoader) -> Iterator[Any]:
        stream = self._open(loader.loader, None, shuffle=True)
        try:
            stream.begin(0)
            for batch in stream:
                yield self.prepare_batch(batch.value)
        finally:
            stream.close()

    def _give_batches(self) -> Iterator[Any]:
        limits = replace(self.run.call.limits, epochs=None)  # the interface decides about epochs
        autocasts = self.runtime.precision != "fp32"
        gradients = self.gradients
        for step in loop.open_steps(self.run, limits=limits):
            self._step = step
            self.is_in_window = True
            gradients.open_batch()
            if autocasts:
                with self.runtime.autocast:
                    yield step.batch
            else:
                yield step.batch
            gradients.close_batch()
        self._forget_steps()
        loop.end_steps(self.run)
        # after the last update: a resumed run finds the end of the data again
        if self.run.is_interrupted:
            self.progress.is_exhausted = False
        self.leave_if_interrupted()
        self.stage = "eval"

    @contextmanager
    def steps(self) -> Iterator[None]:
        """The loop over an epoch's batches; with an exception, nothing of the step under way
        counts."""
        try:
            yield
        except BaseException as error:
            self.drop_steps()
            if isinstance(error, torch.OutOfMemoryError):
                error.add_note(
                    "Use a smaller `per_device_batch_size`, with proportionally more "
                    "`gradient_accumulation_steps` for the same effect, or mixed_precision='bf16'."
                )
            raise
        self.leave_steps()

    def leave_steps(self) -> None:
        """End the epoch's loop: count a step that was left with `break`, and finish the epoch's
        steps."""
        if self._batches is not None and self._step is not None:
            self._step.is_last = True
            next(self._batches, None)
        self._has_begun = False

    def drop_steps(self) -> None:
        """Forget the step under way, which an exception ended."""
        batches = self._batches
        self._forget_steps()
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]  # a generator

    def _forget_steps(self) -> None:
        self._batches = None
        self._step = None
        self._has_begun = False
        self.is_in_window = False
        self._after_update.clear()

    def close(self) -> None:
        """End the run: drop its steps, streams and hooks."""
        self.drop_steps()
        self.close_streams()
        self._drop_gradients()

    def end_train_epoch(self) -> None:
        """`_run_train_epoch` is over; one that took no batch of the run's loader counts as an epoch
        too."""
        self.leave_steps()
        if self.stage == "steps":
            self.progress.is_exhausted = True
            self.stage = "eval"

    @property
    def is_in_step(self) -> bool:
        """Whether a step of the run is under way."""
        return self._step is not None

    def report(self, loss: Tensor, size: int) -> None:
        """The loss of the step under way, and the samples that it is the mean of."""
        if self._step is not None:
            self._step.result = StepResult(loss, size)

    def mean_loss(self, meter: Meter | None = None) -> float:
        """The mean loss of a sample over all processes: in this epoch, or of another meter."""
        meter = self.run.metrics.meter if meter is None else meter
        runtime = self.runtime
        return meter.compute(runtime.sum_table, gather=runtime.gather_samples).get("loss", nan)

    def on_update_end(self) -> None:
        self.is_in_window = False
        if self._after_update:
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

    @contextmanager
    def together(self) -> Iterator[None]:
        """Handle signals in the epochs of this block, on all processes at the same update."""
        with self.run.handling_signals(), workers_explained():
            yield
            self.runtime.finish_exchange()

    @property
    def has_work(self) -> bool:
        """Whether there are steps to take, or the end of an epoch, which a run that was killed may
        have left."""
        return self.stage != "steps" or self.progress.is_unrecorded or not self.run.is_done()

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
        if self.num_logged is not None:
            self.log(only_numbers(values_since(history, self.num_logged)))
            self.num_logged = num_recorded(history)
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

    def _check_trained(self) -> None:
        """Nothing: `WeightsWatch` looks at the weights, and knows which of the user's methods is to
        blame."""

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Nothing: the state of the user's trainer is loaded with those of the callbacks, once the
        run has started."""
        return []

    def load_callbacks(self) -> None:
        """Let the callbacks of a resumed run, which have started by now, go on where they were."""
        state = self.waiting_state
        self.waiting_state = None
        if state is not None:
            saving.load_callbacks(self.interface, state)

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        self.interface.callback_handler.map_hooks(function)

    # An evaluation epoch

    def run_evaluation(self, loader: Any, metric: str) -> None:
        """Evaluate, also inside an epoch; the loss is recorded under the name of the metric."""
        self.load_callbacks()
        metric_before = self.eval_metric
        stream_before = self.run.data.eval_stream
        self.eval_metric = metric
        self.run.data.eval_stream = self.stream(loader, is_training=False)
        try:
            evaluate(self.run, self.run.data.eval_stream)
        finally:
            self.eval_metric = metric_before
            self.run.data.eval_stream = stream_before
        if self.stage == "eval" and not self.is_in_window:
            self.leave_if_interrupted()

    @contextmanager
    def intermediate(self) -> Iterator[None]:
        """Evaluations in here are extra ones, inside a training epoch."""
        self.is_intermediate = True
        try:
            yield
        finally:
            self.is_intermediate = False

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Eval mode for the models that the interface has now, and everything as it was
        afterwards."""
        models = (*self.modules.values(), *self._current_models().values())
        modules = {id(module): module for module in models}
        with evaluating(modules.values(), self.optimizers.values()), refused(self.run):
            yield
        self.runtime.reshard()

    def set_eval_mode(self) -> None:
        """Eval mode until `set_train_mode`, for an evaluation epoch of the user's own."""
        if not self.run.metrics.phases and not self._modes:
            self._modes = [(part, part.training) for part in self.interface.model.modules()]
        self.interface.model.eval()

    def set_train_mode(self) -> None:
        """Restore the modes from before, or train mode if the model was left in eval mode."""
        for part, mode in self._modes:
            part.training = mode
        self._modes = []
        if self.interface.optimizer is not None:
            start_training_mode([self.interface.model], [self.interface.optimizer])

    def on_eval_start(self, data: Stream) -> None:
        self.interface.eval_epoch_start()
        self.interface.callback_handler.call_event(
            "on_eval_epoch_start", self.interface, is_intermediate=self.is_intermediate
        )

    def eval_step(self, batch: Any) -> StepResult:
        """An evaluation step on samples of this process; other processes may have none in it."""
        with self.gathering.round(self._is_uneven()):
            return self._take_eval_step(batch)

    def _eval_without_samples(self, batch: Any) -> None:
        """An evaluation step without a sample of this process: taken with another's if the others
        gather in it."""
        self._is_uneven()
        if self.gathering.is_needed() or self.runtime.forwards_together:
            with self._standing_in():
                self._take_eval_step(batch)

    def _is_uneven(self) -> bool:
        assert self.run.data.eval_stream is not None
        window = self.run.window
        return self.gathering.is_uneven(self.run.data.eval_stream, window.size, window.total)

    def _take_eval_step(self, batch: Any) -> StepResult:
        interface = self.interface
        call = interface.callback_handler.call_event
        call("on_eval_step_start", interface)
        output = interface.calculate_eval_batch_loss(batch)
        loss = loss_in(output, "calculate_eval_batch_loss")
        call("on_eval_step_end", interface, batch=batch, batch_output=output)
        return StepResult(loss, output.get("batch_size", self.run.window.size))

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        """A step on a sample of another process: metrics do not count it, and nothing of it is
        gathered."""
        owners = (self.interface, *self.interface.callback_handler.callbacks)
        held = {
            f"{at}: {name}": value
            for at, owner in enumerate(owners)
            for name, value in vars(owner).items()
            if isinstance(value, nn.Module)
        }
        with measuring_nothing(held), self.gathering.standing_in():
            yield

    def evaluation_batches(self, loader: PreparedLoader) -> Iterator[Any]:
        """The batches of an evaluation epoch of the user's own."""
        stream = self.stream(loader, is_training=False)
        gathering = self.gathering
        with self._eval_mode(), torch.no_grad(), preserved_rng():
            stream.begin(0)
            for value, size, total in stream:
                is_uneven = gathering.is_uneven(stream, size, total)
                batch = self.prepare_batch(value)
                if size or total is None:
                    with gathering.round(is_uneven), self.runtime.autocast:
                        yield batch
                elif gathering.is_needed():
                    with self._standing_in(), self.runtime.autocast:
                        yield batch
            gathering.end()

    def on_eval_end(self, data: Stream) -> None:
        self.gathering.end()
        loss = self.mean_loss(self.run.metrics.phases[-1])
        if self.stage == "eval" and self.eval_metric == "eval_loss_epoch":
            self.stage = "end"
        self.interface.run_history.update_metric(self.eval_metric, loss)
        self.interface.eval_epoch_end()
        self.interface.callback_handler.call_event(
            "on_eval_epoch_end", self.interface, is_intermediate=self.is_intermediate
        )


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


def _given_loader(loader: Any) -> Any:
    """The loader that a prepared one was made from; another one itself."""
    inner = inner_of(loader)
    return loader if inner is None else inner.loader
