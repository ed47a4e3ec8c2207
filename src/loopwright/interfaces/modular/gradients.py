"""Which optimizers get the gradients of a loss, where a step names them after its backward pass
(`step`), or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..._torch_compat import foreach_mul_
from ...errors import ConfigurationError
from ...runtime.dtensor import mesh_of
from ...training.own_steps import OwnSteps, gradients
from ...training.step_checks import Versions, gradient_versions
from ...training.update import OptimizerUpdate, run_backward

if TYPE_CHECKING:
    from .core import ModularCore

WAYS = {
    "backward": "`self.backward(loss)`, `loss.backward()` or a step of an optimizer",
    "return": "the trainer, with the loss that `training_step` returned",
    "end": "the trainer, at the end of a batch that called `self.backward(loss)` but no `step`",
    "step": "`self.step(optimizer)`",
    "own": "`optimizer.step()`",
}


class ModularGradients:
    """The gradients of the step under way.

    A backward pass gives gradients to every optimizer that the loss depends on. The optimizers that
    `step` names after it keep theirs; if it names none, all of them do. Other gradients are dropped
    at the next backward pass or the end of the step, as by the `zero_grad` that a hand-written loop
    has there: a generator's loss leaves nothing in the discriminator. Optimizers that kept
    gradients are stepped at the end of the accumulation window, once.

    This is why the interface drives the phases of `OptimizerUpdate` itself: `update` takes the
    optimizers beforehand. A plain `optimizer.step()`, and all schedulers, are the matter of the
    core's `OwnSteps`.
    """

    def __init__(self, core: ModularCore) -> None:
        self.core = core
        self.begin_run()

    def begin_run(self) -> None:
        """Forget everything, also how the program trains."""
        self.run = self.core.run
        self.updates = self.run.updates
        self.own_steps = OwnSteps(self.run, self._before_own_step, self._after_own_step)
        self._ways: dict[str, str] = {}  # how `training_step` trains, and each optimizer is stepped
        self._routes: list[frozenset[str]] = []  # optimizers that losses reach, as they first came
        self._num_micro_batches = self.run.num_micro_batches
        self._is_watching = False
        self.reset()

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the updates' to forget."""
        self.is_used = False  # whether the step under way has called `backward` or stepped anything
        self.own_steps.partial.clear()
        self.own_steps.schedulers.reset()
        self._is_in_own_step = False
        self._usual_clip: float | None = None  # of the optimizer whose plain step is under way
        self._clips: dict[str, float] = {}
        self._spent: set[str] = set()  # optimizers whose gradients a plain step has used
        self._held: set[str] = set()  # optimizers that will be stepped when the window ends
        self._versions: dict[str, Versions] = {}  # of incomplete gradients
        # whether gradients of this window belong to all optimizers that they reached
        self._is_for_all = False
        self._forget_undecided()

    def _forget_undecided(self) -> None:
        """Begin to collect backward passes that could be for one optimizer or for another."""
        # what optimizers had before those
        self._aside: dict[str, list[Tensor | None]] = {}
        self._losses: list[Tensor] = []
        self._reached: list[frozenset[str]] = []  # the optimizers that each of them reached
        self._scale: Tensor | None = None  # that their losses were scaled by
        self._stepped: set[str] = set()  # optimizers that were stepped after them

    # A step of the user's, and the calls in it

    def begin_step(self) -> None:
        """Begin a batch; a callback must not have stepped a scheduler since the last one."""
        if self.run is not self.core.run:
            self.begin_run()  # an experiment, or its end
        if self._num_micro_batches != self.run.num_micro_batches:
            self._num_micro_batches = self.run.num_micro_batches
            self.reset()  # memory ran out, and the window begins again
        self.is_used = False
        updates = self.updates.by_name.values()
        self.own_steps.schedulers.check(updates)
        self.own_steps.schedulers.begin_step(updates)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice plain steps."""
        before = self._is_watching
        self._is_watching = True
        try:
            with nullcontext() if before else self.own_steps:
                yield
        finally:
            self._is_watching = before

    def backward(
        self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """Add the gradients of this step's share of the window."""
        updates = list(self.updates.by_name.values())
        given = updates if optimizer is None else [self.updates.find(optimizer)]
        self.updates.calls += 1
        self.is_used = True
        self._drop_spent()
        for update in given:
            self._check_intact(update)
            if update.name not in self.own_steps.partial and gradients(update):
                raise ConfigurationError(
                    "gradients-mixed",
                    f"Optimizer {update.name!r} has gradients from `loss.backward()`, and "
                    "`self.backward(loss)` would add to them. Use the same one of the two for all "
                    "losses of an optimizer; remove unused gradients with "
                    f"`self.{update.name}.zero_grad()`.",
                )
        with self.run.runtime.no_autocast or nullcontext():
            if len(given) > 1:
                self._backward_to_all(loss, given, retain_graph)
            else:
                self._decide()
                given[0].backward(loss, self.updates.window, retain_graph=retain_graph)
                self._held.add(given[0].name)
                self._note(given[0])

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here; gradients of
        `loss.backward()` make it a plain step."""
        update = self.updates.find(optimizer)
        if update.name not in self.own_steps.partial | self._held:
            update.optimizer.step()
            return
        self._check_way(update.name, "step")
        self._check_intact(update)
        self._take(update)
        self._stepped.add(update.name)
        self._held.add(update.name)
        if self.updates.window.is_last:
            self._finish(update)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's
        step."""
        name = self.updates.find(optimizer).name
        if name in self.own_steps.schedulers.due and name not in self.own_steps.partial:
            raise ConfigurationError(
                "clipped-after-step",
                f"clip_gradients({name}) was called after step({name}), which is too late: call "
                "it before.",
            )
        self._clips[name] = max_norm

    def end_step(self) -> None:
        """End the step: assign its gradients and, at the end of the window, step the optimizers
        that have some."""
        self._decide()
        self._drop_spent()
        if self.updates.window.is_last:
            for update in self._due():
                self._check_way(update.name, "end")
                self._finish(update)
            self._held.clear()
            self._clips.clear()
            self._is_for_all = False

    def train_returned(self, returned: Any) -> None:
        """Train the loss that a step returned, where the program has never called `backward`
        itself."""
        if self.is_used or self._ways.get("training_step") == "backward":
            return
        if any(
            gradients(update) and update.name not in self.own_steps.partial
            for update in self.updates.by_name.values()
        ):
            self.note_backward()  # by `loss.backward()`: the loss is only reported
            return
        loss = loss_in(self.core, returned)
        if loss is not None:
            self._check_way("training_step", "return")
            self.core.train_loss(loss)

    def note_backward(self) -> None:
        """Note that the program trains by itself; losses that it returns are only reported."""
        self._check_way("training_step", "backward")

    def _check_way(self, what: str, way: str) -> None:
        """Refuse to train or to step in a second way, which would be once too often."""
        first = self._ways.setdefault(what, way)
        # a turn taken in the middle of a window ends with it
        if first == way or (self.core.accumulate > 1 and {first, way} == {"end", "step"}):
            return
        raise ConfigurationError(
            "two-ways-to-step",
            f"{what!r} trains in two different ways: first by {WAYS[first]}, now by {WAYS[way]}. "
            "Choose one for every batch: return the loss; or call `self.backward(loss)` alone, or "
            "followed by `self.step(optimizer)` or `optimizer.step()` in the same "
            "`training_step`, and return losses that should not be trained as `loss.detach()`. "
            "To step after every fourth batch only, set gradient_accumulation_steps=4 and leave "
            "the step to the trainer.",
        )

    # Plain steps

    def _before_own_step(self, update: OptimizerUpdate) -> None:
        self.note_backward()
        self._check_way(update.name, "own")
        if update.name in self.own_steps.partial:
            self._check_intact(update)
        self._take(update)
        self._spent.add(update.name)
        self._is_in_own_step = True
        self._usual_clip = update.clip_norm
        update.clip_norm = self._clips.pop(update.name, update.clip_norm)

    def _after_own_step(self, update: OptimizerUpdate) -> None:
        update.clip_norm = self._usual_clip
        self._is_in_own_step = False
        self.is_used = True
        self._stepped.add(update.name)
        self._note_step(update)

    def _drop_spent(self) -> None:
        if not self._is_in_own_step:  # else a closure computes them
            for name in self._spent:
                self.updates.by_name[name].zero()
            self._spent.clear()

    # Backward passes, and whose gradients they are

    def _backward_to_all(
        self, loss: Tensor, updates: Sequence[OptimizerUpdate], retain_graph: bool
    ) -> None:
        """One backward pass for all optimizers, in the smallest of their scales, which overflows
        for none."""
        window = self.updates.window
        first = updates[0]
        if self._stepped:
            self._decide()
        if not self._aside:
            self._set_aside(updates, loss.device)
        if first.defers_loss_check:
            self._losses.append(loss.detach())
        elif first.guard is not None and not math.isfinite(loss.item()):
            first.guard.refuse(f"a loss is {loss.item()}")
            for update in updates:
                update.is_skipped = True
                self._held.add(update.name)
            return
        loss = window.share_of(loss)
        if self._scale is not None:
            loss = loss * self._scale
        before = [gradient_versions(update) for update in updates]
        run_backward(
            loss,
            [param for update in updates for param in update.params],
            is_last=window.is_last,
            holds_all=self.updates.holds_all,
            peers=first.peers,
            retain_graph=retain_graph,
            overlaps=False,  # whose gradients these are is known later
        )
        pairs = zip(updates, before, strict=True)
        self._reached.append(frozenset(u.name for u, was in pairs if gradient_versions(u) != was))
        for update in updates:
            self._note(update)

    def _set_aside(self, updates: Sequence[OptimizerUpdate], device: torch.device) -> None:
        """Keep what earlier batches gave apart from what is coming."""
        for update in updates:
            self._aside[update.name] = [param.grad for param in update.params]
            update.zero()
        self._versions.clear()
        scales = [scale_of(update, device) for update in updates if update.scaler is not None]
        self._scale = torch.stack(scales).amin() if scales else None

    def _decide(self) -> None:
        """The backward passes so far were for the optimizers stepped since; if there are none, for
        all."""
        is_for_all = bool(self._aside) and not self._stepped
        if is_for_all:
            self._is_for_all = True
            self._check_routes()
        for name in list(self._aside):
            update = self.updates.by_name[name]
            if is_for_all:
                self._check_intact(update)
                self._take(update)
                if gradients(update):
                    self._held.add(name)
            else:
                self._drop(update)
        self._forget_undecided()

    def _take(self, update: OptimizerUpdate) -> None:
        """Decide that the backward passes so far were for this optimizer: add their gradients to
        those that it had before, in its own scale, and flag their losses for its guard."""
        kept = self._aside.pop(update.name, None)
        if kept is None:
            return
        for loss in self._losses:
            update.flag_nonfinite(loss)
        new = gradients(update)
        if self._scale is not None and new:
            foreach_mul_(new, scale_of(update, self._scale.device) / self._scale)
        for param, old in zip(update.params, kept, strict=True):
            if old is not None:
                param.grad = old if param.grad is None else old.add_(param.grad)
        self._note(update)

    def _drop(self, update: OptimizerUpdate) -> None:
        """Decide that they were for others."""
        if self.core.accumulate > 1 and is_sharded(update):
            raise ConfigurationError(
                "sharded-window",
                "In an accumulation window of a sharded model, gradients that optimizer "
                f"{update.name!r} should not use cannot be removed again: name the optimizer of "
                "each loss, as in self.backward(loss, self.g_optimizer).",
            )
        for param, old in zip(update.params, self._aside[update.name], strict=True):
            param.grad = old
        if update.name in self._held:
            self._note(update)
        else:
            self._forget_partial(update)

    def _check_routes(self) -> None:
        """Refuse losses of one step, or of alternating steps, that could be for one optimizer or
        for several."""
        for position, names in enumerate(self._reached):
            for other in self._reached[:position]:
                if names & other and len(names | other) > 1:
                    raise _unclear(names, other)
        for names in self._reached:
            last = self._routes[-1] if self._routes else names
            if names in self._routes and names != last and names & last:
                raise _unclear(names, last)
            if names and names not in self._routes:
                self._routes.append(names)

    # Gradients that are not complete yet

    def _note(self, update: OptimizerUpdate) -> None:
        """Remember incomplete gradients, to see whether they are changed before their use."""
        self.own_steps.partial.add(update.name)
        is_partial = update.peers is not None or update.scaler is not None
        # a sharded model's are the sum over processes already, and clipped as such
        if (is_partial or self.core.accumulate > 1) and not is_sharded(update):
            self._versions[update.name] = gradient_versions(update)

    def _forget_partial(self, update: OptimizerUpdate) -> None:
        self.own_steps.partial.discard(update.name)
        self._versions.pop(update.name, None)

    def _check_intact(self, update: OptimizerUpdate) -> None:
        """Refuse gradients that were removed or changed by the user; a sharded model may not have
        any yet."""
        if update.is_skipped or self._is_in_own_step:
            return
        name = update.name
        accumulate = self.core.accumulate
        is_held = name in self._held and name not in self._aside
        if is_held and not gradients(update) and not is_sharded(update):
            raise ConfigurationError(
                "gradients-gone",
                f"Optimizer {name!r} no longer has gradients, before it was stepped (with "
                f"gradient_accumulation_steps={accumulate}), although `self.backward(loss)` was "
                "called: zero_grad() has removed them, or the loss does not depend on its "
                "parameters. Remove zero_grad(); the trainer calls it after the step.",
            )
        if name in self._versions and self._versions[name] != gradient_versions(update):
            raise ConfigurationError(
                "gradients-changed",
                f"The gradients of optimizer {name!r} were changed after `self.backward(loss)`, "
                "while they were not complete: still scaled (fp16), of this process only, or of "
                f"some of the batches (gradient_accumulation_steps={accumulate}). The cause may "
                "be clip_grad_norm_ or zero_grad(set_to_none=False). Call "
                f"`self.clip_gradients(self.{name}, max_norm)` or set gradient_clip_val, which "
                "clip when they are complete; make other changes in `on_optimizer_step_start`.",
            )

    # The end of a window

    def _due(self) -> list[OptimizerUpdate]:
        """The updates that are to be stepped, in the order of the optimizers; all processes agree
        on them."""
        updates = list(self.updates.by_name.values())
        peers = updates[0].peers
        for update in updates:
            self._check_intact(update)
        # the program named them, the same on all processes
        if peers is not None and not self._is_for_all:
            return [update for update in updates if update.name in self._held]
        has = [
            float(update.name in self._held and (update.is_skipped or bool(gradients(update))))
            for update in updates
        ]
        totals = has if peers is None else peers.sum_count(has).tolist()
        return [update for update, total in zip(updates, totals, strict=True) if total]

    def _finish(self, update: OptimizerUpdate) -> None:
        """Step an optimizer; its schedulers follow at the end of the batch."""
        schedulers = self.own_steps.schedulers
        if update.name in schedulers.due and self.core.accumulate > 1:
            raise self.own_steps.in_window(update)
        schedulers.follow(update)
        usual = update.clip_norm
        update.clip_norm = self._clips.pop(update.name, usual)
        try:
            with self.run.runtime.no_autocast or nullcontext():
                is_stepped = update.finish(schedules=False)
        finally:
            update.clip_norm = usual
        self.updates.window.has_stepped = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        if is_stepped:
            schedulers.due[update.name] = update
        self._note_step(update)

    def _note_step(self, update: OptimizerUpdate) -> None:
        """An optimizer was stepped, by the trainer or by the program."""
        self._held.discard(update.name)
        self._forget_partial(update)
        self.core.events.emit("on_optimizer_step_end", update.name)


