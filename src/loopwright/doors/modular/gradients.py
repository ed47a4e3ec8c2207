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
from ...training.update import OptimizerUpdate
from ...training.updates import Updates
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
        self._num_pieces = self.trainer.run.num_micro_batches
        self._use: Use | None = None
        self._is_by_hand = False  # whether an optimizer is stepped with gradients of `loss.backward()`
        self._at_start: dict[str, Versions] = {}  # of a step: all gradients, to see what it did to them
        self._is_checking_left = False  # whether the step under way may leave no gradients to the next one
        self._watched: list[OptimizerUpdate] = []
        self._handles: list[RemovableHandle] = []
        self._incomplete: set[str] = set()  # updates whose gradients are not yet those of the update after `backward`
        self._is_watching = False
        self.reset()

    @property
    def optimization(self) -> Updates:
        return self.trainer.run.optimization

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the updates' to forget."""
        self.is_used = False  # whether the step under way has called `backward` or stepped anything
        self._own: OptimizerUpdate | None = None  # whose step by the user's own hand is under way
        self._spent: set[str] = set()  # of whose gradients that step, which leaves them, was taken
        self._positions: dict[str, list[Any]] = {}  # of schedulers, when the step began
        self._left: dict[str, list[Any]] = {}  # where the trainer's step of schedulers left them
        self._unscheduled: set[str] = set()  # updates stepped since, whose schedulers are still to follow
        self._before: dict[str, Kept] | None = None  # what updates had before the backward passes that are undecided
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
        if self._num_pieces != self.trainer.run.num_micro_batches:
            self._num_pieces = self.trainer.run.num_micro_batches
            self.reset()  # memory ran out, and the window begins again
        self.is_used = False
        updates = list(self.optimization.by_name.values())
        if self._left:
            self._check_schedulers()
        self._positions = {update.name: scheduler_positions(update) for update in updates if update.schedulers}
        if self._is_watching and updates != self._watched:
            self._watch()  # an optimizer was replaced
        self._is_checking_left = self.trainer.run_dir is not None and (self._use is None or self._is_by_hand)
        self._at_start = {update.name: gradient_versions(update) for update in updates}

    def backward(self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of this step's share of the window."""
        updates = self.optimization.by_name
        self.optimization.calls += 1
        self.is_used = True
        for update in updates.values() if optimizer is None else [self._update_of(optimizer)]:
            if update.name not in self._held:
                own_steps.check_unmixed(update, self._at_start.get(update.name))
        with self.trainer.runtime.no_autocast or nullcontext():
            if optimizer is None and len(updates) > 1:
                self._backward_to_all(loss, retain_graph)
                return
            self._decide()
            update = next(iter(updates.values())) if optimizer is None else self._update_of(optimizer)
            self._check_intact(update)
            update.backward(loss, self.optimization.window, retain_graph=retain_graph)
            self._held.add(update.name)
            self._note(update)

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here."""
        update = self._update_of(optimizer)
        if not self.is_used:
            raise own_steps.step_without_backward(self.trainer, update)
        self.ways.take(self.trainer, update, "step")
        self._check_intact(update)
        if self._before is not None and update.name in self._before:
            self._take(update, self._before.pop(update.name))
        self._stepped.add(update.name)
        self._held.add(update.name)
        if self.optimization.window.is_last:
            self._finish(update)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's step."""
        update = self._update_of(optimizer)
        is_stepped = update.name in self._spent or (update.name in self._stepped and not has_gradients(update))
        if self.optimization.window.is_last and is_stepped:
            raise own_steps.clipped_late(update)
        self._clips[update.name] = max_norm

    def end_step(self) -> None:
        """The step is over: decide what is undecided and, at the end of the window, step whoever has gradients."""
        self._decide()
        if self._is_checking_left:
            self._check_left()
        for name in self._spent:
            self.optimization.by_name[name].zero()
            self._versions.pop(name, None)
        self._spent.clear()
        if self.optimization.window.is_last:
            for update in self._due():
                self.ways.take(self.trainer, update, "end")
                self._finish(update)
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
        if own_steps.have_changed(self.optimization.by_name.values(), self._at_start):
            self.use("backward")  # the loss is only reported
            return
        loss = own_steps.loss_in(self.trainer, returned)
        if loss is not None:
            self.use("return")
            self.trainer.train_loss(loss)

    def schedule(self) -> None:
        """Step the schedulers that follow the step's updates, but for those that the user stepped."""
        for name in self._unscheduled:
            update = self.optimization.by_name[name]
            if scheduler_positions(update) == self._positions.get(name):
                update.schedule()
                self._left[name] = scheduler_positions(update)
        self._unscheduled.clear()

    def _check_left(self) -> None:
        """Refuse gradients that a step leaves to the next one, where a resume point in between would not hold them."""
        for update in self.optimization.by_name.values():
            is_known = update.name in self._unscheduled or update.name in self._held
            if not is_known and has_gradients(update) and gradient_versions(update) != self._at_start.get(update.name):
                raise own_steps.gradients_left(update)
        self._is_checking_left = False

    def _update_of(self, optimizer: Optimizer | str) -> OptimizerUpdate:
        updates = self.optimization.by_name
        if not any(optimizer is update.optimizer for update in updates.values()) and optimizer not in list(updates):
            raise own_steps.unknown_optimizer(optimizer, updates)
        return self.optimization.find(optimizer)

    def _check_schedulers(self) -> None:
        """Refuse schedulers that were stepped by the trainer after an update, and then once more by somebody else."""
        for name, left in self._left.items():
            for scheduler, before in zip(self.optimization.by_name[name].schedulers, left, strict=False):
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
        self._watched = list(self.optimization.by_name.values())
        self._incomplete = {update.name for update in self._watched if own_steps.are_incomplete(self.trainer, update)}
        for update in self._watched:
            self._handles += watch_own_steps(update, self._before_own_step, self._after_own_step)

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._watched = [], []

    def _before_own_step(self, update: OptimizerUpdate) -> None:
        """The user steps an optimizer: make gradients of `backward` what they are for `step`, and clip."""
        self.use("backward")
        is_ours = update.name in self._held or any(update.name in names for names in self._reached)
        own_steps.check_own_step(self.trainer, update, is_ours=is_ours)
        self.ways.take(self.trainer, update, "own")
        if is_ours:
            self._check_intact(update)
        if self._before is not None and update.name in self._before:
            self._take(update, self._before.pop(update.name))
        if is_ours:
            own_steps.complete(update)
            self._spent.add(update.name)
        for listener in update.listeners:
            listener(update.name)
        usual, update.clip_norm = update.clip_norm, self._clips.pop(update.name, update.clip_norm)
        try:
            if not update.clip():
                update.zero()  # a step without gradients changes nothing
        finally:
            update.clip_norm = usual
        self._own = update
        self._is_by_hand |= not is_ours

    def _after_own_step(self, update: OptimizerUpdate) -> None:
        self._own = None
        self.optimization.calls += 1
        update.own_steps += 1
        update.num_updates += 1
        self.is_used = True
        self._stepped.add(update.name)
        self._is_over(update)

    def _is_over(self, update: OptimizerUpdate) -> None:
        """An optimizer was stepped, by whomever."""
        self._held.discard(update.name)
        self._versions.pop(update.name, None)
        self.optimization.window.has_stepped = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        self._unscheduled.add(update.name)
        self.trainer.events.emit("on_optimizer_step_end", update.name)

    def _backward_to_all(self, loss: Tensor, retain_graph: bool) -> None:
        """One backward pass for all optimizers, in the smallest of their scales, which overflows for none."""
        updates, window = list(self.optimization.by_name.values()), self.optimization.window
        if self._stepped:
            self._decide()
        if self._before is None:
            self._set_aside(updates, loss)
        if updates[0].defers_loss_check:
            self._losses.append(loss.detach())
        elif updates[0].guard is not None and not math.isfinite(loss.item()):
            updates[0].guard.refuse(f"a loss is {loss.item()}")
            for update in updates:
                update.is_skipped = True
                self._held.add(update.name)
            return
        if window.divisor != 1.0:
            loss = loss / window.divisor
        if self._scale is not None:
            loss = loss * self._scale
        params = [param for update in updates for param in update.params]
        inputs: Any = None if self.optimization.holds_all else [p for p in params if p.requires_grad]
        if updates[0].peers is not None:
            inputs = updates[0].peers.prepare_backward(loss, params, inputs, is_last=window.is_last)
        earlier = self._take_off_earlier(updates)
        torch.autograd.backward(loss, retain_graph=retain_graph, inputs=inputs)
        self._reached.append(frozenset(update.name for update in updates if has_gradients(update)))
        if earlier is not None:
            add(params, earlier)
        for update in updates:
            self._note(update)

    def _take_off_earlier(self, updates: Sequence[OptimizerUpdate]) -> Kept | None:
        """The gradients of backward passes that are still undecided, so that the next one's can be told from them."""
        if not self._reached:
            return None
        for update in updates:
            self._check_intact(update)
        return taken_off([param for update in updates for param in update.params])

    def _set_aside(self, updates: Sequence[OptimizerUpdate], loss: Tensor) -> None:
        """Keep what earlier steps gave apart from what is coming."""
        for update in updates:
            self._check_intact(update)
        self._before = {update.name: taken_off(update.params) for update in updates}
        self._versions.clear()
        scales = [scale for update in updates if (scale := scale_of(update, loss.device)) is not None]
        self._scale = torch.stack(scales).amin() if scales else None

    def _decide(self) -> None:
        """The backward passes so far were for the optimizers stepped since; if there are none, for all."""
        before, stepped = self._before, self._stepped
        if before is not None:
            self._is_for_all |= not stepped
            if not stepped:
                self.routes.check(self._reached)
            for name, kept in before.items():
                update = self.optimization.by_name[name]
                if stepped:
                    self._drop(update, kept)
                else:
                    self._check_intact(update)
                    self._take(update, kept)
                    if has_gradients(update):
                        self._held.add(name)
        self._before, self._losses, self._reached, self._scale, self._stepped = None, [], [], None, set()

    def _take(self, update: OptimizerUpdate, kept: Kept) -> None:
        """Add new gradients to those the update had before, in its own scale; its guard hears of their losses now."""
        for loss in self._losses:
            update.flag_nonfinite(loss)
        new = [param.grad for param in update.params if param.grad is not None]
        if self._scale is not None and new:
            foreach_mul_(new, scale_of(update, self._scale.device) / self._scale)
        add(update.params, kept)
        self._note(update)

    def _drop(self, update: OptimizerUpdate, kept: Kept) -> None:
        if self.trainer.accumulate > 1 and any(mesh_of(param) is not None for param in update.params):
            raise own_steps.sharded_in_window(update)
        for param, old in zip(update.params, kept, strict=True):
            param.grad = old
        if update.name in self._held:
            self._note(update)
        else:
            self._versions.pop(update.name, None)

    def _due(self) -> list[OptimizerUpdate]:
        """The updates that are to be stepped, in the order of the optimizers; all processes agree on them."""
        updates = list(self.optimization.by_name.values())
        peers = updates[0].peers
        for update in updates:
            self._check_intact(update)
        if peers is not None and not self._is_for_all:
            return [
                update for update in updates if update.name in self._held
            ]  # the program said so, and it is the same
        has = [float(update.name in self._held and (update.is_skipped or has_gradients(update))) for update in updates]
        totals = has if peers is None else peers.sum_count(has).tolist()
        return [update for update, total in zip(updates, totals, strict=True) if total]

    def _note(self, update: OptimizerUpdate) -> None:
        """Remember gradients that are not complete yet, to see whether somebody changes them before they are."""
        if update.name in self._incomplete:
            self._versions[update.name] = gradient_versions(update)

    def _check_intact(self, update: OptimizerUpdate) -> None:
        """Refuse gradients that somebody removed or changed; those of a sharded model may not be there yet."""
        if update.is_skipped or self._own is not None:
            return
        is_aside = self._before is not None and update.name in self._before
        is_gone = update.name in self._held and not is_aside and not has_gradients(update)
        if is_gone and not any(mesh_of(param) is not None for param in update.params):
            raise own_steps.gradients_gone(self.trainer, update)
        noted = self._versions.get(update.name)
        if noted is not None and noted != gradient_versions(update):
            raise own_steps.gradients_changed(self.trainer, update)

    def _finish(self, update: OptimizerUpdate) -> None:
        if update.name in self._unscheduled:
            if self.trainer.accumulate > 1:
                raise own_steps.twice_in_window(self.trainer, update)
            self.schedule()
            self._positions[update.name] = scheduler_positions(update)
        usual, schedulers, num_updates = update.clip_norm, update.schedulers, update.num_updates
        update.clip_norm, update.schedulers = self._clips.pop(update.name, usual), []
        try:
            with self.trainer.runtime.no_autocast or nullcontext():
                update.finish()
        finally:
            update.clip_norm, update.schedulers = usual, schedulers
        self._is_over(update)
        if update.num_updates == num_updates:
            self._unscheduled.discard(update.name)  # the step was left out
