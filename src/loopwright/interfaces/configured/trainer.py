"""`BaseTrainer` and its settings, as they stand under `trainer:` in a run file: write
`loss_compute`, and say in the config which parts of a batch are inputs and which targets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callback import Callback, TrainerHooks, hook_names
from ...callbacks.interval import Periodic
from ...config.kinds import Place
from ...errors import ConfigurationError
from ...initializers import Initializer
from ...metrics.history import History
from ...metrics.progress import Progress
from ...text import nearest
from ...training import program
from ...training.program import Changes, Display
from ...training.supervised import call_model, describe
from ...training.updates import OptimizerChoice
from .._shared import LoggingTrainer, is_overridden
from .core import NAMES, ConfiguredCore, TrainerResult, result_of

CALLBACK = Place("callback", Callback)
INITIALIZER = Place(
    "initializer",
    Initializer,
    short={"FromCheckpoint": "loopwright.initializers.FromCheckpoint"},
)
Count = Annotated[StrictInt, Field(ge=0)]
Positive = Annotated[StrictInt, Field(ge=1)]
Precision = Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"]

UNITS = ("epochs", "updates", "samples")
LIMITS = tuple(f"max_{unit}" for unit in UNITS)
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class BaseTrainerConfig(BaseModel):
    """The settings of every configured trainer; a subclass adds fields of its own. Unknown keys are
    refused."""

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    kind: str | None = None
    """The trainer class; its annotation of `trainer_config` decides its settings."""
    max_epochs: Count | None = None
    """How long to train, in epochs. Give exactly one of the three limits."""
    max_updates: Count | None = None
    """How long to train, in updates of the weights."""
    max_samples: Count | None = None
    """How long to train, in samples; training ends exactly there."""
    effective_batch_size: Positive = 32
    """Samples in one update, over all processes."""
    max_batch_size: Positive | None = None
    """Samples that go through the model at once. A larger update is several equal batches."""
    num_workers: Count = 0
    """Worker processes that read the training data."""
    precision: Precision = "fp32"
    """The precision of the forward pass."""
    callbacks: list[Annotated[Any, CALLBACK]] | None = None
    """Callbacks of `loopwright.callbacks`, or your own."""
    initializer: Annotated[Any, INITIALIZER] = None
    """First weights from an earlier run: `{kind: FromCheckpoint, path: ...}`."""
    start_at_epoch: Count | None = None
    """Count as if this number of epochs were done; their data is not read."""
    forward_properties: list[str] | None = None
    """Keys of a batch that are passed to the model, as keyword arguments."""
    target_properties: list[str] | None = None
    """Keys of a batch that `loss_compute` gets."""
    log_every_n_epochs: Positive | None = None
    """Print progress and remaining time every n epochs."""
    log_every_n_updates: Positive | None = None
    """The same every n updates; at most one of the three."""
    log_every_n_samples: Positive | None = None
    """The same every n samples."""
    track_every_n_epochs: Positive | None = None
    """Record the mean losses as `online_loss` every n epochs."""
    track_every_n_updates: Positive | None = None
    """The same every n updates; at most one of the three."""
    track_every_n_samples: Positive | None = None
    """The same every n samples."""
    skip_nan_loss: StrictBool = False
    """Skip updates whose loss is not finite, instead of an error."""
    skip_nan_loss_max_count: Count = 100
    """How many updates a run may skip before it is an error."""
    use_torch_compile: StrictBool | Literal["step"] = False
    """Compile the model with torch.compile; with `step` the whole training step as one graph."""
    find_unused_params: StrictBool = False
    """List the parameters without a gradient in the first update."""
    save_on_sigint: StrictBool = True
    """On Ctrl-C, finish the update and save; false ends at once."""

    # Settings of the published system that change nothing here: another value is refused
    static_graph: Literal[False] = False
    """Only false: graphs may change from step to step."""
    disable_gradient_accumulation: Literal[False] = False
    """Only false: leave `max_batch_size` out, and nothing is accumulated."""
    add_default_callbacks: Literal[True] = True
    """Only true: what a run needs is there without being listed in `callbacks`."""
    add_trainer_callbacks: Literal[True] = True
    """Only true: a hook of the trainer's own is called before the callbacks'."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse settings that contradict each other."""
        given = [name for name in LIMITS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of {', '.join(LIMITS)} must set how long to train; found "
                f"{' and '.join(given) or 'none of them'}"
            )
        for what in ("log", "track"):
            names = [f"{what}_every_n_{unit}" for unit in UNITS]
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"one of {' and '.join(given)} at most")
        return self

    @property
    def accumulate(self) -> int:
        """Batches in an update: as few as `max_batch_size` allows, and all of one size."""
        largest = min(self.max_batch_size or self.effective_batch_size, self.effective_batch_size)
        return next(
            count
            for count in range(
                -(-self.effective_batch_size // largest), self.effective_batch_size + 1
            )
            if self.effective_batch_size % count == 0
        )

    @property
    def batch_size(self) -> int:
        """Samples that go through the model at once, on all processes together."""
        return self.effective_batch_size // self.accumulate

    @property
    def core_precision(self) -> program.Precision:
        return cast("program.Precision", PRECISIONS.get(self.precision, self.precision))


class BaseTrainer(LoggingTrainer):
    """Trains a model on the data set `train` as its config says. Override `loss_compute`, or the
    whole `train_step`.

    Callbacks get this trainer. Attributes that it does not have are looked up in the core trainer,
    `engine`.

    Args:
        trainer_config: The settings, a `BaseTrainerConfig` or a subclass.
        model: The module, or several by name.
        datasets: Data sets by key: `train` is trained on, the others are for callbacks.
        optimizer: A torch optimizer, or a function of the parameters that makes one; for several
            models a dict by the models' names. Default: AdamW.
        scheduler: A torch scheduler, or a function of the optimizer that makes one; or a dict,
            likewise.
        seed: Seeds the weights, the order of samples and randomness in data sets. Default: the seed
            of the last `seed_everything`, else 0. None for another in every run.
        run_dir: The directory of the run. Running again continues an unfinished run.
        runtime: As for `loopwright.Trainer`.
        progress: "bar", "lines" or "silent". Default: a bar on a terminal, lines elsewhere.

    Example:
        >>> import torch
        >>> from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig
        >>> class Regression(BaseTrainer):
        ...     def loss_compute(self, forward_output, targets):
        ...         return {"mse": (forward_output - targets["y"]).square().mean()}
        >>> data = [{"input": torch.ones(2), "y": torch.ones(1)} for _ in range(8)]
        >>> config = BaseTrainerConfig(
        ...     forward_properties=["input"], target_properties=["y"], effective_batch_size=4, max_updates=2
        ... )
        >>> trainer = Regression(config, model=torch.nn.Linear(2, 1), datasets={"train": data}, progress="silent")
    """

    _init_arguments = "trainer_config, **kwargs"

    def __init__(
        self,
        trainer_config: BaseTrainerConfig,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        datasets: Mapping[str, Any],
        optimizer: Any = None,
        scheduler: Any = None,
        seed: int | Literal["auto"] | None = "auto",
        run_dir: str | Path | None = None,
        runtime: Any = None,
        progress: Display = "auto",
    ) -> None:
        NAMES.check_trainer(self)
        self._check_hooks()
        has_own = any(map(self.overrides, ("train_step", "_split_batch")))
        if not trainer_config.forward_properties and not has_own:
            raise ConfigurationError(
                "no-forward-properties",
                f"{type(self).__name__} has no forward_properties: list the keys of a batch to "
                "pass to the model, or override `_split_batch`.",
            )
        self.config = trainer_config
        self.forward_properties = trainer_config.forward_properties or []
        self.target_properties = trainer_config.target_properties or []
        callbacks = list(trainer_config.callbacks or ())
        if trainer_config.initializer is not None:  # a callback, too
            callbacks.insert(0, trainer_config.initializer)
        self._core = ConfiguredCore(
            self,
            model=model,
            datasets=datasets,
            optimizer=optimizer,
            scheduler=scheduler,
            callbacks=callbacks,
            seed=seed,
            run_dir=run_dir,
            runtime=runtime,
            progress=progress,
        )

    # The parts of a step

    def loss_compute(self, forward_output: Any, targets: dict[str, Any]) -> Any:
        """Return the losses of a batch: a dict of named losses, one tensor, or a list or tuple of
        tensors.

        A pair (losses, additional_outputs) also passes a dict of additional outputs to the
        callbacks.
        """
        raise NotImplementedError(
            f"{type(self).__name__} computes no loss: override `loss_compute`, or the whole "
            "`train_step`."
        )

    def train_step(self, batch: Any, model: Any) -> TrainerResult:
        """Call `_split_batch`, the model and `loss_compute` for one batch. The total loss is
        optimised.

        `model` is the model, or a dict of several: then override this method and call `self.update`
        for each.
        """
        forward_batch, targets_batch = self._split_batch(batch)
        forward_output = call_model(
            model, forward_batch, split="_split_batch", forward="train_step"
        )
        losses = self.loss_compute(forward_output=forward_output, targets=targets_batch)
        return result_of(losses)

    def eval_step(self, batch: Any, model: Any) -> TrainerResult:
        """Measure one batch of an evaluation, in eval mode without gradients. Default:
        `train_step`."""
        return self.train_step(batch, model)

    def predict_step(self, batch: Any, model: Any) -> Any:
        """Return the predictions for one batch. Default: the model's outputs."""
        return call_model(
            model, self._split_batch(batch)[0], split="_split_batch", forward="predict_step"
        )

    def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (forward_batch, targets_batch): the entries that the two lists of properties
        name."""
        known = batch if isinstance(batch, Mapping) else {}
        for name in (*self.forward_properties, *self.target_properties):
            if name not in known:
                raise ConfigurationError(
                    "unknown-property",
                    f"forward_properties or target_properties names {name!r}, which a batch, "
                    f"{describe(batch)}, does not have; {nearest(name, known)} Correct the "
                    "setting, return dicts with this key from the data set, or override "
                    "`_split_batch`.",
                )
        forward_batch = {name: batch[name] for name in self.forward_properties}
        targets_batch = {name: batch[name] for name in self.target_properties}
        return forward_batch, targets_batch

    def update(
        self, loss: Tensor, optimizer: OptimizerChoice = None, *, retain_graph: bool | None = None
    ) -> None:
        """Update the weights inside your own `train_step`: backward, averages and the optimizer's
        step.

        The total loss that the step returns is then only reported. With several optimizers,
        `optimizer` is the name of one, `self.update(loss, "generator")`, or of those that share the
        loss, `self.update(loss, ["muon", "adamw"])`.
        """
        self._core.update(loss, optimizer, retain_graph=retain_graph)

    # Running

    def train(self, *, resume: bool | str | Path = "auto", changes: Changes = "refuse") -> History:
        """Train up to the limit in the config and return the history.

        Args:
            resume: "auto" continues an unfinished run in `run_dir`, False starts anew, a path
                continues from it.
            changes: "refuse" ends with an error if the program differs from the one that began the
                run; "accept" continues with the new values.
        """
        core = self._core
        core.refuse_other_optimizers()
        data = core.training_data()
        config = self.config
        at = core.progress
        has_run = core.run.call.number > 0
        if config.start_at_epoch and not has_run:
            core.start_late(data, config.start_at_epoch)
        epochs = _rest(config.max_epochs, at.epoch)
        updates = _rest(config.max_updates, at.update)
        samples = _rest(config.max_samples, at.sample)
        if has_run and 0 in (epochs, updates, samples):
            return core.history
        return core.train(
            data, epochs, num_updates=updates, num_samples=samples, resume=resume, changes=changes
        )

    def evaluate(self, dataset_key: Any) -> dict[str, float]:
        """Return the mean losses over all samples of a data set, given by its key in `datasets` or
        as an object."""
        return self._core.evaluate(self._core.dataset(dataset_key))

    def eval(self) -> dict[str, float]:
        """Run the evaluation callbacks once and return what they measure; without any, evaluate all
        but `train`."""
        engine = self._core
        engine.setup()
        callbacks = [
            (c, engine._trainer_given_to(c))
            for c in engine.run.callbacks
            if isinstance(c, Periodic)
        ]
        found = [(callback, given) for callback, given in callbacks if callback.eval_streams(given)]
        if found:
            return {
                name: float(value)
                for callback, given in found
                for name, value in callback.measure(given).items()
            }
        keys = [key for key in engine.datasets if key != "train"]
        return {
            f"{key}_{name}": value for key in keys for name, value in self.evaluate(key).items()
        }

    def predict(self, dataset_key: Any) -> Any:
        """Return what `predict_step` returns for all samples of a data set, in order."""
        return self._core.predict(self._core.dataset(dataset_key))

    # What there is

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """Whatever else a callback may want of a trainer: `runtime`, `run`, a model by its
            name, ..."""
            if "_core" in vars(self) and not name.startswith("__"):
                with suppress(AttributeError):
                    return getattr(self._core, name)
            return super().__getattr__(name)  # raises

    @property
    def engine(self) -> ConfiguredCore:
        """The core trainer that does the work."""
        return self._core

    @property
    def model(self) -> Any:
        """The model, or a dict of several by name."""
        return self._core.interface_model

    @property
    def models(self) -> dict[str, nn.Module]:
        """The models by their names; a single one is called `model`."""
        return self._core.named_models

    @property
    def datasets(self) -> dict[str, Any]:
        """The data sets by key; can be assigned."""
        return self._core.datasets

    @datasets.setter
    def datasets(self, datasets: Mapping[str, Any]) -> None:
        self._core.datasets = dict(datasets)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, if there is one only."""
        optimizers = self.optimizers
        if len(optimizers) != 1:
            raise ConfigurationError(
                "several-optimizers",
                f"The optimizers are {', '.join(optimizers) or '(none)'}: use "
                "`self.optimizers[name]`, or `self.update(loss, name)`.",
            )
        return next(iter(optimizers.values()))

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by the names of their models; a single one is called `optimizer`."""
        self._core.setup()
        return self._core.optimizers

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None."""
        self._core.setup()
        schedule = self._core.schedules.get("scheduler")
        return None if schedule is None else schedule.scheduler

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return self._core.runtime.device

    @property
    def progress(self) -> Progress:
        """The counts of the run: `epoch`, `update`, `step` and `samples`."""
        return self._core.progress

    @property
    def history(self) -> History:
        """The metrics so far, by epoch and by step."""
        return self._core.history

    def overrides(self, name: str) -> bool:
        """Whether a subclass has a method of its own by this name."""
        return is_overridden(type(self), name, BaseTrainer)

    # Checks

    def _check_hooks(self) -> None:
        """Refuse events on the trainer, which would never be called."""
        for name in hook_names(TrainerHooks):
            if callable(getattr(type(self), name, None)):
                raise ConfigurationError(
                    "event-on-trainer",
                    f"{type(self).__name__}.{name} would never be called: events belong to "
                    "callbacks. Put it into a subclass of loopwright.Callback, with `trainer` as "
                    "its first argument, and list that class under `callbacks`.",
                )


def _rest(limit: int | None, done: int) -> int | None:
    return None if limit is None else max(limit - done, 0)
