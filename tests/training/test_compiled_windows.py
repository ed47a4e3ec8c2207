"""Steps by graphs that end in the middle: of an accumulation window, of an update, or by an
error."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Callback, Runtime, Trainer
from loopwright.callbacks import NonFiniteGuard
from loopwright.errors import NonFiniteLossError
from loopwright.training.compiled import choice
from tests.training.compiled_runs import (
    DATA,
    SGD,
    Bad,
    Net,
    X,
    assert_close,
    assert_same,
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
    assert (tried.run.compiled.choice, tried.run.compiled.num_graphs) == ("eager", 1)
    assert "Data-dependent" in tried.run.compiled.reason
    assert_equal_results(eager, tried)


def test_a_run_that_keeps_recompiling_stops_in_the_middle_of_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "MOST_RECOMPILATIONS", 1)
    eager, tried = trained(batches(8, 7, 6, 5), accumulate=4)
    assert tried.run.compiled is not None
    names = [graph.split()[0] for graph in tried.run.compiled.graphs]
    assert (tried.run.compiled.choice, names) == ("eager", ["gradients"] * 3), (
        "before the end of the first window"
    )
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


class Fails(Callback):
    """Raises an error after the first step of the second window, once."""

    has_failed = False

    def on_train_step_end(self, trainer: Any, batch: Any, result: Any) -> None:
        if trainer.progress.step == 3 and not self.has_failed:
            self.has_failed = True
            raise KeyError("mine")


def test_gradients_of_a_window_that_an_error_ended_are_dropped() -> None:
    trainers = [build(what, accumulate=2, callbacks=lambda: [Fails()]) for what in (None, "step")]
    for trainer in trainers:
        with pytest.raises(KeyError, match="mine"):
            trainer.train(DATA, num_epochs=1, batch_size=8)
        trainer.train(DATA, num_epochs=1, batch_size=8)
    assert_same(*trainers)


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


def test_a_graph_that_may_have_changed_weights_is_not_repeated() -> None:
    trainer = build("step", model=Small)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        trainer.train(batches(8, 12), num_epochs=1)
    assert "cannot be repeated in micro-batches" in caught.value.__notes__[0]


class Table(nn.Module):
    """Looks up rows of a table, of which there are four."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_error_while_a_graph_runs_is_raised_from_the_users_line(accumulate: int) -> None:
    rows = torch.tensor([[0, 1, 2], [3, 1, 2], [0, 9, 2]])
    said = []
    for what in (None, "step"):
        trainer = build(what, model=Table, accumulate=accumulate)
        with pytest.raises(IndexError) as caught:
            trainer.train([(row, torch.ones(3, 1)) for row in rows], num_epochs=1)
        frames = [
            frame.name
            for frame in traceback.extract_tb(caught.value.__traceback__)
            if frame.filename == __file__
        ]
        said.append((str(caught.value), caught.value.__notes__, frames, trainer.progress.step))
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert said[0] == said[1]
    assert said[1][2][-1] == "forward"


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
