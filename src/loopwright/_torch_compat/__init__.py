"""Every private name of torch and torchmetrics that this package uses, each under a plain name.

A release that moves or removes one of them is answered here and nowhere else. "Since" names the
first release of torch that has it, as far as we know; the oldest one supported, 2.11, has them all.
What `import torch` and `torch.utils.data` do not import is imported at the call.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .._version import OLDEST_TORCH, __version__

if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
    oldest = ".".join(map(str, OLDEST_TORCH))
    raise ImportError(
        f"Loopwright {__version__} needs torch {oldest} or newer, and here is torch "
        f"{torch.__version__}: pip install 'torch>={oldest}'."
    )

# Operations on lists of tensors, one kernel for many of them

foreach_copy_ = torch._foreach_copy_
"""Copy each tensor of the second list into that of the first. Since 2.1."""

foreach_div_ = torch._foreach_div_
"""Divide each tensor in place. Since 1.7."""

foreach_mul_ = torch._foreach_mul_
"""Multiply each tensor in place. Since 1.7."""

foreach_lerp_ = torch._foreach_lerp_
"""Move each tensor of the first list towards that of the second. Since 2.0."""

_ones: dict[torch.device, Tensor] = {}


def note_nonfinite(flag: Tensor, tensors: list[Tensor]) -> None:
    """Set a flag, a tensor of one number, where a value on its device is not finite; waits for
    nothing. Since 1.6.

    It is the kernel of loss scaling with a scale of 1, so values keep their bits.
    """
    one = _ones.get(flag.device)
    if one is None:
        one = _ones[flag.device] = torch.ones((), device=flag.device)
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, one)
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse, complex, of a graph, or on a device without the kernel
        for tensor in tensors:
            values = _sparse_values(tensor.detach()) if tensor.is_sparse else tensor.detach()
            is_bad = ~(values if values.dtype.itemsize > 1 else values.float()).isfinite().all()
            flag.copy_(torch.maximum(flag, is_bad.to(flag)))


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values of tensors are finite, with one read from the device. Since 1.6."""
    values = [tensor.detach() for tensor in tensors]
    flag = torch.zeros((), device=values[0].device if values else None)
    note_nonfinite(flag, values)
    return not flag.item()


# Tensors and modules

BatchNormBase = _BatchNorm
"""The base class of all batch norms, for one that computes over several ranks. Since 0.1."""


def version_of(tensor: Tensor) -> int:
    """The number of changes in place that autograd has counted, to notice one. Since 0.4."""
    return tensor._version


def _sparse_values(tensor: Tensor) -> Tensor:
    """The stored values of a sparse tensor, coalesced or not; `Tensor.values` takes only a
    coalesced one. Since 0.4."""
    return tensor._values()


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The table of a module's own parameters, to put others in their place without `__setattr__`.
    Since 0.1."""
    return module._parameters


def has_load_hooks(module: nn.Module) -> bool:
    """Whether code of its own runs when the module's state dict is loaded. Since 0.4."""
    return bool(module._load_state_dict_pre_hooks)


LOADING_METHODS = ("_load_from_state_dict", "load_state_dict", "set_extra_state")
"""Methods that a module overrides to load its state dict in its own way. Since 0.4;
`set_extra_state` since 1.10."""


def state_dict_metadata(state: object) -> Any:
    """The versions of modules that a state dict carries as an attribute; None without. Since
    0.4.1."""
    return getattr(state, "_metadata", None)


def set_state_dict_metadata(state: object, metadata: object) -> None:
    """Give a copy of a state dict the versions of modules, which `load_state_dict` reads. Since
    0.4.1."""
    state._metadata = metadata  # type: ignore[attr-defined]


