"""Train and eval mode of modules, and of optimizers that have modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer


@contextmanager
def evaluating(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Context with all modules in eval mode; each module gets its previous mode back."""
    before = [(module, module.training) for root in modules for module in root.modules()]
    # in a nested evaluation the optimizers are in eval mode
    is_outermost = any(mode for _, mode in before)
    optimizers = list(optimizers) if is_outermost else []
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
    """Set train mode for models with an optimizer. A model in train mode keeps its frozen parts in
    eval mode."""
    optimizers = list(optimizers)
    trained = {
        id(p)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    for module in modules:
        if not module.training and any(id(p) in trained for p in module.parameters()):
            module.train()
    _set_optimizers(optimizers, "train")


def _set_optimizers(optimizers: Iterable[Optimizer], mode: str) -> None:
    """Set the mode of optimizers that have one: schedule-free optimizers."""
    for optimizer in optimizers:
        switch: Any = getattr(optimizer, mode, None)
        if callable(switch):
            switch()
