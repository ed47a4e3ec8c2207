"""A trainer lent for an experiment: it trains as if it had never trained, and is given back exactly as it was."""

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
from ..metrics.history import History
from ..metrics.meter import Meter
from ..runtime import Signals
from ..trainer import Trainer
from ..training.progress import Limits, Progress
from ..training.train_call import run_training
from ..training.update import Window
from ..training.updates import Updates

CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)


class Keeper:
    """Notes what objects hold now; `restore` puts it back, whatever was done to them since."""

    def __init__(self) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._params: list[tuple[nn.Parameter, bool, Tensor | None]] = []
        self._seen: set[int] = set()

    def keep(self, owner: object, *, is_deep: bool = False) -> None:
        """Note the attributes of an object; tensors in its containers only with `is_deep`, since they may be data."""
        attributes = vars(owner)
        self._attributes.append((attributes, dict(attributes)))
        for value in attributes.values():
            self._keep_value(value, is_deep=is_deep)

    def keep_model(self, model: nn.Module) -> None:
        """Note the weights, buffers, modes and plain attributes of a model, and the gradients it has."""
        for module in model.modules():
            self.keep(module, is_deep=True)
        for param in model.parameters():
            self._params.append((param, param.requires_grad, param.grad))

    def keep_optimizer(self, optimizer: Optimizer) -> None:
        """Note the options of an optimizer. Give it another `state` before it steps: this one is not copied."""
        self._attributes.append((vars(optimizer), dict(vars(optimizer))))
        self._keep_value(optimizer.param_groups)
        for group in optimizer.param_groups:
            self._keep_value(group)
            self._keep_all(value for name, value in group.items() if name != "params")

    def restore(self) -> None:
        """Put everything back."""
        for container, content in self._contents:
            container.clear()
            container.extend(content) if isinstance(container, list | deque) else container.update(content)
        for attributes, before in self._attributes:
            attributes.clear()
            attributes.update(before)
        with torch.no_grad():
            for tensor, value in self._tensors:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
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
def borrowed(trainer: Trainer, callbacks: Iterable[Callback]) -> Iterator[None]:
    """The trainer with its weights, without a past, a run directory or schedules; afterwards exactly as it was.

    Its optimizers begin without state. Of its own callbacks, initialisers and `Freeze` go on; `callbacks` are added.
    """
    trainer.setup()
    keeper, generators = Keeper(), rng_state()
    essential = [c for c in trainer.active_callbacks or trainer.callbacks if isinstance(c, ESSENTIAL)]
    for owner in (trainer, *essential):
        keeper.keep(owner)
    for module in trainer.modules.values():
        keeper.keep_model(module)
    for optimizer in trainer.optimizers.values():
        keeper.keep_optimizer(optimizer)
        optimizer.state = defaultdict(dict)
    for param in trainer.parameters():
        param.grad = None
    forget_past(trainer)
    trainer.callbacks = [*essential, *callbacks]
    trainer.bind_hooks(trainer.callbacks)
    try:
        yield
    finally:
        keeper.restore()
        set_rng_state(generators)


def forget_past(trainer: Trainer) -> None:
    """As if it had never trained; weights and optimizers stay as they are."""
    trainer.progress, trainer.history, trainer.meter, trainer.until = Progress(), History(), Meter(), Limits()
    trainer.window = Window()
    trainer.optimization = Updates({}, trainer.window)
    trainer.signals = Signals()
    trainer.signals.is_shared = trainer.runtime.world > 1
    trainer.schedules = {}
    trainer.eval_stream = trainer.train_stream = trainer.train_data = None
    trainer.run = trainer.run_dir = trainer.mark = trainer.stop_reason = trainer.accord = None
    trainer.num_calls, trainer.num_pieces = 0, 1
    trainer.progress_style = "silent"


def train_for_a_while(trainer: Trainer, data: Any, num_updates: int, batch_size: int | None) -> None:
    """So many updates of a borrowed trainer; data that knows its position is put back there."""
    stream = data if isinstance(data, Stream) else trainer.open(data, batch_size, shuffle=True)
    position = _position(stream)
    stream.close()
    try:
        limits = Limits(updates=num_updates)
        run_training(trainer, data, None, limits, batch_size=batch_size, resume=False)
    finally:
        if position is not None:
            stream.load_state_dict(position)
            stream.close()


def _position(stream: Stream) -> dict[str, Any] | None:
    """Where a stream is that goes on from there in the next epoch; None where the next begins anew anyway."""
    try:
        stream.check_resumable()
    except DataError:
        return None
    return stream.state_dict() if stream.spans_epochs else None
