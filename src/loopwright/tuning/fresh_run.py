"""A fresh run of a trainer for an experiment; the trainer's state is restored afterwards."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..callback import Callback
from ..callbacks.freezing import Freeze
from ..data.open import Stream
from ..data.random import rng_state, set_rng_state
from ..errors import DataError
from ..initializers import Initializer
from ..metrics.progress import Limits
from ..training.program import Program
from ..training.train_call import run_training

CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)


class Keeper:
    """Records the state of objects; `restore` puts it back."""

    def __init__(self) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._params: list[tuple[nn.Parameter, bool, Tensor | None]] = []
        self._seen: set[int] = set()

    def keep(self, owner: object, *, is_deep: bool = False) -> None:
        """Record the attributes of an object; tensors in its containers only with `is_deep`, since they may be data."""
        attributes = vars(owner)
        self._attributes.append((attributes, dict(attributes)))
        for value in attributes.values():
            self._keep_value(value, is_deep=is_deep)

    def keep_model(self, model: nn.Module) -> None:
        """Record the weights, buffers, modes, plain attributes and gradients of a model."""
        for module in model.modules():
            self.keep(module, is_deep=True)
        for param in model.parameters():
            self._params.append((param, param.requires_grad, param.grad))

    def keep_optimizer(self, optimizer: Optimizer) -> None:
        """Record the options of an optimizer. Its `state` is not copied: replace it before the optimizer steps."""
        self._attributes.append((vars(optimizer), dict(vars(optimizer))))
        self._keep_value(optimizer.param_groups)
        for group in optimizer.param_groups:
            self._keep_value(group)
            self._keep_all(value for name, value in group.items() if name != "params")

    def restore_tensors(self) -> None:
        """Restore the values of all recorded tensors."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)

    def restore(self) -> None:
        """Restore all recorded states."""
        for container, content in self._contents:
            container.clear()
            container.extend(content) if isinstance(container, list | deque) else container.update(content)
        for attributes, before in self._attributes:
            attributes.clear()
            attributes.update(before)
        self.restore_tensors()
        for param, requires_grad, grad in self._params:
            param.requires_grad_(requires_grad)
            param.grad = grad

    def _keep_value(self, value: Any, *, is_deep: bool = False) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, Tensor):
            self._seen.add(id(value))
            self._tensors.append((value, value.detach().clone()))
        elif type(value) in CONTAINERS:
            self._seen.add(id(value))
            self._contents.append((value, copy(value)))
            if is_deep:
                self._keep_all(value.values() if isinstance(value, dict) else value)

    def _keep_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._keep_value(value, is_deep=True)


ESSENTIAL = (Initializer, Freeze)  # callbacks that decide what is trained, and from which weights


@contextmanager
def fresh_run(trainer: Program, callbacks: Iterable[Callback]) -> Iterator[Keeper]:
    """Context in which the trainer has a fresh run, with its weights; its state is restored afterwards.

    Its optimizers begin without state. Of its own callbacks, initialisers and `Freeze` stay; `callbacks` are added.
    """
    trainer.setup()
    keeper, generators = Keeper(), rng_state()
    essential = [c for c in trainer.run.callbacks or trainer.callbacks if isinstance(c, ESSENTIAL)]
    for owner in (trainer, trainer._components, *essential):
        keeper.keep(owner)
    for module in trainer.modules.values():
        keeper.keep_model(module)
    for optimizer in trainer.optimizers.values():
        keeper.keep_optimizer(optimizer)
        optimizer.state = defaultdict(dict)
    for param in trainer._components.parameters():
        param.grad = None
    trainer.callbacks = [*essential, *callbacks]
    start_again(trainer)
    try:
        yield keeper
    finally:
        keeper.restore()
        set_rng_state(generators)


def start_again(trainer: Program) -> None:
    """Give the trainer a fresh run; weights and optimizers are not changed."""
    trainer._use_run(trainer.run.fresh(), trainer.compile)
    trainer.run.bind(trainer.callbacks)


def train_for_a_while(trainer: Program, data: Any, num_updates: int, batch_size: int | None) -> None:
    """Train a number of updates in a fresh run; restore the position of data that has one."""
    with kept_position(trainer, data, batch_size):
        run_training(trainer.run, data, None, Limits(updates=num_updates), batch_size=batch_size, resume=False)


@contextmanager
def kept_position(trainer: Program, data: Any, batch_size: int | None) -> Iterator[Stream]:
    """Context after which data that has a position is where it was; gives the stream that was opened to know it."""
    stream = data if isinstance(data, Stream) else trainer._open(data, batch_size, shuffle=True)
    position = _position(stream)
    stream.close()
    try:
        yield stream
    finally:
        if position is not None:
            stream.load_state_dict(position)
            stream.close()


def _position(stream: Stream) -> dict[str, Any] | None:
    """Return the position of a stream that continues over epochs; None if every epoch begins anew."""
    try:
        stream.check_resumable()
    except DataError:
        return None
    return stream.state_dict() if stream.spans_epochs else None
