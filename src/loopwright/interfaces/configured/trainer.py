"""`BaseTrainer`: write `loss_compute`, and say in the config which parts of a batch are inputs and
which targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callbacks.interval import Periodic
from ...errors import ConfigurationError
from ...metrics.history import History
from ...metrics.progress import Progress
from ...text import near_names
from ...training.program import Changes, Display
from ...training.run import TrainingRun
from ...training.supervised import call_model, describe
from ...training.updates import OptimizerChoice
from .._shared import LoggingTrainer, is_overridden
from .checks import check_methods, check_models, checked_config, refuse_unknown_optimizers
from .config import BaseTrainerConfig
from .engine import Engine
from .losses import TrainerResult, result_of


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
        check_methods(self)
        self.config = checked_config(self, trainer_config)
        check_models(self, model)
        self.forward_properties = list(trainer_config.forward_properties)
        self.target_properties = list(trainer_config.target_properties)
        self._engine = Engine(
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
                f"{type(self).__name__} has several models ({', '.join(model)}), so it must "
                "define the predictions: override `predict_step(self, batch, model)`, where "
                "`model` is the dict of them."
            )
        return call_model(
            model, self._split_batch(batch)[0], split="_split_batch", forward="predict_step"
        )

    def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (forward_batch, targets_batch): the entries that the two lists of properties
        name."""
        if not isinstance(batch, Mapping):
            raise ConfigurationError(
                f"A batch is {describe(batch)}, but forward_properties and target_properties are "
                "keys of a dict: return dicts from the data set, or override `_split_batch`."
            )
        for setting in ("forward_properties", "target_properties"):
            missing = [name for name in getattr(self, setting) if name not in batch]
            if missing:
                near = near_names(missing[0], [str(name) for name in batch])
                hint = f" Did you mean {' or '.join(near)}?" if near else ""
                raise ConfigurationError(
                    f"{setting} names {', '.join(map(repr, missing))}, which a batch does not "
                    f"have; it has: {', '.join(map(str, batch))}.{hint} Correct the setting, or "
                    "return this key from the data set."
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
        self._engine.update(loss, optimizer, retain_graph=retain_graph)

    # Running

    def train(self, *, resume: bool | str | Path = "auto", changes: Changes = "refuse") -> History:
        """Train up to the limit in the config and return the history.

        Args:
            resume: "auto" continues an unfinished run in `run_dir`, False starts anew, a path
                continues from it.
            changes: "refuse" ends with an error if the program differs from the one that began the
                run; "accept" continues with the new values.
        """
        refuse_unknown_optimizers(self)
        return self._engine.run_to_limit(resume, changes)

    def evaluate(self, dataset_key: Any) -> dict[str, float]:
        """Return the mean losses over all samples of a data set, given by its key in `datasets` or
        as an object."""
        return self._engine.evaluate(self._engine.data_of(dataset_key))

    def eval(self) -> dict[str, float]:
        """Run the evaluation callbacks once and return what they measure; without any, evaluate all
        but `train`."""
        engine = self._engine
        engine.setup()
        callbacks = [
            (c, engine._trainer_for(c)) for c in engine.run.callbacks if isinstance(c, Periodic)
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
        return self._engine.predict(self._engine.data_of(dataset_key))

    def save(self, path: str | Path) -> None:
        """Write the whole state to a checkpoint directory."""
        self._engine.save(path)

    def load(self, path: str | Path) -> None:
        """Restore the whole state from a checkpoint."""
        self._engine.load(path)

    def export(self, path: str | Path) -> None:
        """Write the weights alone to one file, `.safetensors` or `.pt`."""
        self._engine.export(path)

    def stop(self, reason: str = "stop() was called") -> None:
        """End training after the current update."""
        self._engine.stop(reason)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log metrics of the current epoch or evaluation."""
        self._engine.log(values)

    def log_step(self, values: Mapping[str, Any]) -> None:
        """Log metrics of the training step that has just ended."""
        self._engine.log_step(values)

    # What there is

    @property
    def _logged_run(self) -> TrainingRun:
        return self._engine.run

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """Whatever else a callback may want of a trainer: `runtime`, `run`, a model by its
            name, ..."""
            if name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            engine = vars(self).get("_engine")
            if engine is None:
                what = "used" if name == "_engine" else f"asked for `{name}`"
                raise ConfigurationError(
                    f"{type(self).__name__} is {what} before it is initialised: in its "
                    "`__init__`, call `super().__init__(trainer_config, **kwargs)` first."
                )
            try:
                return getattr(engine, name)
            except AttributeError:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}"
                ) from None

    @property
    def engine(self) -> Engine:
        """The core trainer that does the work."""
        return self._engine

    @property
    def _core(self) -> Engine:
        """The same, for callbacks that ship and are given this trainer by a subclass of theirs."""
        return self._engine

    @property
    def model(self) -> Any:
        """The model, or a dict of several by name; can be assigned."""
        return self._engine.interface_model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._engine.replace_given("model", model)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The models by their names; a single one is called `model`."""
        return self._engine.named_models

    @property
    def datasets(self) -> dict[str, Any]:
        """The data sets by key; can be assigned."""
        return self._engine.datasets

    @datasets.setter
    def datasets(self, datasets: Mapping[str, Any]) -> None:
        self._engine.datasets = dict(datasets)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, if there is one only; can be assigned."""
        optimizers = self.optimizers
        if len(optimizers) != 1:
            raise ConfigurationError(
                f"The optimizers are {', '.join(optimizers) or '(none)'}: use "
                "`self.optimizers[name]`, or `self.update(loss, name)`."
            )
        return next(iter(optimizers.values()))

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self._engine.replace_given("optimizer", optimizer)

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by the names of their models; a single one is called `optimizer`."""
        self._engine.setup()
        return self._engine.optimizers

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None; can be assigned."""
        self._engine.setup()
        schedule = self._engine.schedules.get("scheduler")
        return None if schedule is None else schedule.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        self._engine.replace_given("scheduler", scheduler)

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return self._engine.runtime.device

    @property
    def progress(self) -> Progress:
        """The counts of the run: `epoch`, `update`, `step` and `samples`."""
        return self._engine.progress

    @property
    def history(self) -> History:
        """The metrics so far, by epoch and by step."""
        return self._engine.history

    def _callbacks(self, config: BaseTrainerConfig) -> list[Any]:
        """The config's callbacks, with the initializer, which is one too, in front."""
        return [*([] if config.initializer is None else [config.initializer]), *config.callbacks]

    def overrides(self, name: str) -> bool:
        """Whether a subclass has a method of its own by this name."""
        return is_overridden(type(self), name, BaseTrainer)
