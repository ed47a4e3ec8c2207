"""Small programs for the tests of `compile="step"`, run as they are and by graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Trainer
from loopwright.metrics.history import History

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(38, 4, generator=GENERATOR)  # two batches of 16 and one of 6
DATA = X, X.sum(1, keepdim=True).tanh()


class Net(nn.Module):
    """A net with batch norm, and with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(4, 5, bias=False),
            nn.BatchNorm1d(5),
            nn.Linear(5, 1),
        )
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).tanh())


SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@contextmanager
def default_backend(backend: Any) -> Iterator[None]:
    """Have graphs turned into code by this backend; in torch 2.11, which has no default to set, by
    its argument."""
    if hasattr(torch.compiler, "set_default_backend"):
        before = torch.compiler.get_default_backend()
        torch.compiler.set_default_backend(backend)
        yield
        torch.compiler.set_default_backend(before)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch.compile, backend=backend))
            yield


@pytest.fixture
def traced() -> Iterator[None]:
    """Graphs are traced and not turned into machine code, which takes long and is no question of
    these tests."""
    with default_backend("eager"):
        yield


def build(
    compile: str | None,  # noqa: A002
    *,
    kind: type[Trainer] = Trainer,
    model: Callable[[], nn.Module] = Net,
    optimizer: Callable[..., Any] = SGD,
    callbacks: Callable[[], Sequence[Any]] = tuple,
    measures: bool = False,
    **arguments: Any,
) -> Trainer:
    """A trainer; where it compiles, the choice is made, so that no clock decides."""
    torch.manual_seed(1)
    module = model()
    arguments = {"progress": "silent", "callbacks": callbacks(), **arguments}
    trainer = kind(
        module, optimizer(module.parameters()), nn.functional.mse_loss, compile=compile, **arguments
    )
    if trainer.run.compiled is not None and not measures:
        trainer.run.compiled.choice = "compiled"
    return trainer


def both(epochs: int = 2, data: Any = DATA, **arguments: Any) -> tuple[Trainer, Trainer]:
    """The same training without and with graphs."""
    trainers = [build(what, **arguments) for what in (None, "step")]
    for trainer in trainers:
        trainer.train(data, num_epochs=epochs, batch_size=16)
    return trainers[0], trainers[1]


def assert_same(eager: Trainer, compiled: Trainer, tolerance: float = 1e-5) -> None:
    """Same history, weights, buffers and optimizer state, as far as two orders of addition
    allow."""
    assert compiled.run.compiled is not None
    assert compiled.run.compiled.choice == "compiled", compiled.run.compiled.reason
    assert_close(eager.history, compiled.history, tolerance)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(
            compiled.model.state_dict()[name], value, atol=tolerance, rtol=tolerance
        )
    ours, theirs = (next(iter(t.optimizers.values())).state_dict() for t in (compiled, eager))
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for key, state in theirs["state"].items():
        assert list(ours["state"][key]) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(
                ours["state"][key][name], value, atol=tolerance, rtol=tolerance
            )
    assert all(p.grad is None for p in compiled.model.parameters())


def assert_close(expected: History, given: History, tolerance: float) -> None:
    assert list(given.steps) == list(expected.steps)
    for name in expected.steps:
        assert list(given.steps[name]) == pytest.approx(
            list(expected.steps[name]), abs=tolerance, nan_ok=True
        ), name
    assert [list(row) for row in given.epochs] == [list(row) for row in expected.epochs]


class Bad(nn.Module):
    """Gives a loss that is not finite where an input is above 50."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        bad = (x[:, :1] > 50).any()
        return self.net(x.clamp(max=5)) * torch.where(
            bad, torch.tensor(float("nan")), torch.tensor(1.0)
        )
