"""What a trainer trains: its modules, optimizers and schedules, found on the trainer and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from .errors import ConfigurationError

T = TypeVar("T")


def found_on(owner: object, kind: type[T] | tuple[type[T], ...], known: Mapping[str, T]) -> dict[str, T]:
    """`known`, and every attribute of the owner that is of that kind and not among the known, under its name."""
    result = dict(known)
    seen = {id(value) for value in known.values()}
    for name, value in vars(owner).items():
        if isinstance(value, kind) and id(value) not in seen:
            result[name] = value
            seen.add(id(value))
    return result


def check_parameters(modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse to train when no optimizer could change anything the models compute."""
    owned = {id(p) for module in modules.values() for p in module.parameters()}
    if not any(p.requires_grad for module in modules.values() for p in module.parameters()):
        raise ConfigurationError(
            f"Nothing to train: none of the models ({', '.join(modules) or 'there is none'}) has a parameter with "
            "requires_grad=True. Unfreeze some, or use `evaluate`."
        )
    for name, optimizer in optimizers.items():
        params = [p for group in optimizer.param_groups for p in group["params"]]
        strangers = sum(id(p) not in owned for p in params)
        if strangers:
            raise ConfigurationError(
                f"Optimizer {name!r} holds {strangers} of {len(params)} parameters that belong to none of the models "
                f"({', '.join(modules)}): build it from the parameters of the model that the trainer has, or pass it "
                "as a factory such as `partial(torch.optim.Adam, lr=1e-3)`."
            )


@contextmanager
def evaluating(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Eval mode for everything, and afterwards exactly the mode that each single module had before."""
    before = [(module, module.training) for root in modules for module in root.modules()]
    optimizers = list(optimizers)
    for module, _ in before:
        module.training = False
    _set_optimizers(optimizers, "eval")
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
        _set_optimizers(optimizers, "train")


def start_training_mode(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
    """Train mode for models that are to be trained. One already in train mode keeps its frozen parts as they are."""
    for module in modules:
        if not module.training and any(p.requires_grad for p in module.parameters()):
            module.train()
    _set_optimizers(optimizers, "train")


def _set_optimizers(optimizers: Iterable[Optimizer], mode: str) -> None:
    """Schedule-free optimizers have modes too."""
    for optimizer in optimizers:
        switch: Any = getattr(optimizer, mode, None)
        if callable(switch):
            switch()
