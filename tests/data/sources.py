"""Sources that know their position: small classes with the protocols of the field, and the packages
that have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

LENGTH = 6  # batches in an epoch
SIZE = 2


def batch_of(number: int) -> tuple[Tensor, Tensor]:
    inputs = torch.arange(SIZE * number, SIZE * (number + 1)).float().unsqueeze(1) / 10
    return inputs, inputs * 2


class Source:
    """What all have in common: how many batches were drawn from it."""

    drawn = 0

    def draw(self, number: int) -> tuple[Tensor, Tensor]:
        self.drawn += 1
        return batch_of(number)


class Counter(Iterator[Any]):
    """An iterator of one epoch."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0

    def __next__(self) -> Any:
        if self.position == LENGTH:
            raise StopIteration
        self.position += 1
        return self.source.draw(self.position - 1)


class ByStateDict(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class ByGetState(Counter):
    def get_state(self) -> dict[str, Any]:
        return {"next": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position = state["next"]


class ByBytes(Counter):
    def get_state(self) -> bytes:
        return json.dumps({"next": self.position}).encode()

    def set_state(self, state: bytes) -> None:
        self.position = json.loads(state)["next"]


class Drawing(ByGetState):
    """Batches with noise from the global generator, which is that of training."""

    def __next__(self) -> Any:
        inputs, targets = super().__next__()
        return inputs + torch.rand(1), targets


class Opening(Source):
    """An iterable whose iterators have the state."""

    def __init__(self, kind: type[Counter]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return self.kind(self)


class OpeningSet(Opening, IterableDataset[Any]):
    """An iterable data set whose iterators have the state, as torchdata's loader supports them."""

    def __iter__(self) -> Iterator[Any]:
        return self.kind(self)


class Endless(Source, Iterator[Any]):
    """An iterator that goes on and on, with `get_state` and `set_state`; one pass of it is an
    epoch."""

    position = 0
    is_over = True

    def __next__(self) -> Any:
        if self.position % LENGTH == 0 and not self.is_over:
            self.is_over = True
            raise StopIteration
        self.is_over = False
        self.position += 1
        return self.draw(self.position - 1)

    def get_state(self) -> tuple[int, bool]:
        return self.position, self.is_over

    def set_state(self, state: tuple[int, bool]) -> None:
        self.position, self.is_over = state


class Node(Source):
    """An iterator that is reset to its beginning or to a state, as torchdata's nodes are."""

    position = epoch = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        if initial_state is None:
            self.epoch, self.position = self.epoch + (self.position > 0), 0
        else:
            self.epoch, self.position = initial_state["epoch"], initial_state["position"]

    def __next__(self) -> Any:
        if self.position == LENGTH:
            raise StopIteration
        self.position += 1
        return self.draw(LENGTH * self.epoch + self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}


class Restarting(Source):
    """A loader that starts over if it is opened with a state at its end, as torchdata's `Loader`
    does."""

    restart_on_stop_iteration = True

    def __init__(self) -> None:
        self.position = 0
        self.loaded: int | None = None

    def __iter__(self) -> Iterator[Any]:
        self.position, self.loaded = self.loaded or 0, None
        if self.position == LENGTH and self.restart_on_stop_iteration:
            self.position = 0
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        while self.position < LENGTH:
            self.position += 1
            yield self.draw(self.position - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["position"]


SOURCES: dict[str, Callable[[], Any]] = {
    "iterators with state_dict": lambda: Opening(ByStateDict),
    "iterators with get_state": lambda: Opening(ByGetState),
    "iterators with noise": lambda: Opening(Drawing),
    "iterators with bytes": lambda: Opening(ByBytes),
    "a data set's iterators": lambda: DataLoader(OpeningSet(ByStateDict), batch_size=None),
    "an endless iterator": Endless,
    "a node": Node,
    "a restarting loader": Restarting,
}


# The packages, where they are installed


class Drawn:
    """Counts what a pipeline draws from its data."""

    count = 0

    def __call__(self, number: Any) -> tuple[Tensor, Tensor]:
        Drawn.count += 1
        return batch_of(int(number))


class Shuffled(Sampler[int]):
    """Another order in each epoch, which `set_epoch` chooses."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(
            torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        )


def torchdata_loader() -> Any:
    from torchdata.nodes import Loader, Mapper, SamplerWrapper

    return Loader(Mapper(SamplerWrapper(Shuffled()), Drawn()))


def torchdata_prefetcher() -> Any:
    from torchdata.nodes import IterableWrapper, Loader, Mapper, Prefetcher

    return Loader(Prefetcher(Mapper(IterableWrapper(range(LENGTH)), Drawn()), prefetch_factor=2))


def torchdata_node() -> Any:
    from torchdata.nodes import Mapper, SamplerWrapper

    return Mapper(SamplerWrapper(Shuffled()), Drawn())


class Numbers:
    """A map-style data set of which each sample is counted."""

    def __init__(self, noise: float) -> None:
        self.draw, self.noise = Drawn(), noise

    def __len__(self) -> int:
        return LENGTH * SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.draw(index)
        return inputs[0] + self.noise * torch.rand(1), targets[0]


def stateful_loader(num_workers: int = 0) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(5)  # the sampler draws its seed when it is built
    noise = 0.0 if num_workers else 1.0  # the generators of workers are not in the loader's state
    return StatefulDataLoader(
        Numbers(noise), batch_size=SIZE, shuffle=True, num_workers=num_workers
    )


def hugging_face(buffer_size: int | None = None, seed: int | None = 3) -> Any:
    import datasets

    rows = {"x": [[float(number)] for number in range(LENGTH * SIZE)]}
    stream = datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=3)
    if buffer_size is not None:
        stream = stream.shuffle(seed=seed, buffer_size=buffer_size)
    return DataLoader(stream.map(as_row), batch_size=SIZE)


def hugging_face_in_stateful_loader() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(hugging_face().dataset, batch_size=SIZE)


def as_row(row: dict[str, Any]) -> dict[str, Any]:
    Drawn.count += 1
    return {"x": row["x"], "y": [2 * row["x"][0]]}


def grain_loader() -> Any:
    import grain.python as grain

    sampler = grain.IndexSampler(
        LENGTH, shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=4
    )
    return grain.DataLoader(data_source=GrainNumbers(), sampler=sampler, worker_count=0)


class GrainNumbers:
    def __repr__(self) -> str:
        return "GrainNumbers()"  # by which grain recognises the data when it continues

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return Drawn()(index)


def grain_dataset() -> Any:
    import grain.python as grain

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=1)
    return grain.MapDataset.range(LENGTH).shuffle(seed=2).map(Drawn()).to_iter_dataset(options)


PACKAGED: dict[str, tuple[str, Callable[[], Any]]] = {
    "torchdata Loader": ("torchdata", torchdata_loader),
    "torchdata Loader with a thread": ("torchdata", torchdata_prefetcher),
    "torchdata node": ("torchdata", torchdata_node),
    "torchdata StatefulDataLoader": ("torchdata", stateful_loader),
    "torchdata StatefulDataLoader with a worker": ("torchdata", lambda: stateful_loader(1)),
    "datasets": ("datasets", hugging_face),
    "datasets in torchdata's loader": ("datasets", hugging_face_in_stateful_loader),
    "grain DataLoader": ("grain", grain_loader),
    "grain IterDataset": ("grain", grain_dataset),
}
INSTALLED = {
    name: build for name, (package, build) in PACKAGED.items() if find_spec(package) is not None
}
