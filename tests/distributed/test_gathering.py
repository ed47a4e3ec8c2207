"""When FSDP2 gathers the parameters of a sharded model is a setting, and shows in the order of its
collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright import DistributedRuntime, Mesh, Trainer
from loopwright.runtime.distributed import Sharding, check_bucket_size, check_settings
from tests.distributed.ranks import RunRanks
from tests.distributed.scenarios import assert_same, build_data, weights_of
from tests.mistakes import raises


class Block(nn.Module):
    def __init__(self, number: int, events: list[str]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.number, self.events = number, events

    def forward(self, x: Tensor) -> Tensor:
        self.events.append(f"forward {self.number}")
        x = self.layer(x).tanh()
        if x.requires_grad:
            x.register_hook(lambda grad: self.events.append(f"backward {self.number}"))
        return x * 2


class Net(nn.Module):
    """Three blocks and a head; `events` has what happened when."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.events: list[str] = []
        self.blocks = nn.ModuleList(Block(number, self.events) for number in range(3))
        self.head = nn.Linear(6, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Gathers(TorchDispatchMode):
    """Adds each all-gather of parameters to the events, with the number of ranks that take part in
    it."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith("_allgather_base_"):  # others are of host objects
            output, parts = args[0], args[1]
            self.events.append(f"gather of {output.numel() // parts.numel()}")
        return func(*args, **(kwargs or {}))


class Watched(Trainer):
    def train_step(self, batch: Any) -> Any:
        self.model.events.clear()
        with Gathers(self.model.events):
            return super().train_step(batch)


def fit(runtime: Any, model: Net | None = None) -> dict[str, Any]:
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    trainer = Watched(
        model, optimizer, nn.MSELoss(), runtime=runtime, clip_norm=0.5, progress="silent"
    )
    trainer.train(build_data(24), num_updates=3, batch_size=8)
    return {"weights": weights_of(model), "events": list(model.events)}


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "freed": {"reshard_after_forward": True},
    "kept": {"reshard_after_forward": False},
    "forward": {"forward_prefetch": 2},
    "backward": {"backward_prefetch": 2},
}


def run_settings(rank: int) -> dict[str, Any]:
    return {
        name: fit(DistributedRuntime("fsdp", **settings)) for name, settings in SETTINGS.items()
    }


@pytest.fixture(scope="module")
def together(shared: RunRanks) -> list[dict[str, Any]]:
    return shared(run_settings, 2)


@pytest.fixture(scope="module")
def alone() -> list[Tensor]:
    return fit("cpu")["weights"]


@pytest.mark.parametrize("name", SETTINGS)
def test_when_parameters_are_gathered_changes_no_result(
    name: str, together: list[dict[str, Any]], alone: list[Tensor]
) -> None:
    for results in together:
        assert_same(results[name]["weights"], alone)


@pytest.mark.parametrize(
    ("name", "in_forward", "in_backward"), [("default", 4, 3), ("freed", 4, 4), ("kept", 4, 0)]
)
def test_parameters_that_are_kept_after_the_forward_pass_are_not_gathered_again(
    name: str, in_forward: int, in_backward: int, together: list[dict[str, Any]]
) -> None:
    for results in together:
        events = results[name]["events"]
        last = events.index("forward 2")
        assert events[:last].count("gather of 2") == in_forward
        assert events[last:].count("gather of 2") == in_backward


def gathers_before(events: list[str], event: str) -> int:
    return events[: events.index(event)].count("gather of 2")


def test_blocks_ahead_are_gathered_before_this_one_computes(together: list[dict[str, Any]]) -> None:
    for results in together:
        before = {
            name: gathers_before(result["events"], "forward 0") for name, result in results.items()
        }
        assert before == {"default": 2, "freed": 2, "kept": 2, "forward": 4, "backward": 2}
        # torch's own: one ahead
        assert gathers_before(results["default"]["events"], "backward 2") == 4 + 2
        assert gathers_before(results["backward"]["events"], "backward 2") == 4 + 3


def keep_among_two(rank: int) -> dict[str, Any]:
    return fit(DistributedRuntime("fsdp", reshard_after_forward=2))


def test_a_number_of_ranks_keeps_the_parameters_among_so_many(
    shared: RunRanks, alone: list[Tensor]
) -> None:
    for result in shared(keep_among_two, 4):
        assert_same(result["weights"], alone)
        events = result["events"]
        last = events.index("forward 2")
        assert {event for event in events[:last] if "gather" in event} == {"gather of 4"}
        assert {event for event in events[last:] if "gather" in event} == {"gather of 2"}


def test_settings_of_sharded_models_are_refused_for_copies() -> None:
    with raises("not-sharded", "reshard_after_forward, forward_prefetch"):
        DistributedRuntime("ddp", reshard_after_forward=False, forward_prefetch=1)
    with raises("not-sharded", "backward_prefetch"):
        check_settings(Mesh(replicate=2), "fp32", Sharding(backward_prefetch=1).given())


@pytest.mark.parametrize("name", ["forward_prefetch", "backward_prefetch"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_number_of_blocks_ahead_is_one_or_more(name: str, number: Any) -> None:
    with raises("number", f"{name}={number}"):
        DistributedRuntime("fsdp", **{name: number})


def test_gathering_ahead_what_is_not_gathered_is_refused() -> None:
    with raises("fsdp-settings", "backward_prefetch=2", "reshard_after_forward=False"):
        DistributedRuntime("fsdp", reshard_after_forward=False, backward_prefetch=2)


@pytest.mark.parametrize("number", [1, 3, 4, 8, "all"])
def test_ranks_to_keep_parameters_among_have_to_divide_the_shards(number: Any) -> None:
    with raises("fsdp-settings", "divides 4"):
        Sharding(reshard_after_forward=number).check_size(4)
    Sharding(reshard_after_forward=2).check_size(4)


def gather_ahead_without_blocks(rank: int) -> str:
    model = nn.Linear(6, 2).double()
    with raises("no-blocks") as raised:
        Trainer(
            model,
            torch.optim.SGD,
            nn.MSELoss(),
            runtime=DistributedRuntime("fsdp", forward_prefetch=1),
        ).setup()
    return str(raised.value)


def test_gathering_ahead_needs_blocks(shared: RunRanks) -> None:
    for message in shared(gather_ahead_without_blocks, 2):
        assert "forward_prefetch=" in message


@pytest.mark.parametrize("size", [0, -25, float("nan"), True, "25"])
def test_a_bucket_has_a_size(size: Any) -> None:
    with raises("number", "bucket_mb"):
        DistributedRuntime("ddp", bucket_mb=size)


def test_a_sharded_model_has_no_buckets() -> None:
    with raises("not-sharded", "bucket_mb=50"):
        DistributedRuntime("fsdp", bucket_mb=50)
    with raises("not-sharded", "bucket_mb=50"):
        check_bucket_size(Mesh(replicate=2, shard=2), 50)
