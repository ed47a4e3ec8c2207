"""Steps by graphs that end in the middle: of an accumulation window, of an update, or by an
error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwright import Callback, Runtime, Trainer
from loopwright.callbacks import NonFiniteGuard
from loopwright.errors import NonFiniteLossError
from tests.training.compiled_runs import (
    DATA,
    SGD,
    Bad,
    Net,
    X,
    assert_close,
    build,
    traced,
)

__all__ = ["traced"]  # a fixture
pytestmark = pytest.mark.usefixtures("traced")
PLAIN = partial(torch.optim.SGD, lr=0.05)


def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [
        (X[start : start + size], DATA[1][start : start + size])
        for start, size in zip(starts, sizes, strict=True)
    ]


def trained(data: Sequence[Any], **given: Any) -> tuple[Trainer, Trainer]:
    """The same training without and with graphs, where each batch is given as it is."""
    trainers = build(None, **given), build("step", **given)
    for trainer in trainers:
        trainer.train(data, num_epochs=2)
    return trainers


def assert_equal_results(eager: Trainer, other: Trainer) -> None:
    assert_close(eager.history, other.history, 1e-6)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], value, atol=1e-6, rtol=1e-6)


class BranchingOnShort(Net):
    """Cannot be traced for batches of five."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x if len(x) == 5 and x.sum() < 1e6 else x)


class Tokens(Trainer):
    """Has a sum and a count of items as its loss."""

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return (outputs - targets).square().sum(), torch.tensor(targets.numel())


@pytest.mark.parametrize("kind", [Trainer, Tokens], ids=["means", "counted items"])
def test_a_window_that_graphs_began_is_completed_without_them(kind: type[Trainer]) -> None:
    """The second step of three cannot be traced: the gradients of the first are part of the update
    all the same."""
    eager, tried = trained(
        batches(8, 5, 8), model=BranchingOnShort, accumulate=3, kind=kind, clip_norm=0.5
    )
    assert tried.run.compiled is not None
    assert (tried.run.compiled.choice, len(tried.run.compiled.graphs)) == ("eager", 1)
    assert "Data-dependent" in tried.run.compiled.reason
    assert_equal_results(eager, tried)


class MakesSparse(Callback):
    """Gives the optimizer gradients that torch cannot compile for."""

    calls = 0

    def on_optimizer_start(self, trainer: Any, optimizer: str) -> None:
        self.calls += 1
        for param in trainer.parameters():
            param.grad = None if param.grad is None else param.grad.to_sparse()


@pytest.mark.parametrize("kind", [Trainer, Tokens], ids=["means", "counted items"])
def test_an_update_that_cannot_be_compiled_is_taken_with_the_gradients_of_graphs(
    kind: type[Trainer],
) -> None:
    """Listeners hear of it once, and it is counted once."""
    given: dict[str, Any] = {
        "callbacks": lambda: [MakesSparse()],
        "optimizer": PLAIN,
        "kind": kind,
        "accumulate": 2,
    }
    eager, tried = trained(batches(8, 6, 8, 6), **given)
    assert tried.run.compiled is not None
    assert tried.run.compiled.choice == "eager"
    assert "sparse" in tried.run.compiled.reason
    assert_equal_results(eager, tried)
    assert tried.callbacks[0].calls == eager.callbacks[0].calls == 4
    assert tried.run.updates.by_name["optimizer"].num_updates == 4


@torch.library.custom_op("loopwright_tests::room_for_ten", mutates_args=())
def room_for_ten(x: Tensor) -> Tensor:
    """Runs out of memory with more than ten samples, while a graph runs and not while it is
    traced."""
    if len(x) > 10:
        raise torch.OutOfMemoryError("no room")
    return x.clone()


room_for_ten.register_fake(torch.empty_like)
room_for_ten.register_autograd(lambda ctx, grad: grad)


class Small(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(room_for_ten(self.first(x)).tanh())


def test_memory_that_runs_out_in_a_graph_in_the_middle_of_a_window_is_answered_with_micro_batches() -> (
    None
):
    eager, tried = trained(batches(8, 12, 8), model=Small, accumulate=3)
    assert tried.run.num_micro_batches == eager.run.num_micro_batches == 2
    assert_equal_results(eager, tried)


# A device that is not waited for: what is not finite is found, and acted on, in the graph


class Deferring(Runtime):
    """A processor that is treated as an accelerator: no value is read but at log points."""

    @property
    def reads_are_free(self) -> bool:
        return False


BAD = X[:32].clone()
BAD[3] = 100.0
# the second is bad
BAD_BATCHES = [(BAD[start : start + 8], DATA[1][start : start + 8]) for start in (8, 0, 16, 24)]


def deferring(action: Any, **given: Any) -> Trainer:
    guard = lambda: [NonFiniteGuard(action)]  # noqa: E731
    return build(
        "step", model=Bad, callbacks=guard, runtime=Deferring("cpu"), optimizer=SGD, **given
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_graph_leaves_a_bad_update_out_and_the_guard_hears_of_it_at_the_log_point(
    accumulate: int,
) -> None:
    eager = build(
        None,
        model=Bad,
        callbacks=lambda: [NonFiniteGuard("skip")],
        optimizer=SGD,
        accumulate=accumulate,
    )
    tried = deferring("skip", accumulate=accumulate)
    for trainer in (eager, tried):
        trainer.train(BAD_BATCHES, num_epochs=2)
    assert tried.run.compiled is not None
    assert tried.run.compiled.choice == "compiled"
    assert_equal_results(eager, tried)
    assert tried.callbacks[0].num_skipped == eager.callbacks[0].num_skipped == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_after_a_bad_update_that_is_final_the_graph_takes_no_other(accumulate: int) -> None:
    """The host hears of it at the end of the epoch; the weights are still those before the bad
    update."""
    tried = deferring("raise", accumulate=accumulate)
    with pytest.raises(
        NonFiniteLossError, match="gradient norm of optimizer 'optimizer' since the last log point"
    ):
        tried.train(BAD_BATCHES, num_epochs=1)
    until_then = build(None, model=Bad, optimizer=SGD)
    until_then.train(BAD_BATCHES, num_updates=2 // accumulate - 1)
    for name, value in until_then.model.state_dict().items():
        torch.testing.assert_close(tried.model.state_dict()[name], value)
