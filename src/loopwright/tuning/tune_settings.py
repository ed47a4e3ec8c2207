"""The settings that `tune` varies, and a trainer and its data under other settings, of which nothing
stays."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .._torch_compat import iterates_as_torch
from .._torch_compat.compiling import compile_in_place, compiled_call, set_compiled_call
from ..data.indexed import TensorStream
from ..data.open import DEFAULT_BATCH_SIZE, Stream, as_dataset, is_samples
from ..data.stream import Stateful
from ..errors import ConfigurationError
from ..runtime.fsdp import blocks_of
from ..training.callback_schedulers import set_hyperparameters
from ..training.compiled import CompiledStep
from ..training.program import Program
from ..training.run import TrainingRun
from .fresh_run import use_run

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
MAX_DOUBLINGS = 6
WITH_WORKERS = ("timeout", "multiprocessing_context")  # options of a loader with workers
KEPT = ("collate_fn", "worker_init_fn", "generator", "in_order", *WITH_WORKERS)


@dataclass(frozen=True, slots=True)
class Settings:
    """A value for each setting that is tried."""

    workers: int = 0
    batch_size: int | None = None
    compile: str | None = None
    precision: str = "fp32"
    threads: int = 1
    channels_last: bool = False
    fused: bool = False
    pin_memory: bool = False


NAMES = tuple(field.name for field in fields(Settings))


class Choices:
    """The present settings of a trainer, the values to try for each, and why some settings are not
    tried."""

    def __init__(self, trainer: Program, data: TunedData) -> None:
        self._trainer = trainer
        self._data = data
        self.reasons: dict[str, str] = dict(data.fixed)
        groups = [
            group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups
        ]
        self.present = Settings(
            workers=data.workers,
            batch_size=data.batch_size,
            compile=trainer.compile_mode,
            precision=trainer.runtime.precision,
            threads=torch.get_num_threads(),
            channels_last=any(
                _is_channels_last(tensor) for tensor in _images(trainer.modules.values())
            ),
            fused=bool(groups) and all(group.get("fused") for group in groups),
            pin_memory=data.pin_memory,
        )

    def of(self, name: str) -> list[Any]:
        """The values to try, without the present one."""
        if name in self.reasons:
            return []
        find: Callable[[], tuple[list[Any], str]] = getattr(self, f"_{name}")
        found, why_none = find()
        values = [value for value in found if value != getattr(self.present, name)]
        if not values:
            self.reasons[name] = why_none or "there is nothing else to try"
        return values

    # Values to try, and why there are none where only the present one is among them

    def _workers(self) -> tuple[list[int], str]:
        return [0, *_powers(num_cores())], ""

    def _batch_size(self) -> tuple[list[int], str]:
        first = self.present.batch_size or 1
        length = self._data.num_samples
        sizes = [first << number for number in range(1, MAX_DOUBLINGS + 1)]
        reason = f"the data set has {length} samples, which is less than twice the batch"
        return [size for size in sizes if length is None or size <= length], reason

    def _compile(self) -> tuple[list[str | None], str]:
        has_blocks = any(blocks_of(module) for module in self._trainer.models.values())
        return [None, "step", "model", *(["blocks"] if has_blocks else [])], ""

    def _precision(self) -> tuple[list[str], str]:
        return ["fp32", "bf16", *(["fp16"] if self._is_on("cuda") else [])], ""

    def _threads(self) -> tuple[list[int], str]:
        if not self._is_on("cpu"):
            return [], "the model is not on the CPU"
        return _powers(num_cores()), "there is one core"

    def _channels_last(self) -> tuple[list[bool], str]:
        if not any(True for _ in _images(self._trainer.modules.values())):
            reason = "the model has no four-dimensional weights, such as those of convolutions"
            return [], reason
        return [True], ""

    def _fused(self) -> tuple[list[bool], str]:
        kinds = [type(optimizer) for optimizer in self._trainer.optimizers.values()]
        if other := [kind.__name__ for kind in kinds if kind not in FUSED]:
            return [], f"torch has no fused {other[0]}"
        return [True], "the optimizer is fused already"

    def _pin_memory(self) -> tuple[list[bool], str]:
        if not self._is_on("cuda"):
            return [], "there is no GPU to copy batches to"
        return [True, False], ""

    def _is_on(self, device: str) -> bool:
        return self._trainer.runtime.device.type == device


class Arrangement:
    """A trainer under some settings, with a run and optimizer states of its own.

    Args:
        trainer: The trainer, which is inside of `fresh_run`.
        settings: The settings to train with.
        data: The data, which is varied as the settings say.
    """

    def __init__(self, trainer: Program, settings: Settings, data: TunedData) -> None:
        self._trainer = trainer
        self.settings = settings
        self.data, self.batch_size = data.varied(
            settings.batch_size, settings.workers, pin_memory=settings.pin_memory
        )
        runtime = copy(trainer.runtime)
        runtime.precision = settings.precision
        runtime.compile = settings.compile if settings.compile != "step" else None
        self.run: TrainingRun = trainer.run.fresh(
            runtime, CompiledStep() if settings.compile == "step" else None
        )
        self.run.bind(trainer.callbacks)
        self._states: dict[str, Any] = {name: defaultdict(dict) for name in trainer.optimizers}
        self._compiled: dict[nn.Module, Any] = {}
        self._images: list[torch.Tensor] = []  # weights in the order of channels-last

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the trainer has these settings."""
        trainer = self._trainer
        with ExitStack() as stack:
            stack.callback(use_run, trainer, trainer.run, trainer.compile_mode)
            use_run(trainer, self.run, self.settings.compile)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.settings.threads)
            if self.settings.channels_last:
                self._reorder_images(stack)
            self._compile_parts(stack)
            stack.enter_context(self._with_own_optimizers())
            yield

    def _reorder_images(self, undo: ExitStack) -> None:
        tensors = list(_images(self._trainer.modules.values()))
        if not self._images:  # made once: a compiled step may keep them
            self._images = [tensor.data.to(memory_format=torch.channels_last) for tensor in tensors]
        for tensor, values in zip(tensors, self._images, strict=True):
            undo.callback(setattr, tensor, "data", tensor.data)
            tensor.data = values

    def _compile_parts(self, undo: ExitStack) -> None:
        """Compile the model or its blocks in place, once; later the same compiled functions are
        used."""
        kind = self.settings.compile
        for module in self._trainer.modules.values():
            for part in module.modules():
                undo.callback(set_compiled_call, part, compiled_call(part))
                if compiled_call(part) is not None:
                    set_compiled_call(part, None)
        for model in self._trainer.models.values() if kind in ("model", "blocks") else ():
            for part in [model] if kind == "model" else blocks_of(model):
                if part not in self._compiled:
                    compile_in_place(part)
                    self._compiled[part] = compiled_call(part)
                set_compiled_call(part, self._compiled[part])

    @contextmanager
    def _with_own_optimizers(self) -> Iterator[None]:
        optimizers = self._trainer.optimizers
        before = {
            name: [dict(group) for group in optimizer.param_groups]
            for name, optimizer in optimizers.items()
        }
        try:
            for name, optimizer in optimizers.items():
                optimizer.state = self._states[name]
                if self.settings.fused:
                    for group in optimizer.param_groups:
                        group.update(fused=True, foreach=False)
            yield
        finally:
            for name, optimizer in optimizers.items():
                self._states[name], optimizer.state = optimizer.state, defaultdict(dict)
                set_hyperparameters(optimizer, before[name])


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _powers(last: int) -> list[int]:
    """1, 2, 4 and so on, and the last number itself."""
    return sorted({1 << number for number in range(last.bit_length())} | {last})