def _unclear(names: frozenset[str], other: frozenset[str]) -> ConfigurationError:
    both = min(names & other)
    first = " and ".join(sorted(names))
    second = " and ".join(sorted(other))
    example = min(names ^ other, default=both)
    return ConfigurationError(
        "unclear-optimizer",
        "It is not clear which optimizer each loss is for: one `self.backward(loss)` reaches the "
        f"parameters of {first}, another one those of {second}, so {both} would be trained on "
        f"both. Name the optimizer of each loss: `self.backward(loss, self.{example})`, or call "
        f"`self.step(self.{example})` after it. For one loss for all of them, call "
        "`self.backward(first + second)`.",
    )


def loss_in(core: ModularCore, returned: Any) -> Tensor | None:
    """The loss to train in what `training_step` returned; others than that are a mistake, if they
    could be trained."""
    values = returned if isinstance(returned, Mapping) else {"loss": returned}
    losses = {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) and value.requires_grad
    }
    if losses and "loss" not in losses:
        raise ConfigurationError(
            "loss-not-trained",
            f"`training_step` returned {', '.join(losses)} but trained nothing: only a value "
            "returned as 'loss' is trained automatically. Call `self.backward(loss)` for each "
            "loss; with several optimizers, `self.backward(loss, "
            f"self.{next(iter(core.optimizers))})`. Return values that should only be reported "
            "as `value.detach()`.",
        )
    return losses.get("loss")


def is_sharded(update: OptimizerUpdate) -> bool:
    return any(mesh_of(param) is not None for param in update.params)


def scale_of(update: OptimizerUpdate, device: torch.device) -> Any:
    """What the losses of an update with a scaler are scaled by, on the device."""
    assert update.scaler is not None
    return update.scaler.scale(torch.ones((), device=device))
