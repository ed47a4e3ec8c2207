"""The training data of `tune`: the same samples in batches of another size, or read by another
number of workers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..data.open import DEFAULT_BATCH_SIZE, Stream, as_dataset, is_plain, is_samples
from ..data.stream import Stateful
from ..errors import ConfigurationError

KEPT = (
    "collate_fn",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "in_order",
)
# options that a loader without workers does not take
WITH_WORKERS = (
    "timeout",
    "multiprocessing_context",
)


class TunedData:
    """Data as the user gave it. `fixed` has the reason for each of its settings that cannot be
    varied.

    Args:
        data: What `Trainer.train` takes.
        batch_size: Samples per batch, where the data is not in batches.
    """

    def __init__(self, data: Any, batch_size: int | None) -> None:
        self.given = as_dataset(data)
        self.given_size = batch_size
        self.batch_size: int | None = None
        self.workers = 0
        self.pin_memory = False
        self.fixed: dict[str, str] = {}
        if isinstance(self.given, DataLoader):
            self._read_loader(self.given)
        elif is_samples(self.given, batch_size) or isinstance(self.given, IterableDataset):
            self.batch_size = batch_size or DEFAULT_BATCH_SIZE
        else:
            self._fix(
                f"a {type(self.given).__name__} already has batches: pass the data set itself"
            )
            self._refuse_iterator()
        if isinstance(self.given, IterableDataset) or isinstance(
            getattr(self.given, "dataset", None), IterableDataset
        ):
            self.fixed["workers"] = (
                "each worker would read the whole iterable data set, unless the data set divides "
                "itself"
            )

    @property
    def is_loader(self) -> bool:
        """Whether the user gave a DataLoader, rather than a data set."""
        return isinstance(self.given, DataLoader)

    def varied(
        self, batch_size: int | None, workers: int, *, pin_memory: bool
    ) -> tuple[Any, int | None]:
        """Return data for `Trainer.train` and the batch size to pass with it."""
        if (batch_size, workers, pin_memory) == (self.batch_size, self.workers, self.pin_memory):
            return self.given, self.given_size
        if self.is_loader:
            return self._rebuilt(self.given, batch_size, workers, pin_memory), None
        if workers == 0 and not pin_memory:
            return self.given, batch_size
        is_ordered = isinstance(self.given, IterableDataset)
        loader = DataLoader(
            self.given,
            batch_size,
            shuffle=not is_ordered,
            num_workers=workers,
            pin_memory=pin_memory,
        )
        return loader, None

    def note_stream(self, stream: Stream) -> None:
        """Note what the stream that is opened over the data says about it."""
        from ..data.indexed import TensorStream

        self.num_samples = stream.num_samples
        if isinstance(stream, TensorStream):
            self.fixed["workers"] = (
                "batches are taken straight from the tensors, and workers would not be used"
            )

    num_samples: int | None = None  # in an epoch, where that is known

    def _read_loader(self, loader: DataLoader[Any]) -> None:
        self.workers, self.pin_memory = loader.num_workers, bool(loader.pin_memory)
        self.batch_size = loader.batch_size
        if not is_plain(loader):
            self._fix(f"a {type(loader).__name__} with its own way of iterating")
        elif loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
            self.batch_size = None
            self.fixed["batch_size"] = "the loader has its own batch sampler"

    def _fix(self, reason: str) -> None:
        self.fixed |= dict.fromkeys(("workers", "batch_size", "pin_memory"), reason)

    def _refuse_iterator(self) -> None:
        if iter(self.given) is self.given and not isinstance(self.given, Stateful):
            raise ConfigurationError(
                f"tune reads the data many times, but a {type(self.given).__name__} can be read "
                "only once: pass a data set, a DataLoader or a list of batches."
            )

    def _rebuilt(
        self, loader: DataLoader[Any], batch_size: int | None, workers: int, pins: bool
    ) -> DataLoader[Any]:
        """The same loader with other settings."""
        options: dict[str, Any] = {
            name: getattr(loader, name) for name in KEPT if workers or name not in WITH_WORKERS
        }
        if workers:
            options["persistent_workers"] = loader.persistent_workers
            options["prefetch_factor"] = loader.prefetch_factor or 2
        if isinstance(loader.dataset, IterableDataset):
            options |= {"batch_size": batch_size, "drop_last": loader.drop_last}
        elif "batch_size" in self.fixed and loader.batch_sampler is not None:
            options["batch_sampler"] = loader.batch_sampler
        else:
            options |= {
                "batch_size": batch_size,
                "drop_last": loader.drop_last,
                "sampler": loader.sampler,
            }
        return DataLoader(loader.dataset, num_workers=workers, pin_memory=pins, **options)
