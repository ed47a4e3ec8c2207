"""Models sharded by FSDP2: when shards are exchanged, and the whole parameters that gradients arrive at.

While a sharded model computes, whole parameters take the place of the shards that an optimizer holds, and autograd
knows only those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._torch_compat import full_parameter, sharded_parameters
from ..errors import ConfigurationError

Gather = Callable[[Any], list[Any]]


class Shards:
    """The sharded models of a trainer.

    Processes that use different parameters would send each other gradients that do not fit. The first backward pass
    of each optimizer is looked at, and such parameters are named; with `finds_unused` every one is, and they are
    filled with zeros where they are missing.
    """

    def __init__(self, gather: Gather, *, finds_unused: bool = False) -> None:
        self.modules: WeakSet[Any] = WeakSet()
        self._gather = gather
        self._finds_unused = finds_unused
        self._looked_at: set[tuple[int, int]] = set()
        self._holders: dict[int, Any] = {}
        self._is_last: bool | None = None

    def add(self, module: nn.Module) -> None:
        self.modules.add(module)
        self._is_last = None

    def start_step(self, is_last: bool) -> None:
        """Shards are exchanged in the backward pass of the window's last step only."""
        if is_last != self._is_last:
            self._is_last = is_last
            for module in self.modules:
                module.set_requires_gradient_sync(is_last)

    def settle(self) -> None:
        """A forward pass leaves whole parameters behind; without a backward pass nobody else cuts them again."""
        for module in self.modules:
            for part in _sharded(module):
                part.reshard()

    def prepare(
        self, loss: Tensor, params: Sequence[nn.Parameter], inputs: Sequence[Tensor] | None, *, is_last: bool
    ) -> list[Tensor] | None:
        """Get ready for a backward pass to some parameters; `inputs` as those that autograd knows."""
        # By the first of them and their number, which all processes have alike: lists are made anew, and a list's id
        # that came back on one process only would leave it alone with the question.
        key = (id(params[0]), len(params)) if params else (0, 0)
        if is_last and (self._finds_unused or key not in self._looked_at):
            self._looked_at.add(key)
            self._look(loss, params)
        if inputs is None:
            return None
        return [self._whole(param) for param in inputs if self._is_computed_with(param)]

    def _look(self, loss: Tensor, params: Sequence[nn.Parameter]) -> None:
        trained = [p for p in params if p.requires_grad and self._is_computed_with(p)]
        reached = leaves_of(loss)
        used = [id(self._whole(p)) in reached or self._has_gradient(p) for p in trained]
        if self._finds_unused:
            self._fill(trained, used)
            return
        unused = [self._name(p) for p, is_used in zip(trained, used, strict=True) if not is_used]
        others = [names for names in self._gather(unused) if names is not None]
        if any(names != unused for names in others):
            raise ConfigurationError(_explanation(others))

    def _fill(self, params: Sequence[nn.Parameter], used: Sequence[bool]) -> None:
        """Zeros for parameters that others have gradients of; those that nobody has keep none, as on one process."""
        device = params[0].device if params else torch.device("cpu")
        anywhere = torch.tensor(used, dtype=torch.uint8, device=device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        for param, is_used, is_needed in zip(params, used, anywhere.tolist(), strict=True):
            if is_needed and not is_used:
                whole = self._whole(param)
                whole.grad = torch.zeros_like(whole, memory_format=torch.contiguous_format)

    # How torch keeps them; private there, and only here

    def _holder(self, param: Tensor) -> Any:
        if id(param) not in self._holders:
            self._holders = {id(held.sharded_param): held for held in self._held()}
        return self._holders.get(id(param))

    def _held(self) -> Iterable[Any]:
        for module in self.modules:
            for part in _sharded(module):
                yield from sharded_parameters(part)

    def _is_computed_with(self, param: Tensor) -> bool:
        """Whether there is a whole parameter already, which the first forward pass makes; or it was never sharded."""
        holder = self._holder(param)
        return holder is None or full_parameter(holder) is not None

    def _whole(self, param: Tensor) -> Tensor:
        holder = self._holders.get(id(param))
        full = None if holder is None else full_parameter(holder)
        return param if full is None else full

    def _has_gradient(self, param: nn.Parameter) -> bool:
        """Whether an earlier step of the window left one."""
        holder = self._holders.get(id(param))
        accumulated = None if holder is None else getattr(holder, "unsharded_accumulated_grad", None)
        return self._whole(param).grad is not None or accumulated is not None

    def _name(self, param: nn.Parameter) -> str:
        holder = self._holders.get(id(param))
        wanted = {id(param), id(self._whole(param))} if holder is not None else {id(param)}
        for module in self.modules:
            for name, own in module.named_parameters():
                if id(own) in wanted:
                    return str(name)
        return "a parameter"


def _sharded(module: Any) -> list[Any]:
    """The parts of a model that torch exchanges one by one."""
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def leaves_of(loss: Tensor) -> set[int]:
    """The ids of the tensors that a loss was computed from and that take a gradient."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        waiting += [after for after, _ in node.next_functions]
    return found


def _explanation(unused: Sequence[Sequence[str]]) -> str:
    common = set(unused[0]).intersection(*unused[1:])
    listed = "; ".join(
        f"on rank {rank}: {', '.join(name for name in names if name not in common) or 'none of them'}"
        for rank, names in enumerate(unused)
    )
    return (
        "The loss does not depend on the same parameters on all processes, which a sharded model needs in order to add "
        f"up gradients. Without a gradient were, {listed}. Let every process use them all, or say "
        "DistributedRuntime('fsdp', find_unused_parameters=True), which costs a look at every backward pass."
    )
