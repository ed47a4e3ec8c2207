"""Training on several processes gives what one process gives, for the same batches."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright import ConfigurationError, DistributedRuntime, Trainer
from loopwright.callbacks import Freeze
from tests.distributed.ranks import RunRanks, run_ranks
from tests.distributed.scenarios import (
    SCENARIOS,
    Branches,
    assert_same,
    build_data,
    build_model,
    fit,
    run_all,
    weights_of,
)

UNEVEN = [  # those in which parts differ in other ways on three processes than on two
    "supervised",
    "clipped_by_the_global_norm",
    "last_batch_smaller_than_the_number_of_processes",
    "ragged_token_counts_accumulated",
    "parameters_used_on_some_processes_or_nowhere",
    "gan",
    "bad_sample_skipped",
    "limited_by_samples",
]
NAMES = {2: list(SCENARIOS), 3: UNEVEN}
SETUPS = [(2, "ddp"), (2, "ddp in buckets"), (2, "fsdp"), (3, "ddp in buckets")]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return run_all(0, "cpu", list(SCENARIOS))


def run_in_buckets(rank: int, names: list[str]) -> dict[str, Any]:
    """With a bucket for every parameter, so that all but one are sent while the backward pass
    computes."""
    return run_all(rank, DistributedRuntime("ddp", bucket_mb=1e-6), names)


@cache
def together(shared: RunRanks, world: int, runtime: str) -> list[dict[str, Any]]:
    """The scenarios on all ranks of one setup, started once."""
    if runtime == "ddp in buckets":
        return shared(run_in_buckets, world, NAMES[world])
    return shared(run_all, world, runtime, NAMES[world])


@pytest.mark.parametrize(
    ("world", "runtime", "name"),
    [
        (world, runtime, name)
        for world, runtime in SETUPS
        for name in NAMES[world]
        if (runtime, name)
        != ("ddp in buckets", "bf16")  # which makes a runtime of its own precision
    ],
)
def test_all_processes_end_as_one_does(
    shared: RunRanks, world: int, runtime: str, name: str, alone: dict[str, Any]
) -> None:
    assert isinstance(alone[name], dict), alone[name]
    for results in together(shared, world, runtime):
        assert_same(results[name], alone[name])


class Counting(TorchDispatchMode):
    """Counts the collectives, whoever calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace == "c10d"
        return func(*args, **(kwargs or {}))


def count_exchanges(rank: int, runtime: str) -> list[tuple[int, int, int]]:
    """For every step of windows of three: its place, collectives in its forward pass, and in what
    follows."""
    counts: list[tuple[int, int, int]] = []

    class Watched(Trainer):
        def forward(self, inputs: Any) -> Any:
            with Counting() as forward:
                outputs = super().forward(inputs)
            self.forward_calls = forward.calls
            return outputs

        def train_step(self, batch: Any) -> Any:
            with Counting() as calls:
                result = super().train_step(batch)
            counts.append((self.progress.epoch_step % 3, self.forward_calls, calls.calls))
            return result

    model = build_model()
    trainer = Watched(
        model,
        torch.optim.Adam(model.parameters()),
        nn.MSELoss(),
        runtime=runtime,
        accumulate=3,
        progress="silent",
    )
    trainer.train(build_data(54), num_epochs=1, batch_size=6)
    return counts


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_no_gradient_is_exchanged_before_the_last_step_of_a_window(
    shared: RunRanks, runtime: str
) -> None:
    for counts in shared(count_exchanges, 2, runtime):
        assert [position for position, _, _ in counts] == [0, 1, 2] * 3
        assert all((total > forward) == (position == 2) for position, forward, total in counts)


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_the_flag_and_the_requests_take_no_collective_of_their_own(
    shared: RunRanks, runtime: str
) -> None:
    for counts in shared(count_exchanges, 2, runtime):
        exchanges = [total - forward for position, forward, total in counts if position == 2]
        # the first update of a sharded model compares the parameters used
        assert exchanges[1:] == [1] * 2


def stop_on_one(rank: int) -> list[tuple[int, str | None]]:
    """`stop()` on one rank: after how many updates all of them end, and for which reason."""
    ended = []
    for stopping in (0, 1):

        class Stopping(Trainer):
            def on_update_end(self) -> None:
                # used within this round
                if self.progress.update == 3 and rank == stopping:  # noqa: B023
                    self.stop("rank has had enough")

        model = build_model()
        trainer = Stopping(
            model, torch.optim.Adam(model.parameters()), nn.MSELoss(), progress="silent"
        )
        trainer.train(build_data(), num_epochs=9, batch_size=8)
        ended.append((trainer.progress.update, trainer.stop_reason))
    return ended


def test_a_stop_on_one_process_ends_all_of_them_after_the_same_update() -> None:
    results = run_ranks(stop_on_one, 3)
    assert results == [[(5, "rank has had enough")] * 2] * 3


def differ_at_first(rank: int) -> list[Any]:
    """What differs between processes at first: weights, dropout."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    masks: list[Tensor] = []
    model[1].register_forward_hook(lambda module, args, output: masks.append(output == 0))
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), nn.MSELoss(), progress="silent")
    trainer.train(build_data(32), num_updates=2, batch_size=16)
    return [weights_of(model), masks]


def test_weights_are_the_first_processs_and_dropout_is_each_ones_own(shared: RunRanks) -> None:
    (first, first_masks), (second, second_masks) = shared(differ_at_first, 2)
    assert all(map(torch.equal, first, second))
    assert not torch.equal(first_masks[0], second_masks[0])


def use_different_parameters(rank: int) -> str:
    x, y = build_data(8).tensors
    batches = [(x[x[:, 0] < 0][:2], y[:2]), (x[x[:, 0] > 0][:2], y[:2])]
    with pytest.raises(ConfigurationError) as raised:
        fit("fsdp", Branches(), data=batches, batch_size=None)
    return str(raised.value)


def test_processes_of_a_sharded_model_that_use_different_parameters_are_told_which(
    shared: RunRanks,
) -> None:
    for message in shared(use_different_parameters, 2):
        assert (
            "on rank 0: first.weight, first.bias; on rank 1: second.weight, second.bias." in message
        )
        assert "never" not in message  # that no process uses is nothing wrong
        assert "find_unused_parameters=True" in message


def batch_norm(rank: int, runtime: str) -> list[Any]:
    """Statistics of batch norm after training, and what an evaluation with them gives."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        nn.MSELoss(),
        runtime=runtime,
        callbacks=[Freeze("0")],
        progress="silent",
    )
    trainer.train(build_data(32), num_epochs=2, batch_size=8)
    return [value.clone() for value in model[1].buffers()]


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_buffers_are_those_of_the_first_process(shared: RunRanks, runtime: str) -> None:
    first, second = shared(batch_norm, 2, runtime)
    assert all(map(torch.equal, first, second))
    assert first[0].abs().sum() > 0
