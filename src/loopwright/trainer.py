"""The trainer: what users construct, call and override. The state of a run is in `training.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .callback import Callback, Hook, TrainerHooks, as_callbacks
from .data.open import as_dataset, open_stream, refuse_shuffled
from .data.random import Seed, resolve_seed
from .data.stream import Stream
from .errors import ConfigurationError, MissingAttributeError, public
from .metrics.progress import Limits
from .metrics.result import StepResult
from .optim.build import build_optimizer, build_schedule, check_given, named
from .runtime import Runtime, resolve_runtime
from .runtime.modes import evaluating
from .training import assembly, components, evaluate
from .training.components import Components
from .training.media_log import MediaMethods
from .training.own_steps import is_paced_by_user, refused, update_in_evaluation
from .training.program import (
    Changes,
    Compile,
    Data,
    Display,
    MessageNames,
    Metrics,
    OwnState,
    Precision,
    users_trainer,
)
from .training.run import TrainingRun
from .training.supervised import (
    call_model,
    checked_pair,
    loss_of,
    measure_supervised,
    split_supervised,
    stack_outputs,
)
from .training.updates import OptimizerChoice

if TYPE_CHECKING:
    from .callback import CallbackLike
    from .metrics.history import History
    from .metrics.progress import Progress
    from .optim.build import LossFunction, OptimizerLike, Schedule, SchedulerLike
    from .run.manifest import RunFacts
    from .runtime import Mesh
    from .runtime.base import DeviceFeed
    from .tuning import Tuning


def _refuse_flag(trainer: object, value: object) -> None:
    """Refuse the flags that other frameworks have to stop a run: here they would stop nothing."""
    raise MissingAttributeError(
        "unknown-attribute",
        f"{type(trainer).__name__} has no flag to stop it: call `trainer.stop(reason)`.",
    )


class Trainer(MediaMethods, OwnState, TrainerHooks):
    """Train one or several models. Constructor arguments are the default `configure_*`; override
    what differs.

    The examples of the methods continue this one:
        >>> import torch
        >>> from loopwright import Callback, Trainer
        >>> x = torch.randn(64, 3)
        >>> data = x, x.sum(1, keepdim=True)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, optimizer, torch.nn.functional.mse_loss, progress="silent")
        >>> history = trainer.train(data, num_epochs=5, batch_size=16)
        >>> history["loss"][-1] < history["loss"][0]
        True
    """

    _message_names: MessageNames = MessageNames()
    _interface: str = "native"
    _step_methods: tuple[str, ...] = (
        *("train_step", "compute_loss", "forward", "split_batch", "prepare_batch"),
    )
    _plateau_metric: str | None = "loss"
    # whether schedulers that a step of the user's own steps are left to it
    _leaves_schedules = False
    should_stop = property(fset=_refuse_flag, doc="No flag of this trainer: use `stop(reason)`.")
    stop_training = property(fset=_refuse_flag, doc="No flag of this trainer: use `stop(reason)`.")

    @public
    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        optimizer: OptimizerLike | Mapping[str, OptimizerLike] | None = None,
        loss_fn: LossFunction | None = None,
        *,
        scheduler: SchedulerLike | Mapping[str, SchedulerLike] | None = None,
        metrics: Metrics | None = None,
        callbacks: CallbackLike | Iterable[CallbackLike] | None = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: Precision = "fp32",
        compile: Compile | None = None,  # noqa: A002  (the name that users know)
        device: str | torch.device | None = None,
        runtime: Runtime | Mesh | str | torch.device | None = None,
        seed: int | Literal["auto"] | None = "auto",
        run_dir: str | Path | None = None,
        progress: Display = "auto",
        name: str | None = None,
        tags: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Check and keep the arguments; models are built and moved to the device by `train`,
        `evaluate` or `setup`.

        Args:
            model: A module, or several by name. Not needed where `configure_models` is overridden.
            optimizer: A torch optimizer, a function of the parameters that makes one
                (`functools.partial(torch.optim.AdamW, lr=1e-3)`), or several of either by name.
            loss_fn: A function or module of (outputs, targets) that returns a tensor, a dict of
                named losses, or `(sum, count)`. Not needed where the model returns its loss or
                `compute_loss` is overridden.
            scheduler: A torch scheduler, a function of the optimizer that makes one, a curve of
                `loopwright.schedules`, or a `Schedule` that says how often it is stepped; or
                several by name.
            metrics: Measured in evaluations: "accuracy", functions of (outputs, targets) or
                torchmetrics objects by name, as `{"mae": torch.nn.functional.l1_loss}`. They are
                averaged over samples, as `eval_<name>`.
            callbacks: One or several `Callback` objects, or functions of (trainer, metrics), called
                after every epoch.
            accumulate: Batches per update. The gradient is that of one batch of all their samples.
            clip_norm: Largest norm of the gradients of an update; None for no clipping.
            clip_value: Largest absolute value of a gradient's entry; None for no clipping.
            precision: "fp32", or autocast to "bf16" or "fp16" (with loss scaling).
            compile: "step" compiles the whole training step (docs/compile.md) where it is faster;
                "model" and "blocks" apply `torch.compile` to the model or to its repeated blocks.
            device: "cpu", "cuda", "cuda:1", "mps" or a `torch.device`. Default: a GPU if there is
                one, else the CPU.
            runtime: "ddp", "fsdp", a `Mesh`, a `Runtime`, or a device. Default: DDP if a launcher
                started the program.
            seed: Seeds the weights that `configure_models` makes, the order of samples, and
                randomness in steps and data sets; the program's own generators are not changed.
                Default: the seed of the last `seed_everything`, else 0. None for a different seed
                    in every run.
            run_dir: The directory that the run is recorded in and resumed from; without one nothing
                is written.
            progress: "bar", "lines" or "silent". Default: a bar on a terminal, lines elsewhere.
            name: The name of the run in lists and on the page. Default: that of its directory.
            tags: Words to find the run by.
            config: Your own settings, to be recorded with the run and compared between runs;
                nothing is read from it.
        """
        components.check_class(self, Trainer)
        check_given(model, optimizer, loss_fn, seed=seed)
        components.check_settings(accumulate, clip_norm, clip_value)
        self._given: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
        }
        if isinstance(model, nn.Module):
            self.model: nn.Module = model
        self.loss_fn = loss_fn
        self.callbacks = as_callbacks(callbacks)
        if metrics is not None:
            from .callbacks.metrics import build_callbacks

            self.callbacks += build_callbacks(metrics)
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.runtime = resolve_runtime(runtime, precision, device, compile)
        self.compile_mode = compile or self.runtime.compile
        self._seed = resolve_seed(seed)
        # by name, for callbacks that look at more than the evaluation data
        self.datasets: dict[str, Any] = {}
        self._components = Components()
        self.run: TrainingRun = TrainingRun(
            self, self.runtime, self._components, progress_style=progress
        )
        self.run.files.label = components.check_label(name, tags, config)
        if compile == "step":
            from .training.compiled import CompiledStep

            self.run.compiled = CompiledStep()
        self.run_dir = run_dir
        self.run.bind(self.callbacks)

    # What users and callbacks read

    @property
    def progress(self) -> Progress:
        """The counters of the run: epochs, steps, updates, samples, seconds."""
        return self.run.progress

    @property
    def history(self) -> History:
        """The metrics of all steps and epochs of the run so far."""
        return self.run.history

    @property
    def stop_reason(self) -> str | None:
        """The reason of the first stop request, or None."""
        return self.run.stopping.reason

    @property
    def run_dir(self) -> Path | None:
        """The directory that the run is recorded in, or None. It can be assigned before `train`."""
        return self.run.files.run_dir

    @run_dir.setter
    def run_dir(self, path: str | Path | None) -> None:
        from .checkpoint.manifest import local_path

        self.run.files.run_dir = None if path is None else local_path(path, "run_dir")

    @property
    def seed(self) -> int | None:
        """The seed of the run: the constructor's, or that of the last `seed_everything`."""
        return self._seed.value

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seed = Seed(seed)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The models by name: every module of the trainer that has a state."""
        return self._components.models

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module of the trainer by name, losses and metrics too."""
        return self._components.modules

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by name."""
        return self._components.optimizers

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by name, each with its scheduler and cadence."""
        return self._components.schedules

    # Components

    def setup(self) -> None:
        """Call the `configure_*` methods, once: models first, then optimizers, which need their
        parameters.

        `train`, `evaluate`, `predict`, `save` and `load` call it; call it yourself to look at
        models and optimizers before them.
        """
        assembly.assemble(self)

    def configure_models(self) -> None:
        """Assign the models to self. Default: the constructor's."""
        for name, model in named(self._given["model"], "model").items():
            self.models[name] = model
            if not hasattr(self, name):
                setattr(self, name, model)

    def configure_optimizers(self) -> None:
        """Assign optimizers, and schedulers if any, to self. Default: the constructor's, built if
        it gave factories."""
        for name, given in named(self._given["optimizer"], "optimizer").items():
            owner = self.models.get(name)
            params = owner.parameters if owner is not None else self.parameters
            models = self.modules if owner is None else {name: owner}
            self.optimizers[name] = build_optimizer(given, params, name, models=models)
            if not hasattr(self, name):
                setattr(self, name, self.optimizers[name])
        only = self._components.only_optimizer
        for name, given in named(self._given["scheduler"], "scheduler").items():
            self.schedules[name] = build_schedule(given, self.optimizers.get(name, only))

    def configure_data(self) -> tuple[Any, Any]:
        """Return (training data, evaluation data) for a `train` call without data. Default: an
        error."""
        raise ConfigurationError(
            "no-data", "Trainer has no data: pass it to `train`, or override `configure_data`."
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all models that require gradients, each once."""
        return self._components.parameters()

    # One step, in its parts

    def prepare_batch(self, batch: Any) -> Any:
        """Return the batch for `train_step` and `eval_step`. Default: its tensors moved to the
        device."""
        return self.runtime.move(batch)

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        """Return (inputs, targets) of a batch; targets may be None."""
        return split_supervised(batch, self.loss_fn is not None)

    def forward(self, inputs: Any) -> Any:
        """Return the model's outputs. A dict of inputs is passed as keyword arguments, a tuple as
        positional ones."""
        return call_model(self.model, inputs)

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        """Return a tensor, a dict of named losses (their sum is minimised), or (sum, count) for
        ragged token losses."""
        return loss_of(outputs, targets, self.loss_fn)

    def train_step(self, batch: Any) -> Any:
        """Train on one batch: forward, loss, one `update` of all optimizers. Override it where each
        has its own loss.

        Returns:
            The values to report: a loss, a dict of named values, a `StepResult`, or None.
        """
        pair = self.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
        outputs = self.forward(inputs)
        result = StepResult.of_loss(
            self.compute_loss(outputs, targets), self.run.window.size, outputs
        )
        self.update(result.loss, self.run.updates.all_names, count=result.count)  # type: ignore[arg-type]
        return result

    def eval_step(self, batch: Any) -> Any:
        """Measure one batch in eval mode, without gradients; the returned values are averaged over
        all samples."""
        return measure_supervised(self, batch)

    def predict_step(self, batch: Any) -> Any:
        """Return the outputs of one batch for `predict`, in eval mode and without gradients.
        Default: the model's."""
        return self.forward(self.split_batch(batch)[0])

    def update(
        self,
        loss: Tensor,
        optimizer: OptimizerChoice = None,
        *,
        count: Tensor | float | None = None,
        retain_graph: bool | None = None,
    ) -> None:
        """Backward now; at the end of the accumulation window clip, step, schedule and zero the
        optimizer, or several.

        Args:
            loss: A scalar, not scaled for accumulation. Its gradients go to the parameters of
                `optimizer` only.
            optimizer: The optimizer or its name, or several. Not needed where there is only one.
            count: The number of items that `loss` is a sum over (tokens, say); None where `loss` is
                a mean.
            retain_graph: As for `Tensor.backward`; needed where two updates share a graph.

        Example:
            >>> class Regression(Trainer):
            ...     def train_step(self, batch):
            ...         inputs, targets = batch
            ...         loss = (self.model(inputs) - targets).square().mean()
            ...         self.update(loss)
            ...         return {"loss": loss}
            >>> history = Regression(model, optimizer, progress="silent").train(data, num_epochs=1)
        """
        if self.run.metrics.is_evaluating:
            raise update_in_evaluation(self._message_names)
        try:
            self.run.updates.update(loss, optimizer, count=count, retain_graph=retain_graph)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            from .training.step_checks import refuse_update

            refuse_update(self, loss, count)
            raise

    # Running

    @public
    def train(
        self,
        data: Data | None = None,
        num_epochs: int | None = None,
        eval_data: Data | None = None,
        *,
        num_updates: int | None = None,
        num_samples: int | None = None,
        max_time: float | str | timedelta | None = None,
        batch_size: int | None = None,
        resume: bool | Literal["auto"] | str | Path = "auto",
        changes: Changes = "refuse",
    ) -> History:
        """Train until the first limit is reached (one epoch, if none is given).

        A run in `run_dir` continues where it was. If the program has changed since, that is an
        error.

        Args:
            data: A data set, a DataLoader, inputs and targets as one argument `(x, y)`, or a list
                of batches. Default: the data of `configure_data`.
            num_epochs: Passes over the data, counted from this call.
            eval_data: Evaluated after every epoch; of the same kinds as `data`.
            num_updates: Optimizer updates, counted from this call.
            num_samples: Samples, counted from this call; the last batch is cut to end exactly
                there.
            max_time: Time in training steps, evaluations not included: seconds, "1h30m", or a
                `timedelta`.
            batch_size: Samples per batch, of all processes together, where the data is not in
                batches. Default: 32.
            resume: "auto" continues the run in `run_dir`; False starts a new one; a path continues
                that checkpoint.
            changes: "refuse", or "accept" to continue a run with a changed program and the new
                values.

        Returns:
            The history of the run: `history["loss"]` has a value per epoch, `history.steps["loss"]`
                one per step.

        Example:
            >>> history = trainer.train(data, num_epochs=2, eval_data=data, batch_size=16)
            >>> abs(history["eval_loss"][-1] - trainer.evaluate(data)["loss"]) < 1e-6
            True
        """
        from .training.train_call import run_training

        data = as_dataset(data)
        eval_data = as_dataset(eval_data)
        limits = Limits.given(num_epochs, num_updates, num_samples, max_time)
        return run_training(
            self.run, data, eval_data, limits, batch_size=batch_size, resume=resume, changes=changes
        )

    @public
    def evaluate(self, data: Data, *, batch_size: int | None = None) -> dict[str, float]:
        """Average the values of `eval_step` over every sample once, in eval mode and without
        gradients.

        Args:
            data: A data set, a DataLoader, `(x, y)`, or a list of batches.
            batch_size: Samples per batch, where the data is not in batches. Default: 32.

        Returns:
            The averages by name, such as `{"loss": 0.31, "accuracy": 0.9}`.

        Example:
            >>> list(trainer.evaluate(data, batch_size=64))
            ['loss']
        """
        self.setup()
        stream = data if isinstance(data, Stream) else self._open(data, batch_size, shuffle=False)
        return evaluate.evaluate(self.run, stream)

    @public
    def predict(self, data: Data, *, batch_size: int | None = None) -> Any:
        """Return the model's outputs for all samples in order, in eval mode and without gradients.

        Args:
            data: As for `evaluate`; targets are not needed. A loader that shuffles is refused.
            batch_size: Samples per batch, where the data is not in batches. Default: 32.

        Returns:
            The outputs concatenated, if they are tensors, or dicts or tuples of them; otherwise a
            list of the batches' outputs. In a dict, a number per batch, such as the loss of a
            Hugging Face model, is a tensor of them.

        Example:
            >>> trainer.predict(x).shape
            torch.Size([64, 1])
        """
        refuse_shuffled(data)
        self.setup()
        return stack_outputs(
            evaluate.predict(self.run, self._open(data, batch_size, shuffle=False))
        )

    @public
    def tune(
        self,
        data: Data | None = None,
        *,
        batch_size: int | None = None,
        seconds: float = 2.0,
        only: Iterable[str] | None = None,
    ) -> Tuning:
        """Measure which settings make training faster, and print the lines to change; the trainer
        is not changed.

        Trains with each setting for a few seconds, in turns with the current ones, and then with
        the best together.

        Args:
            data: Training data, as for `train`. Default: the data of `configure_data`.
            batch_size: Samples per batch, where the data is not in batches. Default: 32.
            seconds: The time for each of the two settings that are compared.
            only: What to try: "workers", "batch_size", "compile", "precision", "threads".
                Default: all of these.

        Returns:
            The rows of the table, with `suggestion` (settings by name) and `lines` (code).

        Example:
            >>> tuning = trainer.tune(data, seconds=0.01, only=["batch_size"])
            >>> len(tuning.rows)
            1
        """
        from .tuning.tune import Tuner

        with self.run.generators.of_program():
            tuner = Tuner(self, data, batch_size=batch_size, seconds=seconds, only=only)
            tuning = tuner.run()
            tuner.say("", *tuning.summary(tuning.lines))
        return tuning

    def stop(self, reason: str = "stop() was called") -> None:
        """Request the end of training after the current update; `reason` is printed and
        recorded."""
        self.run.stop(reason)

    def say(self, line: str) -> None:
        """Print a line on the first process, unless the trainer is silent."""
        self.run.say(line)

    @public
    def log(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the current evaluation or epoch: numbers, or objects with `compute` and
        `reset`.

        Example:
            >>> class WeightNorm(Callback):
            ...     def on_train_epoch_end(self, trainer):
            ...         trainer.log({"weight_norm": trainer.model.weight.norm()})
        """
        self.run.log(values)

    def log_step(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the last step, of training or evaluation. Tensors are read later, so no
        step waits for them.

        Example:
            >>> class WeightNorm(Callback):
            ...     def on_update_end(self, trainer):
            ...         trainer.log_step({"weight_norm": trainer.model.weight.norm()})
        """
        self.run.current_meter.add_to_last(values)

    # Files

    @public
    def save(self, path: str | Path) -> None:
        """Write the complete state of this trainer to a checkpoint directory, which `load` reads.

        Example:
            >>> trainer.save("checkpoint")
            >>> trainer.load("checkpoint")
        """
        from .training.state import save_trainer

        self.setup()
        save_trainer(self.run, path)

    @public
    def load(self, path: str | Path) -> None:
        """Load the complete state from a checkpoint. If parts do not fit, they are listed and
        nothing is changed."""
        from .training.restore import load_trainer

        self.setup()
        load_trainer(self.run, path)

    @public
    def load_weights(self, path: str | Path, *, model: str | None = None) -> None:
        """Load the weights of a run's best kept model (or its newest state), of a checkpoint or of
        a file.

        Every name and shape has to fit; a printed line says what was loaded.

        Args:
            path: A run directory, a checkpoint, or a file of weights (safetensors or `.pt`).
            model: The name of the model to load, where there are several.

        Example:
            >>> trainer.export("weights.safetensors")
            >>> trainer.load_weights("weights.safetensors")
        """
        from .optim.initialize import FromCheckpoint

        self.setup()
        FromCheckpoint(path, use="any", model=model, source_model=model).initialize(cast(Any, self))

    @public
    def export(self, path: str | Path) -> None:
        """Write the weights alone, as safetensors or `.pt`; of several models, with the model's
        name as a prefix."""
        from .training.state import export_weights

        self.setup()
        export_weights(self.run, path)

    # What the run asks of its trainer, and interfaces replace (`training.program.Program`)

    @property
    def _has_default_step(self) -> bool:
        return getattr(self.train_step, "__func__", None) is Trainer.train_step

    @property
    def _builds_models(self) -> bool:
        return type(self).configure_models is not Trainer.configure_models

    @property
    def _other_optimizers(self) -> Iterable[Optimizer]:
        return ()

    @property
    def _planned_limits(self) -> Limits:
        return self.run.call.limits

    @property
    def _defers_signals(self) -> bool:
        return False

    def _describe_more(self) -> dict[str, Any]:
        return {}

    def _trainer_given_to(self, callback: Callback) -> Any:
        return self

    def _setup_training(self) -> None:
        self.setup()
        has_default_loss = type(self).compute_loss is Trainer.compute_loss
        if self._has_default_step and type(self).forward is Trainer.forward:
            components.check_default_model(self, self.models)
            if has_default_loss and len(self.optimizers) > 1:
                components.check_default_optimizers(self.model, self.loss_fn, self.optimizers)
        if has_default_loss:
            components.check_reduction(self.loss_fn, self.accumulate, self.runtime.world)
        assembly.assemble_training(self)

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        runtime = self.runtime
        seed = runtime.broadcast_object(torch.initial_seed()) if self.seed is None else self.seed
        stream = open_stream(
            data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=runtime.shard
        )
        for callback in self.run.callbacks:
            stream = callback.adapt_stream(stream, is_training=shuffle)
        return stream

    def _open_feed(self, stream: Stream) -> DeviceFeed | None:
        if getattr(unwrap(self.prepare_batch), "__func__", None) is not Trainer.prepare_batch:
            return None
        return self.runtime.open_feed(pins=stream.pin_memory is None)

    def _adopt_replaced(self) -> None:
        is_training = not self.run.metrics.is_evaluating and bool(self._components.trained)
        (assembly.adopt_in_training if is_training else assembly.adopt_replaced)(self)

    def _train_epoch(self) -> None:
        from .training.steps import train_epoch

        train_epoch(self.run)

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        for schedule in self.schedules.values():
            if schedule.interval == "epoch" and not is_paced_by_user(self.run, schedule.scheduler):
                schedule.step(row)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        assembly.adopt_replaced(self)
        run = self.run
        before = run.metrics.is_evaluating
        run.metrics.is_evaluating = True
        try:
            with evaluating(self.modules.values(), self.optimizers.values()), refused(run):
                yield
                assembly.adopt_replaced(self)  # a model that was assigned for the evaluation only
        finally:
            run.metrics.is_evaluating = before
        self.runtime.reshard()

    def _eval_without_samples(self, batch: Any) -> None:
        if self.runtime.forwards_together:
            evaluate.eval_without_samples(self.run, batch)

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        return users_trainer(self)._restore_own_state(saved, source)

    def _watch_steps(self) -> Any:
        if self._has_default_step:
            return None
        from .training.step_checks import StepWatch

        return StepWatch(self, {} if self._leaves_schedules else self.schedules)

    def _check_trained(self) -> None:
        from .training.step_checks import check_trained

        check_trained(self.run)

    # What callbacks ask of the trainer that they are given

    @property
    def _core(self) -> Trainer:
        """The trainer that owns the run; a callback may have that of an interface instead."""
        return self

    def _capture(self, *, has_history: bool = True) -> dict[str, Any]:
        """Return the complete state for an exact resume; its history only if `has_history`."""
        from .training.state import capture

        return capture(self.run, has_history=has_history)

    def _return_to(self, state: Mapping[str, Any], source: str) -> None:
        """Load a state of this run that `_capture` returned; `source` names it in errors."""
        from .training.restore import return_to

        self.run.window.stage = ""
        self.run.media.renumber()
        return_to(self.run, state, source)

    def _facts(self) -> RunFacts:
        """Return the entries of the manifest, once the data is open and the limits are set."""
        from .training.facts import collect_facts

        return collect_facts(self.run)

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        """Replace the functions of all events, in place."""
        for hooks in self.run.hooks.values():
            hooks[:] = map(function, hooks)

    def _timed_methods(self) -> list[tuple[object, str, str]]:
        """Return the methods that a profile times, as (object, name, part of the time)."""
        methods = {
            "prepare_batch": "transfer",
            "forward": "forward",
            "compute_loss": "forward",
            "save": "checkpoints",
        }
        own = [(self, name, part) for name, part in methods.items() if hasattr(type(self), name)]
        return [*own, (self.run, "flush", "logging")]
