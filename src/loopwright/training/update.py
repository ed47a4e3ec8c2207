"""From a loss to changed weights: backward, accumulation, scaling, clipping, the step, zeroing and scheduling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import foreach_div_, supports_found_inf
from ..callback import Hook
from ..errors import ConfigurationError
from .components import check_reached


class Guard(Protocol):
    """Decides what a non-finite loss or gradient norm means; may raise."""

    @property
    def is_final(self) -> bool:
        """Whether no update may follow a refused one."""

    @property
    def is_immediate(self) -> bool:
        """Whether it must hear of a value at once, even if that waits for the device."""

    def refuse(self, what: str) -> None:
        """Hear of a value that is not finite, before the optimizer step it would have gone into."""


class Peers(Protocol):
    """The other processes, as far as gradients are concerned."""

    num_shares: int  # how many processes work on different samples

    def prepare_backward(
        self,
        loss: Tensor,
        params: Sequence[nn.Parameter],
        inputs: Sequence[Tensor] | None,
        *,
        is_last: bool,
        flag: Tensor | float | None = None,
    ) -> Sequence[Tensor] | None:
        """Prepare a backward pass; returns `inputs` as the tensors that autograd knows. `sync_gradients` has `flag`."""

    def sync_gradients(
        self, params: Sequence[nn.Parameter], flag: Tensor | float | None = None
    ) -> Tensor | float | None:
        """Average the gradients over all ranks, where FSDP2 has not done so; the largest of all ranks' flags."""

    def divide(self, grads: Sequence[Tensor], divisor: Tensor) -> None:
        """Divide gradients, of which a process may hold parts only."""

    def clip_norm(self, params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by the norm of all of them together, and return that."""

    def sum_count(self, count: Any) -> Any:
        """The sum of all processes' counts."""


@dataclass(slots=True)
class Window:
    """The current step within its accumulation window: how the loss is divided, whether it is the last, its samples.

    `is_spent` says that an optimizer has used the window's gradients.
    """

    divisor: float = 1.0
    is_last: bool = True
    size: int = 0
    is_spent: bool = False
    total: int | None = None  # samples of an evaluation step on all processes, where they share it


class Lane:
    """One optimizer with all that its updates need, worked out once per run."""

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        *,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        guard: Guard | None = None,
        reads_are_free: bool = True,
        peers: Peers | None = None,
    ) -> None:
        self.name, self.optimizer, self.scaler = name, optimizer, scaler
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.guard = guard
        self.peers = peers
        self.schedulers: list[Any] = []
        self.listeners: Sequence[Hook] = ()
        self.norm: Tensor | None = None
        self.updates = self.empty_steps = 0  # those among them without a gradient
        self.calls = 0  # of `update`
        self.own_steps = 0  # that the optimizer took without `update`
        self.is_stepping = False
        self.params: list[nn.Parameter] = []
        self.holds_all = False
        self._count: Any = None
        self.is_spoilt = False
        self._flag: Tensor | float | None = None  # a number where reading one is free
        self._reads_are_free = reads_are_free
        self._seen: Tensor | None = None
        self._on_device = (
            guard is not None
            and not guard.is_immediate
            and not reads_are_free
            and scaler is None
            and supports_found_inf(optimizer)
        )

    def refresh(self, trainable: Iterable[nn.Parameter]) -> None:
        """Look again at which parameters there are, after groups were added or layers frozen."""
        self.params = [p for group in self.optimizer.param_groups for p in group["params"]]
        own = {id(p) for p in self.params}
        self.holds_all = all(id(p) in own for p in trainable)

    def backward(
        self,
        loss: Tensor,
        window: Window,
        count: Any = None,
        retain_graph: bool | None = None,
    ) -> None:
        """Add the gradients of this step's share of the window, to this optimizer's parameters only."""
        guard = self.guard
        if guard is not None:
            if self._on_device or self.peers is not None:
                self.note(loss)
            elif not math.isfinite(loss.item() if loss.dim() == 0 else _only_number(loss)):
                guard.refuse(f"the loss of optimizer {self.name!r} is {loss.item()}")
                self.is_spoilt = True
                return
        if count is not None:
            loss = self._share_of_sum(loss, count, window)
        elif window.divisor != 1.0:
            loss = loss / window.divisor
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        inputs: Any = None if self.holds_all else [p for p in self.params if p.requires_grad]
        if self.peers is not None:
            inputs = self.peers.prepare_backward(loss, self.params, inputs, is_last=window.is_last, flag=self._flag)
        if inputs is None:
            loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        else:
            torch.autograd.backward(loss, retain_graph=retain_graph, inputs=inputs)

    @property
    def hears_later(self) -> bool:
        """Whether the guard hears of a loss when the window ends, and not before its backward pass."""
        return self.guard is not None and (self._on_device or self.peers is not None)

    def _share_of_sum(self, loss: Tensor, count: Any, window: Window) -> Tensor:
        if (self._reads_are_free or not isinstance(count, Tensor)) and not count >= 0:
            raise ValueError(f"count={count}")
        if window.size == 0:  # a stand-in for a process that got no sample
            loss, count = loss * 0.0, count * 0
        if window.is_last and window.divisor == 1.0 and self.peers is None:
            share: Tensor = loss / _at_least_one(count)
            return share
        self._count = count if self._count is None else self._count + count
        return loss

    def finish(self) -> None:
        """The window is over: clip, step, schedule, and drop the gradients."""
        if not self.is_spoilt:
            self.sync()
        if self.is_spoilt or not self._is_agreed():
            self.reset()
            return
        self._scale()
        if not self.updates and self.peers is None:
            check_reached(self.params, self.name)
        for listener in self.listeners:
            listener(self.name)
        if self.clip():
            self.step()
            self.schedule()
        self.zero()

    def complete(self) -> None:
        """Make the gradients what one big batch would have given.

        They are averaged over all processes, unscaled, and divided by the items counted; the guard may refuse them.
        """
        self.sync()
        if not self._is_agreed():
            self.zero()
        self._scale()

    def sync(self) -> None:
        if self.peers is not None:
            self._flag = self.peers.sync_gradients(self.params, self._flag)

    def _scale(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self._count is not None:
            count = _at_least_one(self._count if self.peers is None else self.peers.sum_count(self._count))
            grads = [p.grad for p in self.params if p.grad is not None]
            if self.peers is not None:
                self.peers.divide(grads, count / self.peers.num_shares)
            elif grads:
                foreach_div_(grads, count)
            self._count = None

    def _is_agreed(self) -> bool:
        """Whether no process saw a loss that is not finite; all of them act alike."""
        return self.peers is None or self._on_device or self.settle(" on at least one process")

    def settle(self, where: str = "") -> bool:
        """Whether no loss was noted that is not finite; reads that, for a step that does not leave itself out."""
        flag, self._flag = self._flag, None
        if flag is None or self.guard is None or not float(flag):
            return True
        self.guard.refuse(f"the loss of optimizer {self.name!r} is not finite{where}")
        return False

    def clip(self) -> bool:
        """Clip as configured; False when the norm turned out not to be finite and the step must not be taken."""
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self.params, self.clip_value)
        if self.clip_norm is None:
            return True
        clip = nn.utils.clip_grad_norm_ if self.peers is None else self.peers.clip_norm
        self.norm = clip(self.params, self.clip_norm)
        if self.guard is None or self.scaler is not None:
            return True
        if self._on_device:
            self.note(self.norm)
        elif not math.isfinite(self.norm.item()):
            self.guard.refuse(f"the gradient norm of optimizer {self.name!r} is {self.norm.item()}")
            return False
        return True

    def step(self) -> None:
        self.is_stepping = True
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self._flag is not None:
            self._step_unless_flagged()
        else:
            self.optimizer.step()
        self.is_stepping = False
        self.updates += 1

    def schedule(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def zero(self) -> None:
        for param in self.params:
            param.grad = None

    def reset(self) -> None:
        """Forget a window that will not be finished: its gradients, what it counted, and what was wrong with it."""
        self.zero()
        self._count = self._flag = self._seen = None
        self.is_spoilt = False

    def note(self, value: Tensor) -> None:
        """Remember that a value was not finite; on the device, unless reading it is free."""
        if self._reads_are_free:
            self._flag = max(float(self._flag or 0), float(not math.isfinite(_only_number(value))))
            return
        bad = (~torch.isfinite(value.detach())).float().reshape(())
        self._flag = bad if self._flag is None else torch.maximum(cast(Tensor, self._flag), bad)

    def _step_unless_flagged(self) -> None:
        """Let the fused optimizer itself leave out the step, as it does for loss scaling, without asking the host."""
        optimizer: Any = self.optimizer
        optimizer.grad_scale, optimizer.found_inf = None, self._flag
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        flag = cast(Tensor, self._flag)
        self._seen = flag if self._seen is None else torch.maximum(self._seen, flag)
        if self.guard is not None and not self.guard.is_final:
            self._flag = None

    def check(self, at_once: bool = False) -> None:
        """At a log point, or `at_once` before a step, read what the device noted and let the guard act on it."""
        seen, self._seen = self._flag if at_once else self._seen, None
        if seen is not None and self.guard is not None and float(seen):
            self.guard.refuse(f"a loss or gradient norm of optimizer {self.name!r} since the last log point")

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "scaler": self.scaler.state_dict() if self.scaler else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])


