"""The settings of a run as one immutable value, its processes, and the `_accelerator` of the
published system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..._torch_compat.compiling import uncompiled
from ...errors import ConfigurationError

if TYPE_CHECKING:
    from .trainer import Trainer

PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"


@dataclass(frozen=True, slots=True)
class TrainerRunConfig:
    """The settings of a run and the numbers that follow from them.

    Args:
        num_epochs: Epochs of the run; fewer than you asked for if `max_num_train_steps` ends it
            earlier.
        train_per_device_batch_size: Samples in a training batch of each process.
        train_dl_kwargs: The options of the training loader.
        eval_per_device_batch_size: Samples in an evaluation batch of each process.
        eval_dl_kwargs: The options of the evaluation loader.
        gradient_accumulation_steps: Batches in an update.
        gradient_clip_value: The largest absolute value of a gradient, or None.
        train_total_batch_size: Samples in an update, over all processes and accumulated batches.
        eval_total_batch_size: Samples in an evaluation step, over all processes.
        num_update_steps_per_epoch: Updates in an epoch, or None if the data has no length.
        num_local_update_steps_per_epoch: The same number, under the name of earlier releases.
        max_num_train_steps: The limit of updates, or None.
        is_local_process_zero: Whether this is the first process on its machine.
        is_world_process_zero: Whether this is the first process of all.
        is_distributed: Whether there are several processes.
        mixed_precision: "no", "bf16" or "fp16".
        num_processes: How many processes there are.
    """

    num_epochs: int = 0
    train_per_device_batch_size: int | None = None
    train_dl_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eval_per_device_batch_size: int | None = None
    eval_dl_kwargs: Mapping[str, Any] = field(default_factory=dict)
    gradient_accumulation_steps: int = 1
    gradient_clip_value: float | None = None
    train_total_batch_size: int | None = None
    eval_total_batch_size: int | None = None
    num_update_steps_per_epoch: int | None = None
    num_local_update_steps_per_epoch: int | None = None
    max_num_train_steps: int | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_distributed: bool = False
    mixed_precision: str = "no"
    num_processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def is_distributed() -> bool:
    """Whether there is a process group with more than this process in it."""
    return num_processes() > 1


def num_processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_world_process_zero() -> bool:
    return num_processes() == 1 or dist.get_rank() == 0


def is_local_process_zero() -> bool:
    """Whether this is the first process on its machine, as launchers say with LOCAL_RANK."""
    return num_processes() == 1 or int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0


class Accelerator:
    """The device, the processes and the gradients of a trainer; each name does what the trainer
    itself does there."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def device(self) -> torch.device:
        return self._trainer.device

    @property
    def mixed_precision(self) -> str:
        return self._trainer._mixed_precision

    @property
    def num_processes(self) -> int:
        return num_processes()

    @property
    def process_index(self) -> int:
        return self._trainer._runtime.rank

    @property
    def is_main_process(self) -> bool:
        return is_world_process_zero()

    @property
    def is_local_main_process(self) -> bool:
        return is_local_process_zero()

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the loss scaler left out the last optimizer step, since a gradient was not
        finite."""
        return self._trainer._core.gradients.was_skipped

    @property
    def print(self) -> Callable[..., None]:
        return self._trainer.print

    def prepare(self, *components: Any) -> Any:
        """Models on the device, everything else as it is; the trainer prepares optimizer and
        loaders itself."""
        for component in components:
            if isinstance(component, nn.Module):
                self._trainer._runtime.place(component)
        return components[0] if len(components) == 1 else components

    def free_memory(self) -> None:
        """Nothing of an earlier run is kept."""

    def autocast(self) -> AbstractContextManager[Any]:
        return self._trainer._runtime.autocast

    def no_sync(self, model: Any = None) -> AbstractContextManager[None]:
        """Gradients are averaged once an update in any case."""
        return nullcontext()

    @contextmanager
    def join_uneven_inputs(self, models: Any, even_batches: bool | None = None) -> Iterator[None]:
        """Processes take the same number of rounds in any case."""
        yield

    def backward(self, loss: Tensor) -> None:
        self._trainer._core.gradients.compute(loss)

    def clip_grad_value_(self, parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
        self._trainer._core.gradients.complete()
        nn.utils.clip_grad_value_(parameters, clip_value)

    def clip_grad_norm_(
        self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2
    ) -> Tensor:
        self._trainer._core.gradients.complete()
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def gather(self, tensor: Any) -> Any:
        return self._trainer.gather(tensor)

    def unwrap_model(self, model: nn.Module, keep_torch_compile: bool = True) -> nn.Module:
        """The model without its wrapper for several devices and, unless kept, that of
        `torch.compile`."""
        compiled = uncompiled(model)
        if compiled is not None:
            return model if keep_torch_compile else self.unwrap_model(compiled, False)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            return self.unwrap_model(model.module, keep_torch_compile)
        return model

    def wait_for_everyone(self) -> None:
        self._trainer._runtime.barrier("wait_for_everyone")


def checked_precision(given: str | None) -> str:
    """The precision that was given, or else that of the environment; refuse an unknown one."""
    source = "mixed_precision"
    if given is None:
        source = PRECISION_VARIABLE
        given = os.environ.get(PRECISION_VARIABLE, "no")
    if given not in PRECISIONS:
        raise ConfigurationError(
            "unknown-mixed-precision",
            f"{source}={given!r}: use one of {', '.join(map(repr, PRECISIONS))}.",
        )
    return given
