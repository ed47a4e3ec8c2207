"""The trainer: what users construct, call and override. The state of a run is in `training.run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .callback import as_callbacks
from .data.open import as_dataset, refuse_shuffled
from .data.random import resolve_seed
from .data.stream import Stream
from .errors import ConfigurationError, public
from .metrics.progress import Limits
from .metrics.result import StepResult
from .optim.build import build_optimizer, build_schedule, check_given, named
from .runtime import Runtime, resolve_runtime
from .training import components, evaluate
from .training.components import Components
from .training.default_program import DefaultProgram
from .training.program import Changes, Compile, Data, Display, Metrics, Precision
from .training.run import TrainingRun
from .training.supervised import call_model, checked_pair, loss_of, split_supervised, stack_outputs
from .training.updates import OptimizerChoice

if TYPE_CHECKING:
    from .callback import CallbackLike
    from .metrics.history import History
    from .optim.build import LossFunction, OptimizerLike, SchedulerLike
    from .runtime import Mesh
    from .tuning import Tuning


class Trainer(DefaultProgram):
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
        check_given(model, optimizer, loss_fn, run_dir=run_dir, seed=seed)
        components.check_settings(accumulate, clip_norm, clip_value)
        self._label = components.check_label(name, tags, config)
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
            from .callbacks.metric_functions import build_callbacks

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
        self.run = TrainingRun(self, self.runtime, self._components, progress_style=progress)
        if compile == "step":
            from .training.compiled_step import CompiledStep

            self.run.compiled = CompiledStep()
        self.run_dir = run_dir
        self.run.bind(self.callbacks)

    # Components

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
            "Trainer has no data: pass it to `train`, or override `configure_data`."
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all models that require gradients, each once."""
        return self._components.parameters()

    # One step, in its parts

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
        pair = self.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
        outputs = self.forward(inputs)
        return StepResult.of_loss(
            self.compute_loss(outputs, targets), self.run.window.size, outputs
        )

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
        if self.run.is_evaluating:
            self._check_update(loss, count)
        try:
            self.run.updates.update(loss, optimizer, count=count, retain_graph=retain_graph)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            self._check_update(loss, count)
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
            only: What to try: "workers", "batch_size", "compile", "precision", "threads",
                "channels_last", "fused", "pin_memory". Default: all of these.

        Returns:
            The rows of the table, with `suggestion` (settings by name) and `lines` (code).

        Example:
            >>> tuning = trainer.tune(data, seconds=0.01, only=["batch_size"])
            >>> len(tuning.rows)
            1
        """
        from .tuning.tune import Tuner

        with self.run.generators.of_program():
            return Tuner(self, data, batch_size=batch_size, seconds=seconds, only=only).tell()

    def stop(self, reason: str = "stop() was called") -> None:
        """Request the end of training after the current update; `reason` is printed and
        recorded."""
        self.run.stop(reason)

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

    # What the defaults above are

    @property
    def _has_default_step(self) -> bool:
        return getattr(self.train_step, "__func__", None) is Trainer.train_step

    @property
    def _has_default_update(self) -> bool:
        return type(self).update is Trainer.update

    def _measure_as_default(self, batch: Any) -> Any:
        return Trainer.eval_step(self, batch)

    @property
    def _builds_models(self) -> bool:
        return type(self).configure_models is not Trainer.configure_models

    def _check_defaults(self) -> None:
        if self._has_default_step and type(self).forward is Trainer.forward:
            components.check_default_model(self, self.models)
            if type(self).compute_loss is Trainer.compute_loss and len(self.optimizers) > 1:
                components.check_default_optimizers(self.model, self.loss_fn, self.optimizers)
        if type(self).compute_loss is Trainer.compute_loss:
            components.check_reduction(self.loss_fn, self.accumulate, self.runtime.world)
