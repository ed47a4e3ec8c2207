"""Whom gradients are for, where a step says so after its backward pass (`step`), or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...alike import spread_of
from ...errors import ConfigurationError
from ...optimization import Lane, Optimization

Kept = Sequence[Tensor | None]


class Gradients:
    """The gradients of the step under way.

    A backward pass reaches every optimizer that the loss depends on. Those that `step` then names get to keep their
    part; if it names none, all do. What is left to nobody is dropped when the next backward pass or the end of the
    step comes, as by the `zero_grad` that a loop of one's own has there: a generator's loss leaves nothing in the
    discriminator. Whoever kept gradients is stepped at the end of the accumulation window, once.

    `context` is for backward passes, and `heard` is told of every optimizer step.
    """

    def __init__(
        self,
        optimization: Optimization,
        *,
        num_steps: int = 1,
        context: Callable[[], AbstractContextManager[Any] | None] = lambda: None,
        heard: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.optimization = optimization
        self.num_steps = num_steps
        self._context = context
        self._heard = heard
        self.reset()

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the lanes' to forget."""
        self._before: dict[str, Kept] | None = None  # what lanes had before the backward passes that are undecided
        self._losses: list[Tensor] = []
        self._scale: Tensor | None = None  # that those were scaled by
        self._stepped: set[str] = set()
        self._held: set[str] = set()
        self._clips: dict[str, float] = {}
        self._is_for_all = False  # whether gradients of this window were left to whomever they reached

    def backward(self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of this step's share of the window."""
        lanes = self.optimization.lanes
        self.optimization.calls += 1
        with self._context() or nullcontext():
            if optimizer is None and len(lanes) > 1:
                self._backward_to_all(loss, retain_graph)
                return
            self._decide()
            lane = next(iter(lanes.values())) if optimizer is None else self.optimization.lane(optimizer)
            lane.backward(loss, self.optimization.window, retain_graph=retain_graph)
            self._held.add(lane.name)

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here."""
        lane = self.optimization.lane(optimizer)
        if self._before is not None and lane.name in self._before:
            self._take(lane, self._before.pop(lane.name))
        self._stepped.add(lane.name)
        self._held.add(lane.name)
        if self.optimization.window.is_last:
            self._finish(lane)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's step."""
        lane = self.optimization.lane(optimizer)
        if self.optimization.window.is_last and lane.name in self._stepped and not _has_gradients(lane):
            raise ConfigurationError(
                f"clip_gradients({lane.name}) comes after step({lane.name}), too late to change it: call it before."
            )
        self._clips[lane.name] = max_norm

    def end_step(self) -> None:
        """The step is over: decide what is undecided and, at the end of the window, step whoever has gradients."""
        self._decide()
        if self.optimization.window.is_last:
            for lane in self._due():
                self._finish(lane)
            self._held.clear()
            self._clips.clear()
            self._is_for_all = False

    def _backward_to_all(self, loss: Tensor, retain_graph: bool) -> None:
        """One backward pass for all optimizers, in the smallest of their scales, which overflows for none."""
        lanes, window = list(self.optimization.lanes.values()), self.optimization.window
        if self._stepped:
            self._decide()
        if self._before is None:
            self._set_aside(lanes, loss)
        if lanes[0].hears_later:
            self._losses.append(loss.detach())
        elif lanes[0].guard is not None and not math.isfinite(loss.item()):
            lanes[0].guard.refuse(f"a loss is {loss.item()}")
            for lane in lanes:
                lane.is_spoilt = True
                self._held.add(lane.name)
            return
        if window.divisor != 1.0:
            loss = loss / window.divisor
        if self._scale is not None:
            loss = loss * self._scale
        params = [param for lane in lanes for param in lane.params]
        inputs: Any = None if self.optimization.holds_all else [p for p in params if p.requires_grad]
        if lanes[0].peers is not None:
            inputs = lanes[0].peers.prepare_backward(loss, params, inputs, is_last=window.is_last)
        torch.autograd.backward(loss, retain_graph=retain_graph, inputs=inputs)

    def _set_aside(self, lanes: Sequence[Lane], loss: Tensor) -> None:
        """Keep what earlier steps gave apart from what is coming."""
        self._before = {lane.name: [param.grad for param in lane.params] for lane in lanes}
        for lane in lanes:
            lane.zero()
        scales = [scale for lane in lanes if (scale := _scale_of(lane, loss.device)) is not None]
        self._scale = torch.stack(scales).amin() if scales else None

    def _decide(self) -> None:
        """The backward passes so far were for the optimizers stepped since; if there are none, for all."""
        before, stepped = self._before, self._stepped
        if before is not None:
            self._is_for_all |= not stepped
            for name, kept in before.items():
                lane = self.optimization.lanes[name]
                if stepped:
                    self._drop(lane, kept)
                else:
                    self._take(lane, kept)
                    if _has_gradients(lane):
                        self._held.add(name)
        self._before, self._losses, self._scale, self._stepped = None, [], None, set()

    def _take(self, lane: Lane, kept: Kept) -> None:
        """Add new gradients to those the lane had before, in its own scale; its guard hears of their losses now."""
        for loss in self._losses:
            lane.note(loss)
        new = [param.grad for param in lane.params if param.grad is not None]
        if self._scale is not None and new:
            torch._foreach_mul_(new, _scale_of(lane, self._scale.device) / self._scale)
        for param, old in zip(lane.params, kept, strict=True):
            if old is not None:
                param.grad = old if param.grad is None else old.add_(param.grad)

    def _drop(self, lane: Lane, kept: Kept) -> None:
        if self.num_steps > 1 and any(spread_of(param) is not None for param in lane.params):
            raise ConfigurationError(
                f"Gradients of a sharded model that optimizer {lane.name!r} is not to have cannot be taken out of an "
                "accumulation window again: say whose they are, as in self.backward(loss, self.g_optimizer)."
            )
        for param, old in zip(lane.params, kept, strict=True):
            param.grad = old

    def _due(self) -> list[Lane]:
        """The lanes that are to be stepped, in the order of the optimizers; all processes agree on them."""
        lanes = list(self.optimization.lanes.values())
        peers = lanes[0].peers
        if peers is not None and not self._is_for_all:
            return [lane for lane in lanes if lane.name in self._held]  # the program said so, and it is the same
        has = [float(lane.name in self._held and (lane.is_spoilt or _has_gradients(lane))) for lane in lanes]
        totals = has if peers is None else peers.sum_count(has).tolist()
        return [lane for lane, total in zip(lanes, totals, strict=True) if total]

    def _finish(self, lane: Lane) -> None:
        usual = lane.clip_norm
        lane.clip_norm = self._clips.pop(lane.name, usual)
        try:
            lane.finish()
        finally:
            lane.clip_norm = usual
        self._held.discard(lane.name)
        self.optimization.window.is_spent = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        self._heard(lane.name)


def _has_gradients(lane: Lane) -> bool:
    return any(param.grad is not None for param in lane.params)


def _scale_of(lane: Lane, device: torch.device) -> Any:
    """What a lane's losses are scaled by, on the device; None where they are not."""
    return None if lane.scaler is None else lane.scaler.scale(torch.ones((), device=device))
