"""Records the state of models, optimizers and plain objects before an experiment, and puts it
back."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
        """Record the attributes of an object; tensors in its containers only with `is_deep`, since
        they may be data."""
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
        """Record the options of an optimizer. Its `state` is not copied: replace it before the
        optimizer steps."""
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
            container.extend(content) if isinstance(container, list | deque) else container.update(
                content
            )
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
