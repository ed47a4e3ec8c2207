"""Loaders whose batches are steps of a run, and `gather`, also where a process has no sample to
gather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import DataLoader

from ...data.open import Stream
from ...data.sharding import ShardedBatches
from ...errors import ConfigurationError
from ...runtime import Runtime

if TYPE_CHECKING:
    from .core import Core


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
        structure = describe(value)
        if self.runtime.world == 1:
            return value
        if self._is_uneven and not self.is_stand_in:
            self._say(FIRST)
            self._is_uneven = False
        structures = self._say(GATHER, structure)
        if len(set(structures)) > 1:
            raise ConfigurationError(
                "gather was given different values on different processes: "
                f"{_by_process(structures)}. Pass the same kind of tensor or container on all of "
                "them."
            )
        return map_tensors(value, lambda tensor: self._rows(tensor, padding_value))

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
        return FIRST in self._kinds(WAITING)

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

    # Messages

    def _kinds(self, kind: str) -> list[str]:
        kinds = [kind for kind, _ in self.runtime.gather_objects((kind, None))]
        _check(kinds)
        return kinds

    def _say(self, kind: str, content: str | None = None) -> list[str | None]:
        messages = self.runtime.gather_objects((kind, content))
        _check([kind for kind, _ in messages])
        return [content for _, content in messages]


def _check(kinds: list[str]) -> None:
    """Every process gets the same messages, so that all of them raise."""
    others = set(kinds) - {WAITING}
    if len(others) < 2 and (others <= {FIRST, OVER} or WAITING not in kinds):
        return
    raise ConfigurationError(
        f"The processes took different paths: {_by_process(kinds)}. `gather` waits for all "
        "processes: call it on every process, equally often and in the same order, and not under "
        "a condition such as `if self.run_config.is_world_process_zero`."
    )


def _by_process(values: list[Any]) -> str:
    return ", ".join(f"process {rank} {value}" for rank, value in enumerate(values))


def describe(value: Any) -> str:
    """The containers and the number of dimensions of what is gathered, the same on all
    processes."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {describe(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(describe, value))})"
    raise ConfigurationError(
        f"gather was given a {type(value).__name__}: it takes tensors, and lists, tuples and "
        "dicts of tensors. Convert the value, as in `torch.tensor(value, device=self.device)`."
    )


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same containers with each tensor in them replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    items = [map_tensors(item, function) for item in value]
    if hasattr(value, "_fields"):
        return type(value)(*items)
    return type(value)(items)


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

    All other attributes are the other loader's.
    """

    is_training: bool

    def __init__(self, core: Core, loader: Any) -> None:
        self.core = core
        self.loader = loader

    def __len__(self) -> int:
        length = self.core.stream(self.loader, is_training=self.is_training).num_batches
        if length is None:
            raise TypeError(
                f"{type(self.loader).__name__} over data without a length has no length."
            )
        return length

    def __getattr__(self, name: str) -> Any:
        if name in ("core", "loader"):
            raise AttributeError(name)  # before `__init__`, as when it is copied
        return getattr(self.loader, name)


class TrainingLoader(PreparedLoader):
    """Each batch that is taken from it is a step of the training run."""

    is_training = True

    def __iter__(self) -> Iterator[Any]:
        return self.core.training_batches(self)


class EvaluationLoader(PreparedLoader):
    """Batches for an evaluation of one's own: in eval mode and without gradients until they are
    through."""

    is_training = False

    def __iter__(self) -> Iterator[Any]:
        return self.core.evaluation_batches(self)


def prepared(core: Core, loader: Any, kind: type[PreparedLoader]) -> Any:
    """The loader with the run's accounting around it, unless it has that already, perhaps
    inside."""
    own = inner_of(loader)
    if own is None:
        return kind(core, loader)
    if own is loader and own.core is not core:
        return kind(core, own.loader)
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
