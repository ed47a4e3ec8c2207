"""Which optimizers get the gradients, where a step names them after its backward pass (`step`), or
not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..._torch_compat import foreach_mul_
from ...runtime.dtensor import mesh_of
from ...training.step_checks import Versions, gradient_versions, watch_own_steps
from ...training.update import OptimizerUpdate, run_backward
from ...training.updates import Updates
from . import own_steps
from .own_steps import Routes, StepMethods, StoredGradients, UpdateSchedulers, Use, has_gradients

if TYPE_CHECKING:
    from .core import ModularCore


NOTHING: AbstractContextManager[Any] = nullcontext()


class Gradients:
    """The gradients of the step under way.

    A backward pass gives gradients to every optimizer that the loss depends on. The optimizers that
    `step` names after it keep theirs; if it names none, all of them do. Other gradients are dropped
    at the next backward pass or the end of the step, as by the `zero_grad` that a hand-written loop
    has there: a generator's loss leaves nothing in the discriminator. Optimizers that kept
    gradients are stepped at the end of the accumulation window, once.

    This is why the interface drives the phases of `OptimizerUpdate` itself: `update` takes the
    optimizers beforehand.

    `optimizer.step()` by the user's own hand is noticed: before it, the gradients of `backward` are
    completed as for `step`, and the optimizer is not stepped again.
    """

    def __init__(self, trainer: ModularCore) -> None:
        self.trainer, self.schedulers = trainer, UpdateSchedulers(trainer)
        self.begin_run()

    def begin_run(self) -> None:
        """Forget everything, also what the program's way of stepping was."""
        self.methods, self.routes = StepMethods(), Routes()
        self._num_micro_batches = self.trainer.run.num_micro_batches
        self._use: Use | None = None
        self._is_by_hand = (
            False  # whether an optimizer is stepped with gradients of `loss.backward()`
        )
        # of a step: all gradients, to see what it did to them
        self._at_start: dict[str, Versions] = {}
        self._is_checking_left = (
            False  # whether the step under way may leave no gradients to the next one
        )
        self._watched: list[OptimizerUpdate] = []
        self._handles: list[RemovableHandle] = []
        # updates whose gradients are not yet those of the update after `backward`
        self._incomplete: set[str] = set()
        self._is_watching = False
        self.reset()

    @property
    def optimization(self) -> Updates:
        return self.trainer.run.updates

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the updates' to forget."""
        self.is_used = False  # whether the step under way has called `backward` or stepped anything
        self._own: OptimizerUpdate | None = None  # whose step by the user's own hand is under way
        self._spent: set[str] = set()  # of whose gradients that step, which leaves them, was taken
        self.schedulers.reset()
        self._before: dict[str, StoredGradients] | None = (
            None  # what updates had before the backward passes that are undecided
        )
        self._losses: list[Tensor] = []
        # the optimizers that each of those backward passes reached
        self._reached: list[frozenset[str]] = []
        self._scale: Tensor | None = None  # that those were scaled by
        self._stepped: set[str] = set()
        self._held: set[str] = set()
        self._versions: dict[str, Versions] = {}  # of incomplete gradients
        self._clips: dict[str, float] = {}
        self._is_for_all = (
            False  # whether gradients of this window belong to all optimizers that they reached
        )

    def begin_step(self) -> None:
        """A step begins."""
        if self._num_micro_batches != self.trainer.run.num_micro_batches:
            self._num_micro_batches = self.trainer.run.num_micro_batches
            self.reset()  # memory ran out, and the window begins again
        self.is_used = False
        updates = list(self.optimization.by_name.values())
        self.schedulers.begin_step(updates)
        if self._is_watching and updates != self._watched:
            self._watch()  # an optimizer was replaced
        self._is_checking_left = self.trainer.run_dir is not None and (
            self._use is None or self._is_by_hand
        )
        self._at_start = {update.name: gradient_versions(update) for update in updates}

    def backward(
        self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """Add the gradients of this step's share of the window."""
        optimization = self.optimization
        updates = optimization.by_name
        optimization.calls += 1
        self.is_used = True
        for update in updates.values() if optimizer is None else [self._update_of(optimizer)]:
            if update.name not in self._held:
                own_steps.check_unmixed(update, self._at_start.get(update.name))
        with self.trainer.runtime.no_autocast or NOTHING:
            if optimizer is None and len(updates) > 1:
                self._backward_to_all(loss, retain_graph)
                return
            self._decide()
            update = (
                next(iter(updates.values())) if optimizer is None else self._update_of(optimizer)
            )
            self._check_intact(update)
            update.backward(loss, optimization.window, retain_graph=retain_graph)
            self._held.add(update.name)
            self._note(update)

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here."""
        update = self._update_of(optimizer)
        if not self.is_used:
            raise own_steps.step_without_backward(self.trainer, update)
        self.methods.check(self.trainer, update, "step")
        self._check_intact(update)
        if self._before is not None and update.name in self._before:
            self._take(update, self._before.pop(update.name))
        self._stepped.add(update.name)
        self._held.add(update.name)
        if self.optimization.window.is_last:
            self._finish(update)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's
        step."""
        update = self._update_of(optimizer)
        is_stepped = update.name in self._spent or (
            update.name in self._stepped and not has_gradients(update)
        )
        if self.optimization.window.is_last and is_stepped:
            raise own_steps.clipped_late(update)
        self._clips[update.name] = max_norm

    def end_step(self) -> None:
        """End the step: assign its gradients and, at the end of the window, step the optimizers
        that have some."""
        self._decide()
        if self._is_checking_left:
            self._check_left()
        for name in self._spent:
            self.optimization.by_name[name].zero()
            self._versions.pop(name, None)
        self._spent.clear()
        if self.optimization.window.is_last:
            for update in self._due():
                self.methods.check(self.trainer, update, "end")
                self._finish(update)
            self._held.clear()
            self._clips.clear()
            self._is_for_all = False

    def use(self, use: Use) -> None:
        """Note what trains in this run, a program's own calls or the losses that it returns; it
        cannot be both."""
        self._use = self._use or use
        if self._use != use:
            raise own_steps.two_uses()

    def train_returned(self, returned: Any) -> None:
        """Train the loss that a step returned, where the program has never called `backward`
        itself."""
        if self.is_used or self._use == "backward":
            return
        if own_steps.have_changed(self.optimization.by_name.values(), self._at_start):
            self.use("backward")  # the loss is only reported
            return
        loss = own_steps.loss_in(self.trainer, returned)
        if loss is not None:
            self.use("return")
            self.trainer.train_loss(loss)

    def _check_left(self) -> None:
        """Refuse gradients that a step leaves to the next one, where a resume point in between
        would not hold them."""
        for update in self.optimization.by_name.values():
            is_known = update.name in self.schedulers.due or update.name in self._held
            if (
                not is_known
                and has_gradients(update)
                and gradient_versions(update) != self._at_start.get(update.name)
            ):
                raise own_steps.gradients_left(update)
        self._is_checking_left = False

    def _update_of(self, optimizer: Optimizer | str) -> OptimizerUpdate:
        updates = self.optimization.by_name
        if not any(
            optimizer is update.optimizer for update in updates.values()
        ) and optimizer not in list(updates):
            raise own_steps.unknown_optimizer(optimizer, updates)
        return self.optimization.find(optimizer)

    def watching(self) -> AbstractContextManager[Any]:
        """Notice steps that the user takes with an optimizer itself."""
        return NOTHING if self._is_watching else self._watching()

    @contextmanager
    def _watching(self) -> Iterator[None]:
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
        self._incomplete = {
            update.name
            for update in self._watched
            if own_steps.are_incomplete(self.trainer, update)
        }
        for update in self._watched:
            self._handles += watch_own_steps(update, self._before_own_step, self._after_own_step)

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._watched = []

    def _before_own_step(self, update: OptimizerUpdate) -> None:
        """The user steps an optimizer: make gradients of `backward` what they are for `step`, and
        clip."""
        self.use("backward")
        is_ours = update.name in self._held or any(update.name in names for names in self._reached)
        own_steps.check_own_step(self.trainer, update, is_ours=is_ours)
        self.methods.check(self.trainer, update, "own")
        if is_ours:
            self._check_intact(update)
        if self._before is not None and update.name in self._before:
            self._take(update, self._before.pop(update.name))
        if is_ours:
            own_steps.complete(update)
            self._spent.add(update.name)
        for listener in update.listeners:
            listener(update.name)
        if not self._clip(update):
            update.zero()  # a step without gradients changes nothing
        self._own = update
        self._is_by_hand |= not is_ours

    def _after_own_step(self, update: OptimizerUpdate) -> None:
        self._own = None
        self.optimization.note_own_step(update)
        self.is_used = True
        self._stepped.add(update.name)
        self._note_step(update)

    def _note_step(self, update: OptimizerUpdate) -> None:
        """An optimizer was stepped, by the trainer or by the user."""
        self._held.discard(update.name)
        self._versions.pop(update.name, None)
        self.optimization.window.has_stepped = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        self.schedulers.due[update.name] = update
        self.trainer.events.emit("on_optimizer_step_end", update.name)

    def _backward_to_all(self, loss: Tensor, retain_graph: bool) -> None:
        """One backward pass for all optimizers, in the smallest of their scales, which overflows
        for none."""
        updates = list(self.optimization.by_name.values())
        window = self.optimization.window
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
        loss = window.share_of(loss)
        if self._scale is not None:
            loss = loss * self._scale
        params = [param for update in updates for param in update.params]
        earlier = self._take_off_earlier(updates)
        run_backward(
            loss,
            params,
            is_last=window.is_last,
            holds_all=self.optimization.holds_all,
            peers=updates[0].peers,
            retain_graph=retain_graph,
            overlaps=False,  # whose gradients these are is known later
        )
        self._reached.append(frozenset(update.name for update in updates if has_gradients(update)))
        if earlier is not None:
            own_steps.add_gradients(params, earlier)
        for update in updates:
            self._note(update)

    def _take_off_earlier(self, updates: Sequence[OptimizerUpdate]) -> StoredGradients | None:
        """The gradients of the undecided backward passes, so that the next one's are known apart
        from them."""
        if not self._reached:
            return None
        for update in updates:
            self._check_intact(update)
        return own_steps.remove_gradients([param for update in updates for param in update.params])

    def _set_aside(self, updates: Sequence[OptimizerUpdate], loss: Tensor) -> None:
        """Keep what earlier steps gave apart from what is coming."""
        for update in updates:
            self._check_intact(update)
        self._before = {
            update.name: own_steps.remove_gradients(update.params) for update in updates
        }
        self._versions.clear()
        scales = [
            scale
            for update in updates
            if (scale := own_steps.scale_of(update, loss.device)) is not None
        ]
        self._scale = torch.stack(scales).amin() if scales else None

    def _decide(self) -> None:
        """The backward passes so far were for the optimizers stepped since; if there are none, for
        all."""
        before = self._before
        stepped = self._stepped
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
        self._before, self._losses, self._reached, self._scale, self._stepped = (
            None,
            [],
            [],
            None,
            set(),
        )

    def _take(self, update: OptimizerUpdate, kept: StoredGradients) -> None:
        """Add new gradients to those the update had before, in its own scale; flag their losses for
        its guard."""
        for loss in self._losses:
            update.flag_nonfinite(loss)
        new = [param.grad for param in update.params if param.grad is not None]
        if self._scale is not None and new:
            foreach_mul_(new, own_steps.scale_of(update, self._scale.device) / self._scale)
        own_steps.add_gradients(update.params, kept)
        self._note(update)

    def _drop(self, update: OptimizerUpdate, kept: StoredGradients) -> None:
        if self.trainer.accumulate > 1 and any(
            mesh_of(param) is not None for param in update.params
        ):
            raise own_steps.sharded_in_window(update)
        for param, old in zip(update.params, kept, strict=True):
            param.grad = old
        if update.name in self._held:
            self._note(update)
        else:
            self._versions.pop(update.name, None)

    def _due(self) -> list[OptimizerUpdate]:
        """The updates that are to be stepped, in the order of the optimizers; all processes agree
        on them."""
        updates = list(self.optimization.by_name.values())
        peers = updates[0].peers
        for update in updates:
            self._check_intact(update)
        # the program named them, the same on all processes
        if peers is not None and not self._is_for_all:
            return [update for update in updates if update.name in self._held]
        has = [
            float(update.name in self._held and (update.is_skipped or has_gradients(update)))
            for update in updates
        ]
        totals = has if peers is None else peers.sum_count(has).tolist()
        return [update for update, total in zip(updates, totals, strict=True) if total]

    def _note(self, update: OptimizerUpdate) -> None:
        """Remember gradients that are not complete yet, to see whether they are changed before."""
        if update.name in self._incomplete:
            self._versions[update.name] = gradient_versions(update)

    def _check_intact(self, update: OptimizerUpdate) -> None:
        """Refuse gradients that were removed or changed by the user; a sharded model may not have
        any yet."""
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
        if update.name in self.schedulers.due:
            if self.trainer.accumulate > 1:
                raise own_steps.twice_in_window(self.trainer, update)
            self.schedulers.follow(update)
        self.optimization.window.has_stepped = True
        with self.trainer.runtime.no_autocast or NOTHING:
            is_stepped = self._run_phases(update)
        self._note_step(update)
        if not is_stepped:
            self.schedulers.due.pop(update.name, None)

    def _run_phases(self, update: OptimizerUpdate) -> bool:
        """The phases of `update.finish` but for `schedule`, which waits for the end of the step;
        False: no step."""
        if not update.complete():
            self._clips.pop(update.name, None)
            return False
        update.start_step()
        if is_finite := self._clip(update):
            update.step()
        update.zero()
        return is_finite

    def _clip(self, update: OptimizerUpdate) -> bool:
        """Clip by the norm that `clip_gradients` gave for this update, else as configured."""
        usual = update.clip_norm
        update.clip_norm = self._clips.pop(update.name, update.clip_norm)
        try:
            return update.clip()
        finally:
            update.clip_norm = usual
