"""The attributes and methods of `_accelerator` that stages written for the published system use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._torch_compat.compiling import uncompiled
from ...errors import ConfigurationError
from . import run_config

if TYPE_CHECKING:
    from .trainer import Trainer

PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"


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
        return run_config.num_processes()

    @property
    def process_index(self) -> int:
        return self._trainer._runtime.rank

    @property
    def is_main_process(self) -> bool:
        return run_config.is_world_process_zero()

    @property
    def is_local_main_process(self) -> bool:
        return run_config.is_local_process_zero()

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the loss scaler left out the last optimizer step, since a gradient was not
        finite."""
        return self._trainer._core.gradients.was_skipped

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
        self._trainer._core.gradients.backward(loss)

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
        return unwrapped(model, keep_torch_compile)

    def wait_for_everyone(self) -> None:
        self._trainer._runtime.barrier("wait_for_everyone")

    @property
    def print(self) -> Callable[..., None]:
        return self._trainer.print


def unwrapped(model: nn.Module, keep_torch_compile: bool) -> nn.Module:
    """The model without its wrapper for several devices and, unless kept, that of
    `torch.compile`."""
    compiled = uncompiled(model)
    if compiled is not None:
        return model if keep_torch_compile else unwrapped(compiled, keep_torch_compile)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module, keep_torch_compile)
    return model


def checked_precision(given: str | None) -> str:
    """The precision that was given, or else that of the environment; refuse one that there is
    not."""
    source = "mixed_precision"
    if given is None:
        source = PRECISION_VARIABLE
        given = os.environ.get(PRECISION_VARIABLE, "no")
    if given not in PRECISIONS:
        raise ConfigurationError(
            f"{source}={given!r}: use one of {', '.join(map(repr, PRECISIONS))}."
        )
    return given


def checked_accelerator(given: Any) -> Any:
    """Refuse settings of a user's own accelerator, which would not be used."""
    if not isinstance(given, Accelerator):
        raise ConfigurationError(
            f"`_create_accelerator` returned a {type(given).__module__}.{type(given).__name__}, "
            "but its settings would not be used: remove the method and pass `Trainer(..., "
            "mixed_precision='bf16')`; start several processes with torchrun."
        )
    return given
