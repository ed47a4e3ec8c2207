"""What a trial needs: a fresh run of a trainer, of which nothing stays, and the time and memory of
its steps."""

from __future__ import annotations

import gc
import os
import statistics
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..callback import Callback
from ..callbacks.freezing import Freeze
from ..data.open import Stream
from ..data.random import all_preserved
from ..data.stream import LimitedStream
from ..errors import DataError
from ..initializers import Initializer
from ..metrics.progress import Limits
from ..metrics.result import StepResult
from ..training.compiled import wait_for
from ..training.restore import Keeper
from ..training.run import TrainingRun
from ..training.train_call import run_training

if TYPE_CHECKING:
    from ..callback import Trainer


ESSENTIAL = (Initializer, Freeze)  # callbacks that decide what is trained, and from which weights
# the part of the free memory that is used: the operating system kills processes that use all of it
SPARE = 0.8
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def fresh_run(trainer: Trainer, callbacks: Iterable[Callback]) -> Iterator[Keeper]:
    """Context in which the trainer has a fresh run, with its weights; its state is restored
    afterwards.

    Its optimizers begin without state. Of its own callbacks, initialisers and `Freeze` stay;
    `callbacks` are added.
    """
    trainer.setup()
    keeper = Keeper()
    essential = [c for c in trainer.run.callbacks or trainer.callbacks if isinstance(c, ESSENTIAL)]
    for owner in (trainer, trainer._components, *essential):
        keeper.keep(owner)
    for module in trainer.modules.values():
        keeper.keep_model(module)
    for optimizer in trainer.optimizers.values():
        keeper.keep_optimizer(optimizer)
        optimizer.state = defaultdict(dict)
    for param in trainer._components.parameters():
        param.grad = None
    trainer.callbacks = [*essential, *callbacks]
    start_again(trainer)
    with all_preserved():
        try:
            yield keeper
        finally:
            keeper.restore()


def use_run(trainer: Trainer, run: TrainingRun, compiled: str | None) -> None:
    """Let the trainer train another run, with the components and the runtime of that run."""
    trainer.run = run
    trainer._components = run.components
    trainer.runtime = run.runtime
    trainer.compile_mode = compiled


def start_again(trainer: Trainer) -> None:
    """Give the trainer a fresh run; weights and optimizers are not changed."""
    use_run(trainer, trainer.run.fresh(), trainer.compile_mode)
    trainer.run.bind(trainer.callbacks)


def train_for_a_while(
    trainer: Trainer, data: Any, num_updates: int, batch_size: int | None
) -> None:
    """Train a number of updates in a fresh run; restore the position of data that has one."""
    with kept_position(trainer, data, batch_size):
        run_training(
            trainer.run,
            data,
            None,
            Limits(updates=num_updates),
            batch_size=batch_size,
            resume=False,
        )


@contextmanager
def kept_position(trainer: Trainer, data: Any, batch_size: int | None) -> Iterator[Stream]:
    """Context after which data that has a position is where it was; gives the stream that was
    opened to know it."""
    stream = data if isinstance(data, Stream) else trainer._open(data, batch_size, shuffle=True)
    position = None
    with suppress(DataError):  # without a position
        stream.check_resumable()
        position = stream.state_dict() if stream.spans_epochs else None
    stream.close()
    try:
        yield stream
    finally:
        if position is not None:
            stream.load_state_dict(position)
            stream.close()


# The memory that a step needs, and that there is


class SavedBytes(saved_tensors_hooks):
    """Context that counts the bytes that forward passes save for the backward pass: each storage
    once, without weights."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__(self._note, lambda tensor: tensor)
        self.total = 0
        self._seen = {
            _storage(tensor)
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
        }

    def _note(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._seen:
            self._seen.add(storage)
            self.total += storage[1]
        return tensor


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return the address and the size of a tensor's storage; an address alone may be reused for
    another tensor."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is out of memory: of an accelerator, or of the CPU, for which torch has no
    error class."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )


def let_go(error: BaseException) -> None:
    """Free the memory of a failed step."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def usable() -> int:
    """The bytes that a step may need on the CPU: most of what the machine, or the container if it
    has a limit, has available."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError):  # no container, or one without a limit: "max"
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, max(limit - int((CGROUP / "memory.current").read_text()), 0))
    return int(SPARE * free)


class TrialWatch(Callback):
    """Callback that times full batches and measures the memory of the first.

    On the CPU, it counts the tensors that are saved for the backward pass; on a GPU, it reads the
    peak of the memory.

    Args:
        size: Samples per batch.
        num_full: The number of full batches in an epoch.
    """

    def __init__(self, size: int, num_full: int) -> None:
        self.size = size
        self._num_full = num_full
        self._times: list[float] = []
        self._started = 0.0
        self._counting = ExitStack()
        self._saved: SavedBytes | None = None
        self.memory: int | None = None

    @property
    def seconds(self) -> float | None:
        """The median of all updates but the first, which is slower than the others."""
        times = self._times[1:] or self._times
        return statistics.median(times) if times else None

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        return LimitedStream(stream, self._num_full) if is_training else stream

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.runtime.device)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.runtime.device.type == "cpu" and self._saved is None:
            self._saved = SavedBytes(trainer.modules.values())
            self._counting.enter_context(self._saved)
        wait_for(trainer.runtime.device)
        self._started = perf_counter()

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self._counting.close()

    def on_update_end(self, trainer: Trainer) -> None:
        device = trainer.runtime.device
        wait_for(device)
        self._times.append(perf_counter() - self._started)
        if self._saved is not None:
            self.memory = self._saved.total
        elif device.type == "cuda":
            self.memory = torch.cuda.max_memory_allocated(device)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._counting.close()
