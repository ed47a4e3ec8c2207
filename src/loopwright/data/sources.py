"""Who makes the batches: this process, or the workers of a DataLoader that we hand the requests to."""

import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from multiprocessing.connection import wait
from typing import Any, Protocol

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, get_worker_info

from .._torch_compat import persistent_iterator, shut_down_workers, workers_of
from ..errors import DataError
from .fetch import Fetcher, Request, can_pin, pin
from .order import WORKER, derive_seed
from .stream import Batch
from .workers import TrainingFlag, pass_over_signals, signals_held_back, training_flag


class Feed(Protocol):
    """Batches for requests, in the order of the requests."""

    fetcher: Fetcher

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        """Forget the previous requests and go on with these."""

    def next(self) -> Batch: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a loader was told about its workers."""

    num_workers: int = 0
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], Any] | None = None
    multiprocessing_context: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> "WorkerSettings":
        return cls(**{field.name: getattr(loader, field.name) for field in fields(cls)})


class LocalFeed:
    """Makes every batch in this process, when it is asked for."""

    def __init__(self, fetcher: Fetcher, pin_memory: bool) -> None:
        self.fetcher = fetcher
        self._pins = pin_memory and can_pin()
        self._requests: Iterator[Request] = iter(())

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        self._requests = requests

    def next(self) -> Batch:
        batch = self.fetcher[next(self._requests)]
        return Batch(pin(batch.value), batch.size) if self._pins else batch

    def close(self) -> None:
        self._requests = iter(())


class WorkerFeed:
    """Sends requests to worker processes, which are started when the first batch is asked for."""

    def __init__(self, fetcher: Fetcher, settings: WorkerSettings) -> None:
        self.fetcher = fetcher
        self._settings = settings
        self._requests = _Requests()
        self._generator = torch.Generator()  # a loader without its own would draw from the one of training
        self._loader: DataLoader[Any] | None = None
        self._batches: Any = None

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        self._generator.manual_seed(derive_seed(self.fetcher.seed, WORKER, epoch))
        self._requests.current = requests
        self._batches = None

    def next(self) -> Batch:
        if self._batches is None:
            self._batches = self._open()
        try:
            batch: Batch = next(self._batches)
        except Exception as error:
            _check_workers(workers_of(self._batches), error)
            raise
        return batch

    def close(self) -> None:
        batches, loader = self._batches, self._loader
        if batches is None and loader is not None:  # persistent workers wait for the next epoch
            batches = persistent_iterator(loader)
        if batches is not None:  # dropping it may not be enough: a traceback can keep it alive
            shut_down_workers(batches)
            for worker in workers_of(batches):  # one that does not come back from the data set
                if worker.is_alive():
                    worker.kill()
        self._batches = self._loader = None

    def _open(self) -> Iterator[Batch]:
        with warnings.catch_warnings():  # the user's own loader has already said it
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            if self._loader is None:
                self._loader = self._build()
            context = self._settings.multiprocessing_context or torch.multiprocessing
            with signals_held_back(context.get_start_method()):
                return iter(self._loader)

    def _build(self) -> DataLoader[Any]:
        settings = self._settings
        return DataLoader(
            self.fetcher,  # type: ignore[arg-type]  # __getitem__ is all it needs
            batch_size=None,
            sampler=self._requests,
            collate_fn=_as_it_is,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory and can_pin(),
            timeout=settings.timeout,
            worker_init_fn=_WorkerStart(settings.worker_init_fn, training_flag()),
            multiprocessing_context=settings.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            in_order=settings.in_order,
        )


class _Requests:
    """The sampler of our loader: whatever requests were set last."""

    current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


@dataclass(frozen=True, slots=True)
class _WorkerStart:
    """Passes over signals, shows the user's own data set in `get_worker_info()`, then calls the user's function."""

    function: Callable[[int], Any] | None
    flag: TrainingFlag | None

    def __call__(self, worker_id: int) -> None:
        pass_over_signals(self.flag)
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # the info is frozen
        if self.function is not None:
            self.function(worker_id)


def _check_workers(workers: list[Any], error: Exception) -> None:
    """Name the worker that was killed, of which torch may only have noticed that the connection is gone."""
    if isinstance(error, ConnectionError | EOFError):
        wait([worker.sentinel for worker in workers], timeout=5.0)  # its connections are closed before it is gone
    for worker in workers:
        if not worker.is_alive() and worker.exitcode:
            raise DataError(_end_of_worker(worker.pid, worker.exitcode)) from error


def _end_of_worker(pid: int, code: int) -> str:
    """What became of a worker that was not asked to end."""
    if code > 0:
        return (
            f"A worker of the loader (process {pid}) ended with exit code {code}: a data set must not end its process."
        )
    name = signal.Signals(-code).name
    advice = {
        "SIGKILL": "Most often the system ran out of memory: use fewer workers, or a smaller `prefetch_factor`.",
        "SIGBUS": "Most often shared memory is full: use fewer workers, or give /dev/shm more room.",
    }
    return f"A worker of the loader (process {pid}) was killed by {name}. {advice.get(name, 'Look at its data set.')}"


def _as_it_is(batch: Any) -> Any:
    return batch
