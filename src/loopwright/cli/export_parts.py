"""The model of a run and a batch for it, built again from the config in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._torch_compat import tree_map
from ..errors import ConfigurationError
from ..run.reading import CONFIG, RunView

if TYPE_CHECKING:
    from ..trainer import Trainer

BATCH_SIZE = 4


def model_and_inputs(run: RunView, weights: Mapping[str, Tensor], name: str | None) -> tuple[nn.Module, Any]:
    """The model with these weights, and inputs from the run's own data."""
    if run.config is None:
        raise ConfigurationError(
            f"{run.path} has no {CONFIG}, and weights alone do not say how they are computed with: the run was not "
            "started from a config. Build the model in Python, load the weights with "
            "loopwright.checkpoint.load_weights, and call torch.onnx.export."
        )
    from ..config import beside
    from ..doors.configured.experiment import Experiment

    experiment = Experiment.from_run(run.path, progress="silent")
    experiment.build()
    assert experiment.trainer is not None
    trainer = experiment.trainer.engine
    trainer.setup()
    module = _module(trainer.models, name)
    module.load_state_dict(dict(weights))
    with beside(experiment.config.folder):
        return module, example_inputs(trainer, trainer.dataset("train"))


def example_inputs(trainer: Trainer, data: Any) -> Any:
    """What the model is called with for the first few samples, on the CPU."""
    size = BATCH_SIZE if isinstance(data, torch.utils.data.Dataset) else None
    stream = trainer.open(data, size, shuffle=False)
    try:
        stream.begin(0)
        for batch, _, _ in stream.take(1):
            inputs, _ = trainer.split_batch(trainer.prepare_batch(batch))
            if isinstance(inputs, Mapping) and not inputs:
                raise ConfigurationError(
                    "trainer.forward_properties is empty, so it is not known what the model is called with: name the "
                    "keys of a batch that it gets, or override `_split_batch`."
                )
            return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, inputs)
    finally:
        stream.close()
    raise ConfigurationError("The training data of the run is empty, so there is nothing to try the model on.")


def _module(models: Mapping[str, nn.Module], name: str | None) -> nn.Module:
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None or name not in models:
        raise ConfigurationError(f"The run trains the models {', '.join(models)}: say which with --model.")
    return models[name]
