"""The argument `compile` of the trainer: what it accepts, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Runtime, Trainer
from loopwright.errors import ConfigurationError


def trainer_with(**arguments: Any) -> Trainer:
    model = nn.Linear(2, 1)
    return Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), device="cpu", **arguments
    )


@pytest.mark.parametrize(
    ("what", "runtime"), [(None, None), ("step", None), ("model", "model"), ("blocks", "blocks")]
)
def test_the_model_and_its_blocks_are_compiled_by_the_runtime_and_the_step_is_not(
    what: Any, runtime: Any
) -> None:
    trainer = trainer_with(compile=what)
    assert (trainer.compile_mode, trainer.runtime.compile) == (what, runtime)


def test_a_wrong_value_is_refused_with_the_right_ones() -> None:
    with pytest.raises(ConfigurationError, match="use 'step', 'model', 'blocks' or None"):
        trainer_with(compile=True)
    with pytest.raises(ConfigurationError, match=r"Trainer\(..., compile='step'\)"):
        Runtime("cpu", compile="step")


def test_a_value_that_contradicts_the_runtime_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="set it in only one place"):
        trainer_with(runtime=Runtime("cpu", compile="model"), compile="step")
    with pytest.raises(ConfigurationError, match="set it in only one place"):
        trainer_with(runtime=Runtime("cpu"), compile="blocks")
