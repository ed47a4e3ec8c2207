"""Whom gradients are for, where a step says so after its backward pass (`step`), or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..._torch_compat import foreach_mul_
from ...runtime.dtensor import mesh_of
from ...training.step_checks import Versions, gradient_versions, scheduler_positions, watch_own_steps
from ...training.update import Lane, Optimization
from . import own_steps
from .own_steps import Kept, Routes, Use, Ways, add, has_gradients, scale_of, taken_off
from .schedulers import check_scheduler

if TYPE_CHECKING:
    from .engine import Engine


class Gradients:
    """The gradients of the step under way.

    A backward pass reaches every optimizer that the loss depends on. Those that `step` then names get to keep their
    part; if it names none, all do. What is left to nobody is dropped when the next backward pass or the end of the
    step comes, as by the `zero_grad` that a loop of one's own has there: a generator's loss leaves nothing in the
    discriminator. Whoever kept gradients is stepped at the end of the accumulation window, once.

    `optimizer.step()` by the user's own hand is noticed: before it, the gradients of `backward` are completed as for
    `step`, and the optimizer is not stepped again.
    """

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self.begin_run()

    def begin_run(self) -> None:
        """Forget everything, also what the program's way of stepping was."""
        self.ways, self.routes = Ways(), Routes()
        self._num_pieces = self.trainer.num_pieces
        self._use: Use | None = None
        self._is_by_hand = False  # whether an optimizer is stepped with gradients of `loss.backward()`
        self._at_start: dict[str, Versions] = {}  # of a step: all gradients, to see what it did to them
        self._is_checking_left = False  # whether the step under way may leave no gradients to the next one
        self._watched: list[Lane] = []
        self._handles: list[RemovableHandle] = []
        self._incomplete: set[str] = set()  # lanes whose gradients are not yet those of the update after `backward`
        self._is_watching = False
        self.reset()

    @property
    def optimization(self) -> Optimization:
        return self.trainer.optimization

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the lanes' to forget."""
        self.is_used = False  # whether the step under way has called `backward` or stepped anything
        self._own: Lane | None = None  # whose step by the user's own hand is under way
        self._spent: set[str] = set()  # of whose gradients that step, which leaves them, was taken
        self._positions: dict[str, list[Any]] = {}  # of schedulers, when the step began
        self._left: dict[str, list[Any]] = {}  # where the trainer's step of schedulers left them
        self._unscheduled: set[str] = set()  # lanes stepped since, whose schedulers are still to follow
        self._before: dict[str, Kept] | None = None  # what lanes had before the backward passes that are undecided
        self._losses: list[Tensor] = []
        self._reached: list[frozenset[str]] = []  # the optimizers that each of those backward passes reached
        self._scale: Tensor | None = None  # that those were scaled by
        self._stepped: set[str] = set()
        self._held: set[str] = set()
        self._versions: dict[str, Versions] = {}  # of incomplete gradients
        self._clips: dict[str, float] = {}
        self._is_for_all = False  # whether gradients of this window were left to whomever they reached

    def begin_step(self) -> None:
        """A step begins."""
        if self._num_pieces != self.trainer.num_pieces:
            self._num_pieces = self.trainer.num_pieces
            self.reset()  # memory ran out, and the window begins again
        self.is_used = False
        lanes = list(self.optimization.lanes.values())
        if self._left:
            self._check_schedulers()
        self._positions = {lane.name: scheduler_positions(lane) for lane in lanes if lane.schedulers}
        if self._is_watching and lanes != self._watched:
            self._watch()  # an optimizer was replaced
        self._is_checking_left = self.trainer.run_dir is not None and (self._use is None or self._is_by_hand)
        self._at_start = {lane.name: gradient_versions(lane) for lane in lanes}

    def backward(self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of this step's share of the window."""
        lanes = self.optimization.lanes
        self.optimization.calls += 1
        self.is_used = True
        for lane in lanes.values() if optimizer is None else [self._lane(optimizer)]:
            if lane.name not in self._held:
                own_steps.check_unmixed(lane, self._at_start.get(lane.name))
        with self.trainer.runtime.no_autocast or nullcontext():
            if optimizer is None and len(lanes) > 1:
                self._backward_to_all(loss, retain_graph)
                return
            self._decide()
            lane = next(iter(lanes.values())) if optimizer is None else self._lane(optimizer)
            self._check_intact(lane)
            lane.backward(loss, self.optimization.window, retain_graph=retain_graph)
            self._held.add(lane.name)
            self._note(lane)

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here."""
        lane = self._lane(optimizer)
        if not self.is_used:
            raise own_steps.step_without_backward(self.trainer, lane)
        self.ways.take(self.trainer, lane, "step")
        self._check_intact(lane)
        if self._before is not None and lane.name in self._before:
            self._take(lane, self._before.pop(lane.name))
        self._stepped.add(lane.name)
        self._held.add(lane.name)
        if self.optimization.window.is_last:
            self._finish(lane)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's step."""
        lane = self._lane(optimizer)
        is_stepped = lane.name in self._spent or (lane.name in self._stepped and not has_gradients(lane))
        if self.optimization.window.is_last and is_stepped:
            raise own_steps.clipped_late(lane)
        self._clips[lane.name] = max_norm

    def end_step(self) -> None:
        """The step is over: decide what is undecided and, at the end of the window, step whoever has gradients."""
        self._decide()
        if self._is_checking_left:
            self._check_left()
        for name in self._spent:
            self.optimization.lanes[name].zero()
            self._versions.pop(name, None)
        self._spent.clear()
        if self.optimization.window.is_last:
            for lane in self._due():
                self.ways.take(self.trainer, lane, "end")
                self._finish(lane)
            self._held.clear()
            self._clips.clear()
            self._is_for_all = False

    def use(self, use: Use) -> None:
        """Note what trains in this run, a program's own calls or the losses that it returns; it cannot be both."""
        self._use = self._use or use
        if self._use != use:
            raise own_steps.two_uses()

    def train_returned(self, returned: Any) -> None:
        """Train the loss that a step returned, where the program has never called `backward` itself."""
        if self.is_used or self._use == "backward":
            return
        if own_steps.have_changed(self.optimization.lanes.values(), self._at_start):
            self.use("backward")  # the loss is only reported
            return
        loss = own_steps.loss_in(self.trainer, returned)
        if loss is not None:
            self.use("return")
            self.trainer.train_loss(loss)

    def schedule(self) -> None:
        """Step the schedulers that follow the step's updates, but for those that the user stepped."""
        for name in self._unscheduled:
            lane = self.optimization.lanes[name]
            if scheduler_positions(lane) == self._positions.get(name):
                lane.schedule()
                self._left[name] = scheduler_positions(lane)
        self._unscheduled.clear()

    def _check_left(self) -> None:
        """Refuse gradients that a step leaves to the next one, where a resume point in between would not hold them."""
        for lane in self.optimization.lanes.values():
            is_known = lane.name in self._unscheduled or lane.name in self._held
            if not is_known and has_gradients(lane) and gradient_versions(lane) != self._at_start.get(lane.name):
                raise own_steps.gradients_left(lane)
        self._is_checking_left = False

    def _lane(self, optimizer: Optimizer | str) -> Lane:
        lanes = self.optimization.lanes
        if not any(optimizer is lane.optimizer for lane in lanes.values()) and optimizer not in lanes:
            raise own_steps.unknown_optimizer(optimizer, lanes)
        return self.optimization.lane(optimizer)

    def _check_schedulers(self) -> None:
        """Refuse schedulers that were stepped by the trainer after an update, and then once more by somebody else."""
        for name, left in self._left.items():
            for scheduler, before in zip(self.optimization.lanes[name].schedulers, left, strict=False):
                check_scheduler(self.trainer, scheduler, before)
        self._left.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice steps that the user takes with an optimizer itself."""
        if self._is_watching:
            yield
            return
        self._is_watching = True
        self._watch()
        try:
            yield
        finally:
            self._is_watching = False
            self._unwatch()

    def _watch(self) -> None:
        self._unwatch()
        self._watched = list(self.optimization.lanes.values())
        self._incomplete = {lane.name for lane in self._watched if own_steps.are_incomplete(self.trainer, lane)}
        for lane in self._watched:
            self._handles += watch_own_steps(lane, self._before_own_step, self._after_own_step)

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._watched = [], []

    def _before_own_step(self, lane: Lane) -> None:
        """The user steps an optimizer: make gradients of `backward` what they are for `step`, and clip."""
        self.use("backward")
        is_ours = lane.name in self._held or any(lane.name in names for names in self._reached)
        own_steps.check_own_step(self.trainer, lane, is_ours=is_ours)
        self.ways.take(self.trainer, lane, "own")
        if is_ours:
            self._check_intact(lane)
        if self._before is not None and lane.name in self._before:
            self._take(lane, self._before.pop(lane.name))
        if is_ours:
            own_steps.complete(lane)
            self._spent.add(lane.name)
        for listener in lane.listeners:
            listener(lane.name)
        usual, lane.clip_norm = lane.clip_norm, self._clips.pop(lane.name, lane.clip_norm)
        try:
            if not lane.clip():
                lane.zero()  # a step without gradients changes nothing
        finally:
            lane.clip_norm = usual
        self._own = lane
        self._is_by_hand |= not is_ours

    def _after_own_step(self, lane: Lane) -> None:
        self._own = None
        self.optimization.calls += 1
        lane.own_steps += 1
        lane.updates += 1
        self.is_used = True
        self._stepped.add(lane.name)
        self._is_over(lane)

    def _is_over(self, lane: Lane) -> None:
        """An optimizer was stepped, by whomever."""
        self._held.discard(lane.name)
        self._versions.pop(lane.name, None)
        self.optimization.window.is_spent = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        self._unscheduled.add(lane.name)
        self.trainer.events.emit("on_optimizer_step_end", lane.name)

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
        earlier = self._take_off_earlier(lanes)
        torch.autograd.backward(loss, retain_graph=retain_graph, inputs=inputs)
        self._reached.append(frozenset(lane.name for lane in lanes if has_gradients(lane)))
        if earlier is not None:
            add(params, earlier)
        for lane in lanes:
            self._note(lane)

    def _take_off_earlier(self, lanes: Sequence[Lane]) -> Kept | None:
        """The gradients of backward passes that are still undecided, so that the next one's can be told from them."""
        if not self._reached:
            return None
        for lane in lanes:
            self._check_intact(lane)
        return taken_off([param for lane in lanes for param in lane.params])

    def _set_aside(self, lanes: Sequence[Lane], loss: Tensor) -> None:
        """Keep what earlier steps gave apart from what is coming."""
        for lane in lanes:
            self._check_intact(lane)
        self._before = {lane.name: taken_off(lane.params) for lane in lanes}
        self._versions.clear()
        scales = [scale for lane in lanes if (scale := scale_of(lane, loss.device)) is not None]
        self._scale = torch.stack(scales).amin() if scales else None

    def _decide(self) -> None:
        """The backward passes so far were for the optimizers stepped since; if there are none, for all."""
        before, stepped = self._before, self._stepped
        if before is not None:
            self._is_for_all |= not stepped
            if not stepped:
                self.routes.check(self._reached)
            for name, kept in before.items():
                lane = self.optimization.lanes[name]
                if stepped:
                    self._drop(lane, kept)
                else:
                    self._check_intact(lane)
                    self._take(lane, kept)
                    if has_gradients(lane):
                        self._held.add(name)
        self._before, self._losses, self._reached, self._scale, self._stepped = None, [], [], None, set()

    def _take(self, lane: Lane, kept: Kept) -> None:
        """Add new gradients to those the lane had before, in its own scale; its guard hears of their losses now."""
        for loss in self._losses:
            lane.note(loss)
        new = [param.grad for param in lane.params if param.grad is not None]
        if self._scale is not None and new:
            foreach_mul_(new, scale_of(lane, self._scale.device) / self._scale)
        add(lane.params, kept)
        self._note(lane)

    def _drop(self, lane: Lane, kept: Kept) -> None:
        if self.trainer.accumulate > 1 and any(mesh_of(param) is not None for param in lane.params):
            raise own_steps.sharded_in_window(lane)
        for param, old in zip(lane.params, kept, strict=True):
            param.grad = old
        if lane.name in self._held:
            self._note(lane)
        else:
            self._versions.pop(lane.name, None)

    def _due(self) -> list[Lane]:
        """The lanes that are to be stepped, in the order of the optimizers; all processes agree on them."""
        lanes = list(self.optimization.lanes.values())
        peers = lanes[0].peers
        for lane in lanes:
            self._check_intact(lane)
        if peers is not None and not self._is_for_all:
            return [lane for lane in lanes if lane.name in self._held]  # the program said so, and it is the same
        has = [float(lane.name in self._held and (lane.is_spoilt or has_gradients(lane))) for lane in lanes]
        totals = has if peers is None else peers.sum_count(has).tolist()
        return [lane for lane, total in zip(lanes, totals, strict=True) if total]

    def _note(self, lane: Lane) -> None:
        """Remember gradients that are not complete yet, to see whether somebody changes them before they are."""
        if lane.name in self._incomplete:
            self._versions[lane.name] = gradient_versions(lane)

    def _check_intact(self, lane: Lane) -> None:
        """Refuse gradients that somebody removed or changed; those of a sharded model may not be there yet."""
        if lane.is_spoilt or self._own is not None:
            return
        is_aside = self._before is not None and lane.name in self._before
        is_gone = lane.name in self._held and not is_aside and not has_gradients(lane)
        if is_gone and not any(mesh_of(param) is not None for param in lane.params):
            raise own_steps.gradients_gone(self.trainer, lane)
        noted = self._versions.get(lane.name)
        if noted is not None and noted != gradient_versions(lane):
            raise own_steps.gradients_changed(self.trainer, lane)

    def _finish(self, lane: Lane) -> None:
        if lane.name in self._unscheduled:
            if self.trainer.accumulate > 1:
                raise own_steps.twice_in_window(self.trainer, lane)
            self.schedule()
            self._positions[lane.name] = scheduler_positions(lane)
        usual, schedulers, updates = lane.clip_norm, lane.schedulers, lane.updates
        lane.clip_norm, lane.schedulers = self._clips.pop(lane.name, usual), []
        try:
            lane.finish()
        finally:
            lane.clip_norm, lane.schedulers = usual, schedulers
        self._is_over(lane)
        if lane.updates == updates:
            self._unscheduled.discard(lane.name)  # the step was left out