def has_several_gradient_hooks(param: nn.Parameter) -> bool:
    """Whether a parameter has more than one `register_post_accumulate_grad_hook`. Since 2.1."""
    return len(param._post_accumulate_grad_hooks) > 1


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass under way, as torch's DDP does. Since 0.4."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def watch_operators(look: Callable[[tuple[Any, ...], Any], None]) -> AbstractContextManager[Any]:
    """Context in which a function sees the arguments and the result of every operator. Since
    1.13."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            look(args, result)
            return result

    return Watch()  # type: ignore[no-untyped-call]


@contextmanager
def watch_clipping(look: Callable[[str], None]) -> Iterator[None]:
    """Context in which a function is called with the name of each clipping that finds no gradients.
    Since 2.6."""
    from torch.nn.utils import clip_grad

    names = {
        "_get_total_norm": "clip_grad_norm_",
        "_group_tensors_by_device_and_dtype": "clip_grad_value_",
    }
    own = {name: getattr(clip_grad, name) for name in names}

    def watched(name: str) -> Callable[..., Any]:
        def call(tensors: Any, *args: Any, **options: Any) -> Any:
            if not len(tensors if name == "_get_total_norm" else tensors[0]):
                look(names[name])
            return own[name](tensors, *args, **options)

        return call

    try:
        for name in names:
            setattr(clip_grad, name, watched(name))
        yield
    finally:
        for name, function in own.items():
            setattr(clip_grad, name, function)


# Optimizers, schedules and loss scaling


def supports_found_inf(optimizer: Optimizer) -> bool:
    """Whether `step` leaves itself out where the tensor `found_inf` says so (fused optimizers).
    Since 1.13."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_stepped(optimizer: Any) -> None:
    """Keep a scheduler from warning that the optimizer took no step before it. Since 2.4."""
    optimizer._opt_called = True


INNER_SCHEDULERS = "_schedulers"
"""The attribute in which chained and sequential schedulers keep those inside. Since 1.4."""


def overflow_flags(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> list[Tensor]:
    """Whether unscaling met a non-finite gradient, for each device. Since 1.6."""
    return list(scaler._found_inf_per_device(optimizer).values())


# DataLoader


def iterates_as_torch(loader: object) -> bool:
    """Whether an object is a DataLoader whose class changed nothing about its iteration. Since
    1.7."""
    if not isinstance(loader, DataLoader):
        return False
    kind = type(loader)
    return kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator


def draws_each_sample_once(sampler: RandomSampler) -> bool:
    """Whether a sampler is a permutation of the data set: no replacement and no number of its own.
    Since 1.0."""
    return not sampler.replacement and sampler._num_samples is None


def persistent_iterator(loader: DataLoader[Any]) -> Any:
    """The iterator of persistent workers that wait for the next epoch; None without. Since 1.7."""
    return loader._iterator


def workers_of(batches: Any) -> list[Any]:
    """The worker processes of a loader's iterator; none of another one. Since 1.0."""
    workers: list[Any] = getattr(batches, "_workers", [])
    return workers


class PolledBatches(_MultiProcessingDataLoaderIter):
    """The iterator of a loader with workers, which calls `look` while it waits for one. Since 1.0.

    An iterator becomes one by its `__class__`: it is the same but for one method.
    """

    look: Callable[[], None]
    between_looks = 0.25  # seconds

    def _try_get_data(self, timeout: float = between_looks) -> tuple[bool, Any]:
        while True:
            found: tuple[bool, Any]
            found = super()._try_get_data(min(timeout, self.between_looks))  # type: ignore[no-untyped-call]
            timeout -= self.between_looks
            if found[0]:
                return found
            self.look()
            if timeout <= 0:
                return found


def awaited_worker(frame: FrameType) -> Any:
    """The worker process whose batch a loader's iterator needs next; None for a frame of anything
    else. Since 1.0."""
    batches: Any = frame.f_locals.get("self")
    if not issubclass(type(batches), _MultiProcessingDataLoaderIter) or not hasattr(
        batches, "_task_info"
    ):
        return None  # or of one that is still starting its workers
    task = batches._task_info.get(batches._rcvd_idx)
    return None if task is None else batches._workers[task[0]]


def expect_killed_workers(batches: Any) -> None:
    """Let the end of a loader's workers be no error any more, which torch's handler of SIGCHLD
    raises. Since 1.0."""
    from torch.utils.data._utils import signal_handling as torchs

    handling: Any = torchs
    handling._remove_worker_pids(id(batches))
    batches._worker_pids_set = False


_WORKER_ENDED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (\d+)[\d, ]*\) "
    r"(?:is killed by signal: (?P<signal>[^.]+)\.|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)


