"""When FSDP2 gathers the parameters of a sharded model is a setting, and shows in the order of its
collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright import DistributedRuntime, Trainer
from tests.distributed.ranks import RunRanks
from tests.distributed.scenarios import assert_same, build_data, weights_of


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
