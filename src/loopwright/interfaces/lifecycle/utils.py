"""The settings and the processes of a run, and helpers of the published system by their names: its
`_accelerator`, functions for some processes only, an average of weights, and freezing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..._torch_compat.compiling import uncompiled
from ...callbacks.ema import averaged_parameters, move_averages, paired_groups
from ...errors import check_number
from ...optim.groups import BATCH_NORMS

if TYPE_CHECKING:
    from .trainer import Trainer

P = ParamSpec("P")
T = TypeVar("T")


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


# Processes


def local_process_zero_only(func: Callable[P, T]) -> Callable[P, T | None]:
    """Call the function on the first process of each machine; the others wait for it and get
    None."""
    return _only(func, local_rank)


def world_process_zero_only(func: Callable[P, T]) -> Callable[P, T | None]:
    """Call the function on the first process of all; the others wait for it and get None."""
    return _only(func, _rank)


def local_process_zero_first(func: Callable[P, T]) -> Callable[P, T]:
    """Call the function on the first process of each machine, and then on the others."""

    @wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if local_rank():
            _wait()
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            _wait()

    return call


def _only(func: Callable[P, T], number: Callable[[], int]) -> Callable[P, T | None]:
    @wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return None if number() else func(*args, **kwargs)
        finally:
            _wait()  # also after an exception, so that no process waits for ever

    return call


def local_rank() -> int:
    """The number of this process on its machine, as launchers say with LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", _rank())) if _has_others() else 0


def _rank() -> int:
    return dist.get_rank() if _has_others() else 0


def _wait() -> None:
    if _has_others():
        dist.barrier()


def _has_others() -> bool:
    return dist.is_available() and dist.is_initialized()


def remove_padding(padded_tensor: Tensor, pad_value: float) -> Tensor:
    """The rows that are not the padding value throughout."""
    is_padding = (padded_tensor == pad_value).reshape(len(padded_tensor), -1).all(dim=1)
    return padded_tensor[~is_padding]


class Accelerator:
    """The device, the processes and the gradients of a trainer; each name does what the trainer
    itself does there."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.device = trainer.device
        self.mixed_precision = trainer._mixed_precision
        self.num_processes = trainer._runtime.world
        self.process_index = trainer._runtime.rank
        self.is_main_process = trainer._runtime.is_main
        self.is_local_main_process = trainer._is_local_main
        self.print = trainer.print
        self.gather = trainer.gather
        self.unwrap_model = unwrapped

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

    def no_sync(self, *models: Any, **options: Any) -> AbstractContextManager[None]:
        """Gradients are averaged once an update, and processes take the same number of rounds, in
        any case."""
        return nullcontext()

    join_uneven_inputs = no_sync

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

    def wait_for_everyone(self) -> None:
        self._trainer._runtime.barrier("wait_for_everyone")


def unwrapped(model: nn.Module, keep_torch_compile: bool = True) -> nn.Module:
    """The model without its wrapper for several devices and, unless kept, that of
    `torch.compile`."""
    compiled = uncompiled(model)
    if compiled is not None:
        return model if keep_torch_compile else unwrapped(compiled, False)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module, keep_torch_compile)
    return model


# Models


class ModelEma(nn.Module):
    """A copy of a model in eval mode whose weights follow the original's; buffers are taken over as
    they are."""

    module: nn.Module

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        check_number("ModelEma(decay", decay, least=0, most=1, is_whole=False)
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the average computes."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the averages towards the model's weights by 1 - decay of the distance."""
        groups = paired_groups(averaged_parameters(model), averaged_parameters(self.module))
        move_averages(groups, 1 - self.decay)
        for own, other in zip(self.module.buffers(), model.buffers(), strict=True):
            own.copy_(other)

    def set(self, model: nn.Module) -> None:
        """Take over the model's weights as they are."""
        self.module.load_state_dict(model.state_dict())


class LayerGroup(NamedTuple):
    """A direct child of the model, or a layer in one: the index of the child (from the first and
    from the last), and whether any of it is frozen."""

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class ModelFreezer:
    """Freezes groups of layers. A group is a direct child of the model; groups are counted as the
    model defines them.

    Making one unfreezes the whole model. Indices are inclusive and may count from the end. Batch
    norms are left to train, unless `freeze_batch_norms`.
    """

    def __init__(self, model: nn.Module, freeze_batch_norms: bool = False) -> None:
        self.model = model
        self.freeze_bn = freeze_batch_norms
        model.requires_grad_(True)

    def get_layer_groups(self) -> list[LayerGroup]:
        children = list(self.model.children())
        return [
            LayerGroup((index, index - len(children)), child, _is_frozen(child))
            for index, child in enumerate(children)
        ]

    def get_layers(self) -> list[LayerGroup]:
        """The modules that hold parameters of their own or have no others in them, in order."""
        return [
            LayerGroup(group.layer_group_idx, module, _is_frozen(module))
            for group in self.get_layer_groups()
            for module in group.module.modules()
            if not list(module.children()) or list(module.parameters(recurse=False))
        ]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        return [param for param in self.model.parameters() if param.requires_grad]

    def freeze(
        self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False
    ) -> None:
        """Freeze groups, by default all but the last; `set_modules_as_eval` puts them in eval mode
        too."""
        for layer in self._between(from_index, to_index):
            layer.module.requires_grad_(False)
            if set_modules_as_eval:
                layer.module.eval()

    def unfreeze(
        self, from_index: int = -1, to_index: int = 0, set_modules_as_training: bool = True
    ) -> dict[int, dict[str, list[nn.Parameter]]]:
        """Unfreeze groups, by default all.

        What was frozen comes back by group, each ready for `optimizer.add_param_group`.
        """
        unfrozen: dict[int, dict[str, list[nn.Parameter]]] = {}
        for layer in self._between(from_index, to_index):
            frozen = [param for param in layer.module.parameters() if not param.requires_grad]
            if frozen:
                group = unfrozen.setdefault(layer.layer_group_idx[0], {"params": []})
                group["params"].extend(frozen)
            layer.module.requires_grad_(True)
            if set_modules_as_training:
                layer.module.train()
        return unfrozen

    def _between(self, first: int, last: int) -> list[LayerGroup]:
        """The layers of the groups between two, which may be given in either order."""
        indices = range(len(self.get_layer_groups()))
        low, high = sorted((indices[first], indices[last]))
        return [
            layer
            for layer in self.get_layers()
            if low <= layer.layer_group_idx[0] <= high
            and (self.freeze_bn or not isinstance(layer.module, BATCH_NORMS))
        ]


def _is_frozen(module: nn.Module) -> bool:
    return any(not param.requires_grad for param in module.parameters())
