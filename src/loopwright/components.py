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


def replaced_in(
    owner: object, known: Mapping[str, T], entries: Mapping[str, Any], kind: type[T] | tuple[type[T], ...]
) -> dict[str, T]:
    """What stands under the names of `known` by now, as attribute or entry, and is another object."""
    result: dict[str, T] = {}
    for name, old in known.items():
        for value in (vars(owner).get(name), entries.get(name)):
            if not isinstance(value, kind) or value is old:
                continue
            if result.setdefault(name, value) is not value:
                raise ConfigurationError(
                    f"{name!r} was replaced twice, by `trainer.{name} = ...` and by the entry of that name, with two "
                    "different objects: assign one of them."
                )
    return result


def is_trained(module: nn.Module) -> bool:
    return any(param.requires_grad for param in module.parameters())


def swap_parameters(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Let an optimizer that was made before a model was sharded hold the parameters it has now."""
    if not replaced:
        return
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(param), param) for param in group["params"]]


def check_trainable(modules: Mapping[str, nn.Module]) -> None:
    """Refuse to train models that have nothing to be trained."""
    if not any(p.requires_grad for module in modules.values() for p in module.parameters()):
        raise ConfigurationError(
            f"Nothing to train: none of the models ({', '.join(modules) or 'there is none'}) has a parameter with "
            "requires_grad=True. Unfreeze some, or use `evaluate`."
        )


def check_owners(modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse an optimizer that would change what none of the models computes with."""
    owned = {id(p) for module in modules.values() for p in module.parameters()}
    for name, optimizer in optimizers.items():
        params = [p for group in optimizer.param_groups for p in group["params"]]
        strangers = sum(id(p) not in owned for p in params)
        if strangers:
            raise ConfigurationError(
                f"Optimizer {name!r} holds {strangers} of {len(params)} parameters that belong to none of the models "
                f"({', '.join(modules)}): build it from the parameters of the model that the trainer has, or pass it "
                "as a factory such as `partial(torch.optim.Adam, lr=1e-3)`. After `trainer.model = ...` assign an "
                f"optimizer of the new model too: `trainer.{name} = ...`."
            )


@contextmanager
def evaluating(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Eval mode for everything, and afterwards exactly the mode that each single module had before."""
    before = [(module, module.training) for root in modules for module in root.modules()]
    is_outermost = any(mode for _, mode in before)  # inside another evaluation optimizers have been switched already
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
    """Train mode for models that an optimizer trains. One already in train mode keeps its frozen parts as they are."""
    optimizers = list(optimizers)
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for module in modules:
        if not module.training and any(id(p) in trained for p in module.parameters()):
            module.train()
    _set_optimizers(optimizers, "train")


def _set_optimizers(optimizers: Iterable[Optimizer], mode: str) -> None:
    """Schedule-free optimizers have modes too."""
    for optimizer in optimizers:
        switch: Any = getattr(optimizer, mode, None)
        if callable(switch):
            switch()
