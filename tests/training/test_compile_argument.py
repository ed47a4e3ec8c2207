"""The argument `compile` of the trainer: what it accepts, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Runtime, Trainer
from loopwright._torch_compat.compiling import compile_in_place
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


def test_what_a_given_runtime_compiles_is_what_the_trainer_says() -> None:
    assert trainer_with(runtime=Runtime("cpu", compile="model")).compile_mode == "model"
    assert (
        trainer_with(runtime=Runtime("cpu", compile="model"), compile="model").compile_mode
        == "model"
    )
    assert trainer_with(runtime=Runtime("cpu"), compile="step").compile_mode == "step"


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


def test_a_model_of_a_class_of_torchs_own_is_compiled_too() -> None:
    """`nn.Sequential.compile()` compiles nothing, and says nothing."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    x = torch.ones(4, 3)
    expected = model(x)
    compile_in_place(model, backend=backend)
    assert torch.equal(model(x), expected)
    assert len(graphs) == 1
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
