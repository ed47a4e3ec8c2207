"""`BaseTrainer`: write `loss_compute`, and say in the config which parts of a batch are inputs and which targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callbacks.interval import Periodic
from ...errors import ConfigurationError
from ...history import History
from ...progress import Progress
from ...supervised import call_model, describe
from .config import BaseTrainerConfig
from .engine import Engine
from .losses import TrainerResult, result_of


class BaseTrainer:
    """Trains a model on the data set `train` as its config says. Override `loss_compute`, or the whole `train_step`.

    `datasets` are found by callbacks under their keys. `optimizer` and `scheduler` may be objects or factories;
    without an optimizer there is AdamW. With `run_dir`, running again continues an unfinished run.
    """

    def __init__(
        self,
        trainer_config: BaseTrainerConfig,
        *,
        model: nn.Module,
        datasets: Mapping[str, Any],
        optimizer: Any = None,
        scheduler: Any = None,
        seed: int | None = 0,
        run_dir: str | Path | None = None,
        runtime: Any = None,
        progress: str = "auto",
    ) -> None:
        self.config = self._checked(trainer_config)
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
        """The losses of a batch: a dict of them by name, one tensor, or a list or tuple of tensors.

        Together with a dict of additional outputs, which callbacks see, it is a pair: (losses, additional_outputs).
        """
        raise NotImplementedError(f"{type(self).__name__} has no `loss_compute`.")

    def train_step(self, batch: Any, model: nn.Module) -> TrainerResult:
        """One batch through the model and `loss_compute`; the total loss is what the weights are updated by."""
        forward_batch, targets_batch = self._split_batch(batch)
        forward_output = call_model(model, forward_batch, split="_split_batch", forward="train_step")
        return result_of(self.loss_compute(forward_output=forward_output, targets=targets_batch))

    def eval_step(self, batch: Any, model: nn.Module) -> TrainerResult:
        """One batch of an evaluation: as a training step would by default, without gradients."""
        if self.overrides("loss_compute"):
            return BaseTrainer.train_step(self, batch, model)
        return self.train_step(batch, model)

    def _split_batch(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parts of a batch that `forward_properties` and `target_properties` name."""
        if not isinstance(batch, Mapping):
            raise ConfigurationError(
                f"A batch is {describe(batch)}, and forward_properties and target_properties are keys of a dict: let "
                "the data set give dicts, or override `_split_batch`."
            )
        for setting in ("forward_properties", "target_properties"):
            missing = [name for name in getattr(self, setting) if name not in batch]
            if missing:
                raise ConfigurationError(
                    f"{setting} names {', '.join(map(repr, missing))}, which a batch does not have; it has: "
                    f"{', '.join(map(str, batch))}."
                )
        return {name: batch[name] for name in self.forward_properties}, {
            name: batch[name] for name in self.target_properties
        }

    def update(self, loss: Tensor, optimizer: Optimizer | str | None = None) -> None:
        """Update the weights from inside an own `train_step`, which is then not done again with its total loss."""
        self._engine.update(loss, optimizer)

    # Running

    def train(self, *, resume: bool | str | Path = "auto", changes: str = "refuse") -> History:
        """Train up to the limit in the config; `resume` and `changes` as in `loopwright.Trainer.train`."""
        return self._engine.run_to_limit(resume, changes)

    def evaluate(self, dataset_key: str) -> dict[str, float]:
        """The mean losses over every sample of a data set."""
        return self._engine.evaluate(self._engine.dataset(dataset_key))

    def eval(self) -> dict[str, float]:
        """What the evaluation callbacks measure, once; without any, the losses on every data set but `train`."""
        engine = self._engine
        engine.setup()
        found = [c for c in engine.active_callbacks if isinstance(c, Periodic) and c.eval_streams(engine)]
        if found:
            return {name: float(value) for callback in found for name, value in callback.measure(engine).items()}
        keys = [key for key in engine.datasets if key != "train"]
        return {f"{key}_{name}": value for key in keys for name, value in self.evaluate(key).items()}

    def predict(self, dataset_key: str) -> Any:
        """The model's outputs for all samples of a data set, in order."""
        return self._engine.predict(self._engine.dataset(dataset_key))

    def save(self, path: str | Path) -> None:
        """Write the complete state to a checkpoint directory."""
        self._engine.save(path)

    def load(self, path: str | Path) -> None:
        """Take the complete state from a checkpoint."""
        self._engine.load(path)

    def stop(self, reason: str = "stop() was called") -> None:
        """Ask for the end of training after the current update."""
        self._engine.stop(reason)

    # What there is

    @property
    def engine(self) -> Engine:
        """The core trainer that does the work, which is what callbacks are given."""
        return self._engine

    @property
    def model(self) -> nn.Module:
        return self._engine.model

    @property
    def datasets(self) -> dict[str, Any]:
        return self._engine.datasets

    @property
    def optimizer(self) -> Optimizer:
        self._engine.setup()
        return self._engine.optimizers["optimizer"]

    @property
    def device(self) -> torch.device:
        return self._engine.runtime.device

    @property
    def progress(self) -> Progress:
        return self._engine.progress

    @property
    def history(self) -> History:
        return self._engine.history

    def _checked(self, config: Any) -> BaseTrainerConfig:
        """Refuse what could not take a single step."""
        name = type(self).__name__
        if not isinstance(config, BaseTrainerConfig):
            raise ConfigurationError(
                f"{name} was given a {type(config).__name__} as its config: pass a BaseTrainerConfig, such as "
                "BaseTrainerConfig(max_epochs=1, ...)."
            )
        if self.overrides("train_step"):
            return config
        if not self.overrides("loss_compute"):
            raise ConfigurationError(f"{name} computes no loss: override `loss_compute`, or the whole `train_step`.")
        if not config.forward_properties and not self.overrides("_split_batch"):
            raise ConfigurationError(
                f"{name} has no forward_properties: name the keys of a batch that the model gets, or override "
                "`_split_batch`."
            )
        return config

    def _callbacks(self, config: BaseTrainerConfig) -> list[Any]:
        """The config's callbacks, with the initializer, which is one too, in front."""
        return [*([] if config.initializer is None else [config.initializer]), *config.callbacks]

    def overrides(self, name: str) -> bool:
        """Whether a subclass has a method of its own by this name."""
        return getattr(type(self), name) is not getattr(BaseTrainer, name)