def ended_worker(error: BaseException | None) -> tuple[int, int | None] | None:
    """The process id of a worker that torch found dead, and its exit code where torch says it.
    Since 1.0."""
    found = _WORKER_ENDED.match(str(error)) if isinstance(error, RuntimeError) else None
    if error is None or found is None:
        return None
    if found["signal"] or found["code"]:
        by_name = {signal.strsignal(number): -number for number in signal.valid_signals()}
        return int(found[1]), by_name.get(found["signal"]) if found["signal"] else int(
            found["code"]
        )
    return ended_worker(error.__cause__) or (int(found[1]), None)


def check_workers() -> None:
    """Raise torch's error if a worker process of any loader was killed or failed. Since 1.0."""
    from torch.utils.data._utils import signal_handling as torchs

    handling: Any = torchs
    handling._error_if_any_worker_fails()


def shut_down_workers(batches: Any) -> None:
    """Ask the worker processes of a loader's iterator to end. Since 1.0."""
    batches._shutdown_workers()


@contextmanager
def worker_signal_handlers(
    wrap: Callable[[Callable[[], None]], Callable[[], None]],
) -> Iterator[None]:
    """Meanwhile, let workers set their signal handlers by `wrap(torch's own function)`. Since
    1.1."""
    from torch.utils.data._utils import signal_handling as torchs

    handling: Any = torchs  # which exports nothing that has a type
    original = handling._set_worker_signal_handlers
    handling._set_worker_signal_handlers = wrap(original)
    try:
        yield
    finally:
        handling._set_worker_signal_handlers = original


def collates_as_torch() -> bool:
    """Whether `default_collate` handles tensors and containers as torch does: the user extended
    neither. Since 2.0."""
    from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

    containers: tuple[object, ...] = ((), [], {})
    extended = any(
        isinstance(container, kind) for kind in default_collate_fn_map for container in containers
    )
    return default_collate_fn_map.get(Tensor) is collate_tensor_fn and not extended


def pin_memory(batch: Any) -> Any:
    """Copy the tensors of a nested batch into pinned memory, as a DataLoader does. Since 1.0."""
    from torch.utils.data._utils.pin_memory import pin_memory as pin

    return pin(batch)  # type: ignore[no-untyped-call]


# Nested containers


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested containers. Since 2.2."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Nested containers with a function applied to each leaf. Since 1.8."""
    from torch.utils import _pytree

    return _pytree.tree_map(function, tree)


# torchmetrics (1.4 and later)


@runtime_checkable
class CountedMetric(Protocol):
    """A metric that counts its updates and shows its state, as those of torchmetrics do."""

    _update_count: int

    @property
    def metric_state(self) -> Mapping[str, Any]: ...

    def reset(self) -> None: ...


@runtime_checkable
class MergeableMetric(CountedMetric, Protocol):
    """A metric that says how the states of several ranks become one, as those of torchmetrics
    do."""

    _computed: Any
    _to_sync: bool
    _reductions: Mapping[str, Callable[[Any], Any] | None]


def update_count(metric: CountedMetric) -> int:
    """How often a metric was updated."""
    return metric._update_count


def set_update_count(metric: CountedMetric, count: int) -> None:
    """Set how often a metric was updated; without updates `compute` warns."""
    metric._update_count = count


def reductions_of(metric: MergeableMetric) -> Mapping[str, Callable[[Any], Any] | None]:
    """The functions that reduce the stacked states of several ranks to one, by the name of the
    state."""
    return metric._reductions


def forget_computed(metric: MergeableMetric) -> None:
    """Let `compute` compute again instead of returning what it returned last."""
    metric._computed = None


def set_syncing(metric: MergeableMetric, is_on: bool) -> None:
    """Whether `compute` gathers the states of all ranks by itself."""
    metric._to_sync = is_on
