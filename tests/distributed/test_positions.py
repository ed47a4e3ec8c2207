"""Sources with a position on several processes: one state where all read the same, a state each
where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from loopwright import CheckpointError, Trainer
from loopwright.checkpoint import read_checkpoint
from tests.data.sources import SOURCES
from tests.distributed.ranks import run_ranks
from tests.distributed.scenarios import build_data, weights_of


class Divided(DataLoader[Any]):
    """A loader with a state, over the part of the data that its process has, as with torchdata's
    and a sampler."""

    def __init__(self) -> None:
        data, rank = build_data(24), dist.get_rank() if dist.is_initialized() else 0
        world = dist.get_world_size() if dist.is_initialized() else 1
        super().__init__(
            data, batch_size=2, sampler=DistributedSampler(data, world, rank, shuffle=True)
        )
        self.rank, self.position, self.loaded = rank, 0, 0
        self.given: list[float] = []

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        start, self.loaded = self.loaded, 0
        batches = [self.dataset[index] for index in self.sampler]
        for self.position in range(start + 2, len(batches) + 1, 2):
            inputs, targets = zip(*batches[self.position - 2 : self.position], strict=True)
            self.given.append(float(inputs[0][0]))
            yield torch.stack(inputs), torch.stack(targets)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "rank": self.rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["rank"] == self.rank, "the state of another process"
        self.loaded = state["position"]


def build(runtime: Any, inputs: int = 6) -> Trainer:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 2 if inputs == 6 else 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Trainer(
        model, optimizer, nn.functional.mse_loss, runtime=runtime, progress="silent", seed=1
    )


def train_divided(rank: int, folder: Path) -> dict[str, Any]:
    whole, first, second = (build("ddp") for _ in range(3))
    data, read, rest = Divided(), Divided(), Divided()
    whole.train(data, 2)
    first.train(read, num_updates=8)  # six in an epoch
    first.save(folder / "saved")
    second.load(folder / "saved")
    second.train(rest, num_updates=4)
    return {
        "whole": weights_of(whole.model),
        "resumed": weights_of(second.model),
        "given": (data.given, rest.given),
    }


def test_each_process_continues_in_its_own_part(tmp_path: Path, mistake: Any) -> None:
    ranks = run_ranks(train_divided, 2, tmp_path)
    for rank in ranks:
        assert all(map(torch.equal, rank["resumed"], rank["whole"]))
        whole, rest = rank["given"]
        assert rest == whole[8:]
    first, second = (set(rank["given"][0][:6]) for rank in ranks)  # the first epoch
    assert not first & second
    alone = build("cpu")
    what = "A run whose processes read parts of their own, continued by another number of them"
    with mistake(
        "Several processes",
        what,
        CheckpointError,
        match="2 processes each had a position in their own data, but now there are 1 "
        "processes: start 2",
    ):
        alone.load(tmp_path / "saved")


def train_shared(rank: int, folder: Path) -> list[Any]:
    trainer = build("ddp", 1)
    trainer.train(in_doubles("a node"), num_updates=2)
    trainer.save(folder / "saved")
    return weights_of(trainer.model)


class Doubles:
    """The batches of another source in double precision; its state is that of the source."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        return ([part.double() for part in batch] for batch in iter(self.source))

    def state_dict(self) -> Any:
        return self.source.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.source.reset(state)


def in_doubles(name: str) -> Any:
    return Doubles(SOURCES[name]())


def test_a_source_that_all_processes_read_alike_continues_on_another_number_of_them(
    tmp_path: Path,
) -> None:
    run_ranks(train_shared, 2, tmp_path)
    assert "ranks" not in read_checkpoint(tmp_path / "saved").tree["data"]
    alone, data = build("cpu", 1), in_doubles("a node")
    alone.load(tmp_path / "saved")
    alone.train(data, num_updates=1)
    assert data.source.drawn == 1
    assert data.source.position == 5
