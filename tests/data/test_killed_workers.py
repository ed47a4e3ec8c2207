"""A worker that the system kills: the error says so, why that is, and what to do, wherever the
trainer is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import RunRecorder
from loopwright.run import Run
from tests.mistakes import raises

from ..loops import build_net
from ..runs import adam, cross_entropy

# torch opens some files when a batch does not arrive, and its handler of SIGCHLD may raise before
# it has closed them; where it raises in a finalizer, Python drops its error with a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Points(Dataset[Any]):
    def __init__(self, is_killed: bool) -> None:
        self.is_killed = is_killed

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.is_killed and index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((6,), float(index)), index % 3


class Streamed(IterableDataset[Any]):
    def __init__(self, is_killed: bool) -> None:
        self.points = Points(is_killed)

    def __iter__(self) -> Iterator[Any]:
        return map(self.points.__getitem__, range(len(self.points)))


class Wrapped:
    """A loader that Loopwright cannot see into."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


LOADERS: dict[str, Callable[[bool], Any]] = {
    "samples by index": lambda is_killed: DataLoader(
        Points(is_killed), batch_size=4, num_workers=1
    ),
    "an iterable data set": lambda is_killed: DataLoader(
        Streamed(is_killed), batch_size=4, num_workers=1
    ),
    "a loader of the user": lambda is_killed: Wrapped(
        DataLoader(Points(is_killed), batch_size=4, num_workers=1)
    ),
}
CALLS: dict[str, Callable[[Trainer, Callable[[bool], Any]], Any]] = {
    "train": lambda trainer, loader: trainer.train(loader(True), 1),
    "evaluation of an epoch": lambda trainer, loader: trainer.train(
        loader(False), 1, eval_data=loader(True)
    ),
    "evaluate": lambda trainer, loader: trainer.evaluate(loader(True)),
    "predict": lambda trainer, loader: trainer.predict(loader(True)),
}


@pytest.fixture(autouse=True)
def _workers_end_with_their_test() -> Iterator[None]:
    yield
    gc.collect()  # an error keeps the loader's iterator, and that its workers


def build(*callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(
        build_net(), adam, cross_entropy, callbacks=callbacks, progress="silent", **options
    )


@pytest.mark.parametrize(
    ("loader", "call"),
    [
        *((loader, "train") for loader in LOADERS),
        *(("samples by index", call) for call in CALLS if call != "train"),
    ],
)
def test_a_killed_worker_is_named_with_the_usual_reason(loader, call):
    with raises("worker-ended") as caught:
        CALLS[call](build(), LOADERS[loader])
    assert isinstance(caught.value.__cause__, RuntimeError | ConnectionError | EOFError)  # of torch


class Kills(Callback):
    """Kills a worker while the trainer is in an update, not in the loader: torch raises there."""

    def __init__(self) -> None:
        self.others = multiprocessing.active_children()

    def on_update_end(self, trainer: Trainer) -> None:
        worker = next(
            child for child in multiprocessing.active_children() if child not in self.others
        )
        os.kill(worker.pid or 0, signal.SIGKILL)
        end = monotonic() + 60.0
        while monotonic() < end:
            sleep(0.01)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_worker_that_is_killed_while_a_step_runs_is_named_as_well(tmp_path, loader):
    with raises("worker-ended") as caught:
        build(Kills(), RunRecorder(directory=tmp_path / "run")).train(LOADERS[loader](False), 1)
    assert "is killed by signal" in str(caught.value.__cause__)
    assert "was killed by SIGKILL" in (Run(tmp_path / "run").reason or "")


def test_an_error_of_the_users_own_connection_stays_as_it_is():
    class Remote(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from (Points(is_killed=False)[index] for index in range(2))
            raise ConnectionResetError("the server of the user")

    with pytest.raises(ConnectionResetError, match="the server of the user"):
        build().train(DataLoader(Remote(), batch_size=2), 1)