def _images(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """The weights and buffers of four dimensions, of which `channels_last` changes the order in
    memory."""
    for module in modules:
        yield from (
            tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.dim() == 4
        )


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


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
        self.num_samples = stream.num_samples
        if isinstance(stream, TensorStream):
            self.fixed["workers"] = (
                "batches are taken straight from the tensors, and workers would not be used"
            )

    num_samples: int | None = None  # in an epoch, where that is known

    def _read_loader(self, loader: DataLoader[Any]) -> None:
        self.workers, self.pin_memory = loader.num_workers, bool(loader.pin_memory)
        self.batch_size = loader.batch_size
        if not iterates_as_torch(loader):
            self._fix(f"a {type(loader).__name__} with its own way of iterating")
        elif loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
            self.batch_size = None
            self.fixed["batch_size"] = "the loader has its own batch sampler"

    def _fix(self, reason: str) -> None:
        self.fixed |= dict.fromkeys(("workers", "batch_size", "pin_memory"), reason)

    def _refuse_iterator(self) -> None:
        if iter(self.given) is self.given and not isinstance(self.given, Stateful):
            raise ConfigurationError(
                "one-use-iterator",
                f"tune reads the data many times, but a {type(self.given).__name__} can be read "
                "only once: pass a data set, a DataLoader or a list of batches.",
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
