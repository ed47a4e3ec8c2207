"""The runtime of a single process: placement of models and batches on a device, precision, and
device properties."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data.containers import map_tensors, tensors_in
from ..data.sharding import Shard
from ..data.workers import workers_outlive_signals
from ..errors import ConfigurationError
from ..text import counted
from .dtensor import Mesh

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


_wrapped: WeakSet[nn.Module] = WeakSet()

_NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


class Runtime:
    """A device and a precision. `DistributedRuntime` has the same interface for one rank of
    several.

    Args:
        device: A device or its name, such as "cpu" or "cuda:1"; the best one there is by default.
        precision: "fp32", or autocast in "bf16" or "fp16"; "fp16" comes with loss scaling.
        activation_checkpointing: Recompute the activations of repeated blocks in the backward pass,
            to save memory.
        compile: Apply `torch.compile` to the "model" or to its repeated "blocks".

    Example:
        >>> from loopwright import Runtime
        >>> runtime = Runtime("cpu", precision="bf16")
        >>> runtime.device.type, runtime.world, runtime.is_main
        ('cpu', 1, True)
    """

    rank = 0
    world = 1
    sample_rank = 0  # among the ranks that work on different samples
    num_shares = 1  # the number of ranks that work on different samples
    # whether gradients are those of this rank until they are averaged, unlike FSDP2's
    averages_gradients = False
    is_in_backward = False  # whether a backward pass of an update is under way
    shard: Shard | None = None
    forwards_together = False  # whether a forward pass needs all ranks, so that none may skip one

    def __init__(
        self,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        *,
        activation_checkpointing: bool = False,
        compile: str | None = None,  # noqa: A002  (the name that users know)
    ) -> None:
        if precision not in _DTYPES:
            raise ConfigurationError(
                "unknown-precision",
                f"Unknown precision {precision!r}: use one of {', '.join(_DTYPES)}. bf16 and fp16 "
                "are mixed precision, by autocast; weights stay float32.",
            )
        if compile not in (None, "model", "blocks"):
            raise ConfigurationError(
                "unknown-compile",
                f"compile={compile!r}: a runtime takes 'model', 'blocks' or None; the whole step "
                "is compiled by Trainer(..., compile='step').",
            )
        self.device = checked_device(device) if device is not None else detect_device()
        self.precision = precision
        self.activation_checkpointing = activation_checkpointing
        self.compile = compile
        self.is_host = self.device.type == "cpu"

    @property
    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes; torch's is a new one each time, since it must not be
        entered twice at once."""
        dtype = _DTYPES[self.precision]
        return _NO_CONTEXT if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    @property
    def no_autocast(self) -> AbstractContextManager[Any] | None:
        """The context that takes backward passes out of `autocast`, where there is one."""
        return None if self.precision == "fp32" else torch.autocast(self.device.type, enabled=False)

    @property
    def reads_are_free(self) -> bool:
        """Whether reading a number does not synchronise with a device."""
        return self.is_host

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that prints and writes for all."""
        return self.rank == 0

    def build_scaler(self) -> torch.amp.GradScaler | None:
        """A new loss scaler, where the precision needs one; every optimizer has its own."""
        return torch.amp.GradScaler(self.device.type) if self.precision == "fp16" else None

    def place(self, module: nn.Module) -> None:
        """Move a module to the device; one on the meta device is initialised there."""
        if is_meta(module):
            self._materialise(module)
        module.to(self.device)

    def _materialise(self, module: nn.Module) -> None:
        """Initialise a model on the meta device."""
        from .fsdp import find_bad_value, materialise

        materialise(module, self.device)
        for problem in self.gather_objects(find_bad_value(module)):
            if problem is not None:
                raise ConfigurationError("ranks-differ", problem)

    def wrap(self, module: nn.Module) -> dict[int, nn.Parameter]:
        """Prepare a model for training; returns new parameters under the ids of the parameters that
        they replace."""
        if module in _wrapped:
            return {}  # by an earlier trainer
        _wrapped.add(module)
        if self.activation_checkpointing or self.compile is not None:
            from .fsdp import checkpoint_activations, compile_parts

            if self.activation_checkpointing:
                checkpoint_activations(module)
            if self.compile is not None:
                compile_parts(module, self.compile)
        return {}

    def move(self, batch: Any) -> Any:
        """The batch with all its tensors on the device; containers keep their type."""
        return batch if self.is_host else move_to(batch, self.device)

    def open_feed(self, *, pins: bool) -> DeviceFeed | None:
        """Return what moves batches in advance; None on the host, where there is nothing to move.

        With `pins`, CUDA devices get copies from pinned memory, whether or not the data is in it.
        """
        if self.is_host:
            return None
        if self.device.type == "cuda":
            return CudaFeed(self.move, self.device, pins=pins)
        return DeviceFeed(self.move)

    # What a single process has nothing to do for

    def supervised(self) -> AbstractContextManager[Any]:
        """The context of training: a failure of one rank ends all; signals do not end loaders'
        workers."""
        return workers_outlive_signals()

    def adapt_optimizer(self, optimizer: Optimizer) -> None:
        """Turn off what an optimizer cannot do with the parameters that the models have now."""

    def start_step(self, is_last: bool, size: int) -> None:
        """Begin a step of `size` samples; `is_last` says that it ends its accumulation window."""

    def reshard(self) -> None:
        """Free the full parameters that forward passes without a backward pass have left."""

    def finish_update(self, modules: Iterable[nn.Module]) -> None:
        """End an update of these models."""

    def sync_gradients(
        self, params: Sequence[nn.Parameter], flag: Tensor | float | None = None
    ) -> Tensor | float | None:
        """Average the gradients of a window over all ranks; returns the largest of their flags."""
        return flag

    def local_parts(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """This rank's parts of gradients, which may be sharded."""
        return list(grads)

    def sum_count(self, count: Any) -> Any:
        """The sum of a number of items over the ranks that work on different samples."""
        return count

    def sum_table(self, table: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Sums and counts by name, added up over the ranks that work on different samples."""
        return dict(table)

    def gather(self, tensor: Tensor, padding_value: float | None = None) -> Tensor:
        """The rows of all ranks that work on different samples, concatenated, on every rank.

        Where dimensions other than the first differ, `padding_value` fills them up to the largest.
        """
        return tensor if tensor.dim() else tensor.reshape(1)

    @property
    def gather_samples(self) -> Callable[[Any], list[Any]] | None:
        """`gather_each` on several ranks, None on one."""
        return self.gather_each if self.world > 1 else None

    def gather_each(self, value: Any) -> list[Any]:
        """One value of each rank that works on samples of its own."""
        return [value]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        return [value]

    def gather_parts(self, parts: Sequence[Any]) -> list[Any]:
        """All ranks' parts of each batch, in the order of its samples; each part is in a tuple,
        which may be empty."""
        return [part[0] for part in parts if part]

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        return value

    def barrier(self, place: str) -> None:
        """Wait for all ranks; `place` names the barrier in an error."""

    def exchange(self, requests: Sequence[int]) -> tuple[int, ...]:
        """Send this update's requests; return the maximum over all ranks of the previous
        update's."""
        return tuple(requests)

    def finish_exchange(self) -> None:
        """Wait for the exchange in flight, if there is one."""


def is_meta(module: nn.Module) -> bool:
    """Whether a tensor of the model is on the meta device."""
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def checked_device(given: str | torch.device) -> torch.device:
    """The device; refused if torch does not know it or the machine lacks it."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError):
        raise ConfigurationError(
            "unknown-device",
            f"{given!r} is not a device that torch knows: write 'cpu', 'cuda' (NVIDIA and AMD "
            "GPUs), 'cuda:1' or 'mps', or leave it out to use the best available device.",
        ) from None
    problem = ""
    if device.type == "cuda" and torch.version.cuda is None:
        problem = "this torch was built without it"
    elif device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        problem = f"torch finds {counted(torch.cuda.device_count(), 'GPU')}"
    elif device.type == "mps" and not torch.backends.mps.is_available():
        problem = "torch finds no Apple GPU"
    if problem:
        raise ConfigurationError(
            "device-not-available",
            f"The device {str(given)!r} is not available: {problem}. Leave it out to use the best "
            f"available device (here {detect_device().type!r}).",
        )
    return device


def detect_device() -> torch.device:
    """The best device of this machine: CUDA, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def move_to(value: Any, device: torch.device) -> Any:
    """Move the tensors in nested containers to a device; other values are passed through."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def is_launched() -> bool:
    """Whether a launcher (torchrun, SLURM or `launch`) started this process as one of several."""
    if not os.environ.keys() & {"WORLD_SIZE", "SLURM_NTASKS"}:
        return False
    from .environment import Launch

    return Launch.from_environment() is not None


def resolve_runtime(
    given: Any,
    precision: str,
    device: Any = None,
    compile: str | None = None,  # noqa: A002  (the name that users know)
    *,
    activation_checkpointing: bool = False,
    **of_ranks: Any,
) -> Runtime:
    """The runtime of a trainer, from its arguments.

    Args:
        given: A `Runtime`, a device, "ddp", "fsdp", a `Mesh`, or None: DDP if a launcher started
            several processes, otherwise the best device.
        precision: As for `Runtime`.
        device: The device where `given` names none; the same one where it does.
        compile: As for `Runtime`, or "step", which the trainer does itself.
        activation_checkpointing: As for `Runtime`.
        **of_ranks: Further settings of a `DistributedRuntime`, without effect on one process.
    """
    if compile not in (None, "step", "model", "blocks"):
        raise ConfigurationError(
            "unknown-compile", f"compile={compile!r}: use 'step', 'model', 'blocks' or None."
        )
    device = None if device is None else checked_device(device)
    if isinstance(given, Runtime):
        _check_given_once(given, precision, device, compile)
        return given
    compiled = None if compile == "step" else compile
    is_strategy = given in (None, "ddp", "fsdp") or isinstance(given, Mesh)
    if is_strategy and is_launched():
        from .distributed import DistributedRuntime

        return DistributedRuntime(
            given or "ddp",
            device=_device_of_each(device),
            precision=precision,
            compile=compiled,
            activation_checkpointing=activation_checkpointing,
            **of_ranks,
        )
    if isinstance(given, Mesh):
        given.check(1)
    runtime = Runtime(
        device if is_strategy else given,
        precision,
        compile=compiled,
        activation_checkpointing=activation_checkpointing,
    )
    _check_given_once(runtime, precision, device, compile)
    return runtime


def _check_given_once(
    runtime: Runtime, precision: str, device: torch.device | None, compiled: str | None
) -> None:
    """Refuse settings beside a runtime that has others."""
    settings: dict[str, tuple[Any, Any]] = {}
    if precision not in ("fp32", runtime.precision):
        settings["precision"] = (precision, runtime.precision)
    if device is not None and not _is_same(device, runtime.device):
        settings["device"] = (str(device), str(runtime.device))
    is_for_trainer = compiled == "step" and runtime.compile is None
    if compiled not in (None, runtime.compile) and not is_for_trainer:
        settings["compile"] = (compiled, runtime.compile)
    for name, (given, own) in settings.items():
        raise ConfigurationError(
            "given-twice",
            f"{name}={given!r} was given together with a runtime that has {name}={own!r}: set it "
            "in only one place.",
        )


def _is_same(device: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same, where one may lack the index."""
    is_index_same = device.index == other.index or None in (device.index, other.index)
    return device.type == other.type and is_index_same


def _device_of_each(device: torch.device | None) -> torch.device | None:
    """The device of one of several processes; None where each takes the one of its local rank."""
    if device is None or device.type == "cpu":
        return device
    index: int | None = device.index
    if index is not None:
        raise ConfigurationError(
            "one-device-for-all",
            f"device={str(device)!r} was given to several processes, but each process has its own "
            f"device: write {device.type!r}.",
        )
    return None


Move = Callable[[Any], Any]


class DeviceFeed:
    """Moves batches to the device, at most one of them before it is needed.

    A batch is recognised by identity: one that was moved in advance and is not asked for next is
    dropped. So a feed can be wrong about the next batch without any effect on what is trained.
    """

    def __init__(self, move: Move) -> None:
        self._move = move
        self._value: Any = None
        self._moved: Any = None

    def start(self, value: Any) -> None:
        """Begin to move the batch that will probably be asked for next; None if there is none."""
        self._value = value
        self._moved = None if value is None else self._move(value)

    def get(self, value: Any) -> Any:
        """Return a batch on the device; it is moved now unless that has begun."""
        if value is not self._value:
            self.start(value)
        moved = self._moved
        self._value = None
        self._moved = None
        return moved


class CudaFeed(DeviceFeed):
    """A feed whose copies are on a CUDA stream of their own, so that they overlap with the
    computation.

    Args:
        move: Moves a batch, without waiting for copies from pinned memory.
        device: The device.
        pins: Whether to copy tensors to pinned memory first; a copy from other memory makes the
            host wait.
    """

    def __init__(self, move: Move, device: torch.device, *, pins: bool) -> None:
        super().__init__(move)
        self._device = device
        self._pins = pins
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, value: Any) -> None:
        if not all(tensor.device.type == "cpu" for tensor in tensors_in(value)):
            super().start(value)  # it may depend on kernels of the current stream
            return
        with torch.cuda.stream(self._copies):
            super().start(pinned(value) if self._pins else value)
        self._value = value

    def get(self, value: Any) -> Any:
        moved = super().get(value)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._copies)
        for tensor in tensors_in(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)  # its memory belongs to the stream of copies
        return moved


def pinned(value: Any) -> Any:
    """Copy the tensors of a batch to pinned memory, except those that are there."""
    return map_tensors(lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory(), value)
