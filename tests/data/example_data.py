"""Small data sets, samplers and loaders; in a module of their own, so that spawned workers find
them."""

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
    get_worker_info,
)

from loopwright.data import Batch, Stream


class Numbers(Dataset[Any]):
    """Sample `i` is `i`; remembers which indices were asked for."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return torch.tensor([float(index), 1.0]), index


class Noisy(Numbers):
    """Samples with noise from all three libraries."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2), random.random(), np.random.rand(3)


class Named(Numbers):
    """Samples that are dictionaries."""

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((2, 2), float(index)),
            "name": f"number {index}",
            "label": index,
        }


class Batched(Numbers):
    """Fetches whole batches, with noise."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = torch.rand(len(indices))
        return [(index, noise[place]) for place, index in enumerate(indices)]


class Located(Numbers):
    """Tells in which worker a sample was made, and what its `worker_init_fn` put there."""

    mark = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, -1 if info is None else info.id, self.mark


class Broken(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("sample five is broken")
        return index


class Counting(IterableDataset[Any]):
    """An iterable data set that knows neither its length nor its position."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.given = 0

    def __iter__(self) -> Any:
        for index in range(self.length):
            self.given += 1
            yield index, torch.rand(1), random.random()


class Resumable(IterableDataset[Any]):
    """An iterable data set that saves its position, shuffled by epoch."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.epoch = 0
        self.position = 0
        self.asked: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        order = np.random.RandomState(self.epoch).permutation(self.length).tolist()
        while self.position < self.length:
            self.position += 1
            self.asked.append(order[self.position - 1])
            yield order[self.position - 1], torch.rand(1), random.random()
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class StatefulBatches:
    """A loader of ready batches that saves its position, and starts over only when asked to iterate
    anew."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.next = 0
        self.resume_at = 0

    def __iter__(self) -> Any:
        start, self.resume_at = self.resume_at, 0
        for number in range(start, self.length):
            self.next = number + 1
            yield torch.full((3, 1), float(number)) + torch.rand(1)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resume_at = state["next"]


class RandomOrder(Sampler[int]):
    """A sampler that draws from the global generator."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(torch.randperm(self.length).tolist())


class EpochOrder(RandomOrder):
    """A sampler whose order is a function of the epoch set by `set_epoch`."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter([(index + self.epoch) % self.length for index in range(self.length)])


class RememberingOrder(RandomOrder):
    """A sampler whose order depends on how often it was used, which it saves."""

    uses = 0

    def __iter__(self) -> Any:
        self.uses += 1
        return iter([(index * 3 + self.uses) % self.length for index in range(self.length)])

    def state_dict(self) -> dict[str, Any]:
        return {"uses": self.uses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.uses = state["uses"]


class RaggedBatches(RandomOrder):
    """A batch sampler with batches of different sizes."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return iter([[3, 1], [0, 2, 4], [5], [9, 8, 7, 6]])


class EpochBatches(RaggedBatches):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class OwnIteration(DataLoader[Any]):
    """A loader that iterates in its own way."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {"wrapped": batch}


def add_noise(samples: list[Any]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.tensor([sample[1] for sample in samples]) + torch.rand(len(samples))


def mark_dataset(worker_id: int) -> None:
    """A `worker_init_fn` that prepares the data set of its worker."""
    info = get_worker_info()
    assert info is not None
    info.dataset.mark = 100 + worker_id  # type: ignore[attr-defined]


def tensors(length: int = 50) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(length, 3, generator=generator)
    return TensorDataset(features, torch.arange(length))


def values(stream: Stream, epoch: int = 0) -> list[Any]:
    """The batches of an epoch, as the model side sees them."""
    stream.begin(epoch)
    return [batch.value for batch in stream]


def sizes(batches: list[Batch]) -> list[int]:
    return [batch.size for batch in batches]


def same(left: Any, right: Any) -> bool:
    """Whether two batches are of the same types and equal, bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.stride() == right.stride()
            and torch.equal(left, right)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
