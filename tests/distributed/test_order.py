"""The same samples in the same order on any number of processes, whatever form the data has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from loopwright import Trainer
from tests.distributed.ranks import run_ranks

N, BATCH = 23, 5


class Numbers(Dataset[Tensor]):
    """Samples that are their own number and something random."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index), torch.rand(()).item()])


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for index in range(N):
            yield torch.tensor([float(index), torch.rand(()).item()])


class Noting(Trainer):
    """Notes the samples of every update that are this process's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Linear(2, 1), torch.optim.SGD, progress="silent", seed=7, **options)
        self.seen: list[list[list[float]]] = []

    def train_step(self, batch: Any) -> Tensor:
        rows = batch[0] if isinstance(batch, list) else batch
        self.seen.append(rows.tolist() if self.run.window.size else [])
        loss = self.model(rows).mean()
        self.update(loss)
        return loss


def two_epochs(
    rank: int, runtime: str | None, names: list[str]
) -> dict[str, list[list[list[float]]]]:
    seen = {}
    for name in names:
        trainer = Noting(runtime=runtime)
        trainer.train(build(name), num_epochs=2, batch_size=BATCH if name in OURS else None)
        seen[name] = trainer.seen
    return seen


def build(name: str) -> Any:
    rows = torch.stack([torch.tensor([float(index), 0.0]) for index in range(N)])
    if name == "a data set with randomness":
        return Numbers()
    if name == "tensors":
        return TensorDataset(rows)
    if name == "an iterable data set":
        return Stream()
    if name == "a loader":
        return DataLoader(Numbers(), BATCH, shuffle=True)
    if name == "a loader with workers":
        return DataLoader(Numbers(), BATCH, shuffle=True, num_workers=2)
    if name == "a loader that drops the last batch":
        return DataLoader(TensorDataset(rows), BATCH, shuffle=True, drop_last=True)
    if name == "a loader with a sampler":
        return DataLoader(
            Numbers(), BATCH, sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), 17)
        )
    if name == "a loader of an iterable data set":
        return DataLoader(Stream(), BATCH)
    if name == "a list of batches":
        return list(rows.split(BATCH))
    raise AssertionError(name)


OURS = ("a data set with randomness", "tensors", "an iterable data set")
NAMES = [
    *OURS,
    "a loader",
    "a loader with workers",
    "a loader that drops the last batch",
    "a loader with a sampler",
    "a loader of an iterable data set",
    "a list of batches",
]


@pytest.fixture(scope="module")
def alone() -> dict[str, list[list[list[float]]]]:
    return two_epochs(0, "cpu", NAMES)


@pytest.fixture(scope="module")
def together() -> dict[int, list[dict[str, list[list[list[float]]]]]]:
    """Workers, which are slow to start, on two processes only."""
    few = [name for name in NAMES if name != "a loader with workers"]
    return {
        world: run_ranks(two_epochs, world, None, NAMES if world == 2 else few) for world in (2, 3)
    }


@pytest.mark.parametrize(
    ("name", "world"),
    [
        (name, world)
        for name in NAMES
        for world in (2, 3)
        if name != "a list of batches" and (world == 2 or name != "a loader with workers")
    ],
)
def test_every_update_has_the_samples_that_one_process_would_give_it(
    name: str, world: int, alone: dict[str, Any], together: dict[int, Any]
) -> None:
    """Also what is random in a sample is the same; each process has a part of every batch, in the
    order of ranks."""
    parts = [seen[name] for seen in together[world]]
    assert [list(chain(*step)) for step in zip(*parts, strict=True)] == alone[name]


@pytest.mark.parametrize("world", [2, 3])
def test_ready_batches_go_to_the_processes_in_turn(
    world: int, alone: dict[str, Any], together: dict[int, Any]
) -> None:
    parts = [seen["a list of batches"] for seen in together[world]]
    batches = [batch for step in zip(*parts, strict=True) for batch in step if batch]
    assert batches == alone["a list of batches"]


def give_a_distributed_sampler(rank: int) -> tuple[list[Any], int]:
    data = TensorDataset(torch.arange(24.0).reshape(12, 2))
    trainer = Noting()
    trainer.train(DataLoader(data, 2, sampler=DistributedSampler(data, seed=3)), num_epochs=2)
    return trainer.seen, trainer.progress.sample


def test_what_a_distributed_sampler_has_divided_is_not_divided_again() -> None:
    (first, samples), (second, _) = run_ranks(give_a_distributed_sampler, 2)
    assert samples == 24
    for epoch in (0, 1):
        steps = slice(3 * epoch, 3 * epoch + 3)
        own = [row[0] for seen in (first, second) for step in seen[steps] for row in step]
        assert len(own) == 12
        assert sorted(own) == list(range(0, 24, 2))
    assert first[:3] != first[3:]