class Optimization:
    """The lanes of a trainer, and the window that all of them are in."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        window: Window,
        no_autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.lanes = dict(lanes)
        self.window = window
        self.calls = 0
        self.holds_all = False  # whether every trainable parameter has an optimizer
        self._only = next(iter(self.lanes.values())) if len(self.lanes) == 1 else None
        self._no_autocast = no_autocast

    def update(
        self,
        loss: Tensor,
        optimizer: Optimizer | str | None = None,
        *,
        count: Any = None,
        retain_graph: bool | None = None,
    ) -> None:
        lane = self._only if optimizer is None else self.lane(optimizer)
        if lane is None:
            if not self.lanes:
                raise ConfigurationError("update(loss) was called and no training is under way: call it in a step.")
            raise ConfigurationError(
                f"update(loss) is ambiguous: there are the optimizers {', '.join(self.lanes)}. "
                "Say which: update(loss, self.<name>)."
            )
        self.calls += 1
        lane.calls += 1
        window = self.window
        if self._no_autocast is None:
            lane.backward(loss, window, count, retain_graph)
        else:
            with self._no_autocast:
                lane.backward(loss, window, count, retain_graph)
        if window.is_last:
            lane.finish()
            window.is_spent = True
            if self._no_autocast is not None:
                torch.clear_autocast_cache()  # it holds weights as they were before the step

    def replace(self, lane: Lane) -> None:
        """Put a lane in the place of the one of that name."""
        self.lanes[lane.name] = lane
        self._only = lane if len(self.lanes) == 1 else None

    def lane(self, optimizer: Optimizer | str) -> Lane:
        if isinstance(optimizer, str) and optimizer in self.lanes:
            return self.lanes[optimizer]
        for lane in self.lanes.values():
            if lane.optimizer is optimizer:
                return lane
        raise ConfigurationError(
            f"{optimizer!r} is none of this trainer's optimizers ({', '.join(self.lanes)}): "
            "assign it to self in configure_optimizers, or pass it to the constructor."
        )

    def refresh(self, modules: Iterable[nn.Module]) -> None:
        """Look again at which parameters can be trained; call it after freezing or adding parameter groups."""
        trainable = [p for module in modules for p in module.parameters() if p.requires_grad]
        for lane in self.lanes.values():
            lane.refresh(trainable)
        own = {id(param) for lane in self.lanes.values() for param in lane.params}
        self.holds_all = all(id(param) in own for param in trainable)

    def check(self) -> None:
        for lane in self.lanes.values():
            lane.check()

    def reset(self) -> None:
        for lane in self.lanes.values():
            lane.reset()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, lane in self.lanes.items():
            if name in state:
                lane.load_state_dict(state[name])


def _at_least_one(count: Any) -> Any:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _only_number(loss: Tensor) -> float:
    if loss.numel() != 1:
        from .step_checks import mistake_in_loss

        raise ConfigurationError(f"The loss to be trained {mistake_in_loss(loss, None)}.")
    return loss.item()
