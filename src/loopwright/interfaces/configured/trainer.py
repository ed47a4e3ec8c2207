"""`BaseTrainer`: write `loss_compute`, and say in the config which parts of a batch are inputs and
which targets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callback import TrainerHooks, hook_names
from ...callbacks.interval import Periodic
from ...errors import ConfigurationError
from ...metrics.history import History
from ...metrics.progress import Progress
from ...text import nearest
from ...training.program import Changes, Display
from ...training.supervised import call_model, describe
from ...training.updates import OptimizerChoice
from .._shared import LoggingTrainer, is_overridden
from .config import BaseTrainerConfig
from .core import NAMES, ConfiguredCore, TrainerResult, result_of


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
        self._check_config(trainer_config)
        self._check_several(model)
        self.config = trainer_config
        self.forward_properties = list(trainer_config.forward_properties)
        self.target_properties = list(trainer_config.target_properties)
        self._core = ConfiguredCore(
            self,
            model=model,
            datasets=datasets,
            optimizer=optimizer,
            scheduler=scheduler,
            callbacks=self._callbacks(trainer_config),
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
        raise NotImplementedError(f"{type(self).__name__} has no `loss_compute`.")

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
        try:
            losses = self.loss_compute(forward_output=forward_output, targets=targets_batch)
        except KeyError as error:
            error.add_note(
                f"`loss_compute` was given forward_output={describe(forward_output)} and "
                f"targets={describe(targets_batch)}. Name the keys of a batch that it needs in "
                "target_properties."
            )
            raise
        return result_of(losses)

    def eval_step(self, batch: Any, model: Any) -> TrainerResult:
        """Measure one batch of an evaluation, in eval mode without gradients. Default:
        `train_step`."""
        return self.train_step(batch, model)

    def predict_step(self, batch: Any, model: Any) -> Any:
        """Return the predictions for one batch. Default: the model's outputs."""
        if isinstance(model, Mapping):
            raise ConfigurationError(
                "no-predict-step",
                f"{type(self).__name__} has several models ({', '.join(model)}), so it must "
                "define the predictions: override `predict_step(self, batch, model)`, where "
                "`model` is the dict of them.",
            )
        return call_model(
            model, self._split_batch(batch)[0], split="_split_batch", forward="predict_step"
        )

    def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (forward_batch, targets_batch): the entries that the two lists of properties
        name."""
        if not isinstance(batch, Mapping):
            raise ConfigurationError(
                "batch-no-dict",
                f"A batch is {describe(batch)}, but forward_properties and target_properties are "
                "keys of a dict: return dicts from the data set, or override `_split_batch`.",
            )
        for setting in ("forward_properties", "target_properties"):
            missing = [name for name in getattr(self, setting) if name not in batch]
            if missing:
                raise ConfigurationError(
                    "unknown-property",
                    f"{setting} names {', '.join(map(repr, missing))}, which a batch does not "
                    f"have; {nearest(missing[0], batch)} Correct the setting, or return this key "
                    "from the data set.",
                )
        return {name: batch[name] for name in self.forward_properties}, {
            name: batch[name] for name in self.target_properties
        }

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
        return self._core.run_to_limit(resume, changes)

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

    def save(self, path: str | Path) -> None:
        """Write the whole state to a checkpoint directory."""
        self._core.save(path)

    def load(self, path: str | Path) -> None:
        """Restore the whole state from a checkpoint."""
        self._core.load(path)

    def export(self, path: str | Path) -> None:
        """Write the weights alone to one file, `.safetensors` or `.pt`."""
        self._core.export(path)

    def stop(self, reason: str = "stop() was called") -> None:
        """End training after the current update."""
        self._core.stop(reason)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log metrics of the current epoch or evaluation."""
        self._core.log(values)

    def log_step(self, values: Mapping[str, Any]) -> None:
        """Log metrics of the training step that has just ended."""
        self._core.log_step(values)

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
        """The model, or a dict of several by name; can be assigned."""
        return self._core.interface_model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._core.replace_given("model", model)

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
        """The optimizer, if there is one only; can be assigned."""
        optimizers = self.optimizers
        if len(optimizers) != 1:
            raise ConfigurationError(
                "several-optimizers",
                f"The optimizers are {', '.join(optimizers) or '(none)'}: use "
                "`self.optimizers[name]`, or `self.update(loss, name)`.",
            )
        return next(iter(optimizers.values()))

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._core.replace_given("optimizer", optimizer)

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by the names of their models; a single one is called `optimizer`."""
        self._core.setup()
        return self._core.optimizers

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None; can be assigned."""
        self._core.setup()
        schedule = self._core.schedules.get("scheduler")
        return None if schedule is None else schedule.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        self._core.replace_given("scheduler", scheduler)

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

    def _callbacks(self, config: BaseTrainerConfig) -> list[Any]:
        """The config's callbacks, with the initializer, which is one too, in front."""
        return [*([] if config.initializer is None else [config.initializer]), *config.callbacks]

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

    def _check_config(self, config: Any) -> None:
        """Refuse what could not take a single step."""
        name = type(self).__name__
        if not isinstance(config, BaseTrainerConfig):
            raise ConfigurationError(
                "no-trainer-config",
                f"{name} was given {describe(config)} as its config: pass a BaseTrainerConfig, "
                "such as BaseTrainerConfig(max_epochs=1, ...).",
            )
        if self.overrides("train_step"):
            return
        if not self.overrides("loss_compute"):
            raise ConfigurationError(
                "no-loss-compute",
                f"{name} computes no loss: override `loss_compute`, or the whole `train_step`.",
            )
        if not config.forward_properties and not self.overrides("_split_batch"):
            raise ConfigurationError(
                "no-forward-properties",
                f"{name} has no forward_properties: list the keys of a batch to pass to the model, "
                "or override `_split_batch`.",
            )

    def _check_several(self, model: Any) -> None:
        """Refuse several models where nothing says what to do with them."""
        if isinstance(model, Mapping) and not self.overrides("train_step"):
            raise ConfigurationError(
                "several-models",
                f"{type(self).__name__} has several models ({', '.join(model)}), but the default "
                "`train_step` calls only one: override `train_step(self, batch, model)`, where "
                "`model` is the dict of them, and call `self.update(loss, name)` for each "
                "optimizer.",
            )
