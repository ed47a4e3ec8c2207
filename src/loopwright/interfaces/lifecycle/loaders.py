"""Loaders whose batches are steps of a run, and `gather`, also where a process has no sample to
gather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ...data.open import Stream
from ...data.sharding import ShardedBatches
from ...errors import ConfigurationError
from ...runtime import Runtime
from ...trees import map_leaves

if TYPE_CHECKING:
    from .core import LifecycleCore

# what a process did, as the others are told of it
GATHER = "called gather"
FIRST = "called gather for the first time in an evaluation step"
OVER = "went through an evaluation step without calling gather"
WAITING = "had no sample in an evaluation step"
END = "reached the end of the evaluation"


class Gathering:
    """`gather` with a message before it that names each process's call, so that a mistake is an
    error and no deadlock.

    In the last round of an evaluation there may be fewer samples than processes. A process without
    one takes the step with a sample of another if, and only if, the others gather in it; its own
    rows are left out of the result.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_stand_in = False
        self._is_uneven = False

    def gather(self, value: Any, padding_value: float | None = None) -> Any:
        """The rows of all processes, in tensors and containers of them; of one process, the value
        itself."""
        structure = str(map_leaves(_described, value))
        if self.runtime.world == 1:
            return value
        if self._is_uneven and not self.is_stand_in:
            self._say(FIRST)
            self._is_uneven = False
        structures = [content for _, content in self._say(GATHER, structure)]
        if len(set(structures)) > 1:
            raise ConfigurationError(
                "gather-differs",
                "gather was given different values on different processes: "
                f"{_by_process(structures)}. Pass the same kind of tensor or container on all of "
                "them.",
            )
        return map_leaves(lambda tensor: self._rows(tensor, padding_value), value)

    def _rows(self, tensor: Tensor, padding_value: float | None) -> Tensor:
        rows = tensor if tensor.dim() else tensor.reshape(1)
        return self.runtime.gather(rows[:0] if self.is_stand_in else rows, padding_value)

    # Rounds of an evaluation

    def is_uneven(self, stream: Stream, size: int, total: int | None) -> bool:
        """Whether some process has no sample of this round; all of them know."""
        if total is None or self.runtime.world == 1:
            return False
        if total < self.runtime.num_shares:
            return True
        return _has_ready_batches(stream) and 0 in self.runtime.gather_objects(size)

    @contextmanager
    def round(self, is_uneven: bool) -> Iterator[None]:
        """An evaluation step on a sample of this process's own."""
        self._is_uneven = is_uneven
        yield
        if self._is_uneven:
            self._say(OVER)
        self._is_uneven = False

    def is_needed(self) -> bool:
        """Whether a process without a sample has to take the step, since the others gather in
        it."""
        return FIRST in (kind for kind, _ in self._say(WAITING))

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        self.is_stand_in = True
        try:
            yield
        finally:
            self.is_stand_in = False

    def end(self) -> None:
        """End the evaluation on this process; all other processes must have reached its end too."""
        if self.runtime.world > 1:
            self._say(END)

    def _say(self, kind: str, content: str | None = None) -> list[tuple[str, str | None]]:
        """Exchange what each process does; all of them raise where they took different paths."""
        messages = self.runtime.gather_objects((kind, content))
        kinds = [kind for kind, _ in messages]
        others = set(kinds) - {WAITING}
        if len(others) < 2 and (others <= {FIRST, OVER} or WAITING not in kinds):
            return messages
        raise ConfigurationError(
            "gather-on-some-processes",
            f"The processes took different paths: {_by_process(kinds)}. `gather` waits for all "
            "processes: call it on every process, equally often and in the same order, and not "
            "under a condition such as `if self.run_config.is_world_process_zero`.",
        )


def _by_process(values: list[Any]) -> str:
    return ", ".join(f"process {rank} {value}" for rank, value in enumerate(values))


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return "tensor"
    raise ConfigurationError(
        "gather-no-tensor",
        f"gather was given a {type(value).__name__}: it takes tensors, and lists, tuples and "
        "dicts of tensors. Convert the value, as in `torch.tensor(value, device=self.device)`.",
    )


def _has_ready_batches(stream: Any) -> bool:
    """Whether batches came ready and were dealt out whole, so that how many there are says nothing
    of samples."""
    while not isinstance(stream, ShardedBatches):
        stream = getattr(stream, "_stream", None)
        if stream is None:
            return False
    return True


class PreparedLoader:
    """Another loader's batches, on the device, in the order that the seed and the epoch say.

    Each batch that is taken from a training loader is a step of the run. Batches of an evaluation
    loader come in eval mode and without gradients until they are through. All other attributes are
    the other loader's.
    """

    def __init__(self, core: LifecycleCore, loader: Any, is_training: bool) -> None:
        self.core = core
        self.loader = loader
        self.is_training = is_training

    def __iter__(self) -> Iterator[Any]:
        core = self.core
        return core.training_batches(self) if self.is_training else core.evaluation_batches(self)

    def __len__(self) -> int:
        length = self.core.stream(self, is_training=self.is_training).num_batches
        if length is None:
            raise TypeError(
                f"{type(self.loader).__name__} over data without a length has no length."
            )
        return length

    def __getattr__(self, name: str) -> Any:
        if name in ("core", "loader"):
            raise AttributeError(name)  # before `__init__`, as when it is copied
        return getattr(self.loader, name)


def prepared(core: LifecycleCore, loader: Any, *, is_training: bool) -> Any:
    """The loader with the run's accounting around it, unless it has that already, perhaps
    inside."""
    own = inner_of(loader)
    if own is None:
        return PreparedLoader(core, loader, is_training)
    if own is loader and own.core is not core:
        return PreparedLoader(core, own.loader, is_training)
    return loader


def inner_of(loader: Any) -> PreparedLoader | None:
    """The prepared loader that this is, or that it holds, as a slice of a loader does."""
    if isinstance(loader, PreparedLoader):
        return loader
    if isinstance(loader, DataLoader):
        return None
    held = vars(loader).values() if hasattr(loader, "__dict__") else ()
    return next((value for value in held if isinstance(value, PreparedLoader)), None)


def length_of(loader: Iterable[Any] | None) -> int | None:
    """The number of batches, where that is known."""
    try:
        return None if loader is None else len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def build_loader(dataset: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    if isinstance(dataset, tuple) and all(isinstance(part, Tensor) for part in dataset):
        raise ConfigurationError(
            "tuple-as-dataset",
            f"The data set is a tuple of {len(dataset)} tensors, of which each would be a sample: "
            "make one data set from them, as in `TensorDataset(inputs, targets)`.",
        )
    return DataLoader(dataset, **options)


def loader_options(
    dataset: Any,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    collate_fn: Callable[[Any], Any] | None,
) -> dict[str, Any]:
    """Arguments for a DataLoader: the user's options, and the defaults that do not contradict
    them."""
    given = dict(given or {})
    excluded: tuple[str, ...] = ()
    if isinstance(dataset, IterableDataset) or "sampler" in given:
        excluded = ("shuffle",)
    if "batch_sampler" in given:
        excluded = ("shuffle", "batch_size", "drop_last", "sampler")
    options = {name: value for name, value in defaults.items() if name not in excluded}
    if collate_fn is not None:
        options["collate_fn"] = collate_fn
    return options | given
