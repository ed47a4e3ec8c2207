"""Components on a trainer: what its `configure_*` assigned or returned, and the plain modules
behind compiled ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from ..._torch_compat.compiling import uncompiled
from ...errors import ConfigurationError

if TYPE_CHECKING:
    from .engine import Engine


def assign(
    owner: object, returned: Any, kind: type | tuple[type, ...], method: str, default: str
) -> None:
    """Put what a `configure_*` returned on the trainer, where it is not already."""
    if returned is None:
        return
    parts = list(returned.values()) if isinstance(returned, Mapping) else returned
    parts = list(parts) if isinstance(parts, list | tuple) else [parts]
    held = {id(value) for value in vars(owner).values()}
    if all(id(part) in held for part in parts):
        return
    if isinstance(returned, kind):
        setattr(owner, default, returned)
        return
    if isinstance(returned, Mapping) and (
        odd := [key for key in returned if not isinstance(key, str)]
    ):
        raise ConfigurationError(
            f"{method} returned a dict with a {type(odd[0]).__name__} as key: use names, as in "
            f"{{'{default}': ...}}, or assign to self and return nothing."
        )
    if not isinstance(returned, Mapping) or not all(isinstance(part, kind) for part in parts):
        raise ConfigurationError(
            f"{method} returned {type(returned).__name__}: assign its objects to self and return "
            "nothing, or return them by name, as in {'generator': ..., 'discriminator': ...}."
        )
    for name, part in returned.items():
        setattr(owner, name, part)


def modules_of(owner: object) -> dict[str, nn.Module]:
    """The modules assigned to a trainer, each once and under its first name."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, value in vars(owner).items():
        if isinstance(value, nn.parallel.DistributedDataParallel):
            raise ConfigurationError(
                f"self.{name} is a DistributedDataParallel: assign the module itself, or the "
                "result of self.wrap_model; the trainer averages gradients over processes "
                "according to its config."
            )
        if isinstance(value, nn.Module) and id(raw_module(value)) not in seen:
            seen.add(id(raw_module(value)))
            found[name] = value
    return found


def check_models(owner: object, models: Mapping[str, nn.Module]) -> None:
    """Refuse a trainer without a model; modules in a list or dict are ones that it does not see."""
    if any(True for module in models.values() for _ in module.parameters()):
        return
    hidden = hidden_modules(owner)
    how = (
        f"self.{hidden} contains modules, but the trainer does not look inside: make it an "
        "nn.ModuleList or nn.ModuleDict"
        if hidden
        else ("override configure_models and write `self.model = ...` in it")
    )
    raise ConfigurationError(f"{type(owner).__name__} has no models with parameters: {how}.")


def check_owned(
    owner: object, models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]
) -> None:
    """Refuse optimizers of parameters that are in none of the models: they would be neither moved
    nor saved."""
    if not any(param.requires_grad for module in models.values() for param in module.parameters()):
        raise ConfigurationError(
            f"There is nothing to train: all parameters of {', '.join(models)} are frozen "
            "(requires_grad=False). Unfreeze some in configure_models."
        )
    known = {id(param) for module in models.values() for param in module.parameters()}
    for name, optimizer in optimizers.items():
        params = [param for group in optimizer.param_groups for param in group["params"]]
        strange = sum(id(param) not in known for param in params)
        if strange:
            hidden = hidden_modules(owner)
            raise ConfigurationError(
                f"self.{name} holds {strange} of {len(params)} parameters that belong to none of "
                f"the models ({', '.join(models)}): assign their model to self in "
                f"configure_models{f', and make self.{hidden} an nn.ModuleList or nn.ModuleDict' if hidden else ''}, "
                "and build the optimizer from it in configure_optimizers."
            )


def check_ready(trainer: Engine) -> None:
    """Refuse to train without data, or without the steps that it needs."""
    if trainer.loaders[0] is None:
        raise ConfigurationError(
            "There is no training data: return (train_loader, val_loader) from "
            "configure_dataloaders."
        )
    if not (trainer.overrides("training_step") or trainer.overrides("training_loop")):
        raise ConfigurationError(
            f"{type(trainer.interface).__name__} has no training_step(batch, batch_idx): override "
            "it."
        )
    is_validated = trainer.overrides("validation_step") or trainer.overrides("validation_loop")
    if trainer.loaders[1] is not None and not is_validated:
        raise ConfigurationError(
            "There is a validation loader but no validation_step: override it, or return None for "
            "the loader."
        )


def hidden_modules(owner: object) -> str | None:
    """The name of a list or dict on the owner that holds modules."""
    for name, value in vars(owner).items():
        parts = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, list | tuple)
            else ()
        )
        if any(isinstance(part, nn.Module) for part in parts):
            return name
    return None


def initialise(module: nn.Module, device: torch.device, *, by_interface: bool) -> None:
    """Give a model on the meta device memory, and values by its `init_weights`; `by_interface` if
    the trainer's follows."""
    from ...runtime.base import is_meta
    from ...runtime.fsdp import allocate

    init = getattr(module, "init_weights", None)
    if (callable(init) or by_interface) and is_meta(module):
        allocate(module, device)
        if callable(init):
            init()


def raw_module(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, so that names in state dicts stay as they are."""
    return uncompiled(module) or module


def as_loaders(returned: Any) -> tuple[Any, Any]:
    """(training, validation) from what `configure_dataloaders` returned."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned[0], returned[1]
    if isinstance(returned, Mapping):
        unknown = [name for name in returned if name not in ("train", "val")]
        if unknown:
            raise ConfigurationError(
                f"configure_dataloaders returned {', '.join(unknown)}: use the names 'train' and "
                "'val'."
            )
        return returned.get("train"), returned.get("val")
    if isinstance(returned, tuple | list):
        raise ConfigurationError(
            f"configure_dataloaders returned {len(returned)} parts: return (train_loader, "
            "val_loader), or one loader."
        )
    return returned, None


def without_padding(loader: Any, num_shares: int) -> Any:
    """A validation loader whose DistributedSampler repeats samples to make parts equal, as one that
    repeats none.

    Processes then divide its batches as they divide any others: every sample counts once.
    """
    if not isinstance(loader, DataLoader) or type(loader.sampler) is not DistributedSampler:
        return loader
    sampler = loader.sampler
    if (
        sampler.shuffle
        or sampler.drop_last
        or sampler.num_replicas != num_shares
        or loader.batch_size is None
    ):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size * num_shares,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=bool(loader.pin_memory),
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
    )


def allow_loading(config: Any) -> None:
    """Let `torch.load` read a config from a checkpoint that the user wrote with `torch.save`."""
    values = [getattr(config, field.name) for field in fields(config)]
    values += [part for value in values if isinstance(value, list | tuple) for part in value]
    kinds = {type(value) for value in values if isinstance(value, Path) or is_dataclass(value)}
    kinds |= {
        type(value)
        for value in values
        if type(value).__module__.partition(".")[0] not in ("builtins", "torch")
    }
    torch.serialization.add_safe_globals([type(config), *kinds])
