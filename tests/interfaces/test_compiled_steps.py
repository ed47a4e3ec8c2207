"""`compile="step"` through the interfaces whose step is the core's, in their own words; an error
where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces import simple
from tests.interfaces.configured.parts import build_trainer
from tests.mistakes import raises
from tests.training.compiled_runs import DATA, Net, traced

__all__ = ["traced"]  # a fixture


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, atol=1e-5, rtol=1e-5)


def test_configured_trains_by_graphs_as_without_them(traced: None) -> None:
    """A run file says `use_torch_compile: step`; losses keep their names."""
    plain, compiled = (
        build_trainer(use_torch_compile=given, max_epochs=2) for given in (False, "step")
    )
    choice = compiled.engine.run.compiled
    assert choice is not None
    choice.choice = "compiled"  # so that no clock decides
    histories = [trainer.train() for trainer in (plain, compiled)]
    assert (choice.choice, len(choice.graphs)) == ("compiled", 1), choice.reason
    assert [row.keys() for row in histories[1].epochs] == [
        row.keys() for row in histories[0].epochs
    ]
    for name, values in histories[0].steps.items():
        assert list(histories[1].steps[name]) == pytest.approx(list(values), abs=1e-5), name
    assert_same_weights(plain.engine.model, compiled.engine.model)


def build_simple(**training: Any) -> simple.Trainer:
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return simple.Trainer(
        model, optimizer, nn.functional.mse_loss, {"training": {"max_grad_norm": 0.5, **training}}
    )


def test_simple_trains_by_graphs_as_without_them(traced: None) -> None:
    loader = DataLoader(TensorDataset(*DATA), batch_size=19)
    plain, compiled = build_simple(), build_simple(compile="step")
    choice = compiled._core.run.compiled
    assert choice is not None
    choice.choice = "compiled"  # so that no clock decides
    histories = [trainer.train(loader, 2, loader) for trainer in (plain, compiled)]
    assert (choice.choice, len(choice.graphs)) == ("compiled", 1), choice.reason
    assert histories[1].keys() == histories[0].keys()
    for name, values in histories[0].items():
        assert histories[1][name] == pytest.approx(values, abs=1e-5), name
    assert_same_weights(plain.model, compiled.model)


def test_what_an_interface_does_not_compile_is_refused() -> None:
    with raises("config-choice", "training.compile is True"):
        build_simple(compile=True)
    with pytest.raises(ValueError, match="use_torch_compile"):
        build_trainer(use_torch_compile="model")
