"""Which optimizers get the gradients, where a step names them after its backward pass (`step`), or
not at all; and whether the program or the trainer steps a scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..._torch_compat import foreach_mul_
from ...errors import ConfigurationError
from ...optim.build import Schedule
from ...runtime.dtensor import mesh_of
from ...training.own_steps import OwnSteps, gradients, scheduler_position, scheduler_positions
from ...training.step_checks import Versions, gradient_versions
from ...training.update import OptimizerUpdate, run_backward
from .._shared import StepSchedulers

if TYPE_CHECKING:
    from .core import ModularCore

NOTHING: AbstractContextManager[Any] = nullcontext()
StoredGradients = Sequence[Tensor | None]
StepMethod = Literal["end", "step", "own"]
Use = Literal["backward", "return"]


class ModularGradients:
    """The gradients of the step under way.

    A backward pass gives gradients to every optimizer that the loss depends on. The optimizers that
    `step` names after it keep theirs; if it names none, all of them do. Other gradients are dropped
    at the next backward pass or the end of the step, as by the `zero_grad` that a hand-written loop
    has there: a generator's loss leaves nothing in the discriminator. Optimizers that kept
    gradients are stepped at the end of the accumulation window, once.

    This is why the interface drives the phases of `OptimizerUpdate` itself: `update` takes the
    optimizers beforehand.

    A plain `optimizer.step()` is the core's matter (`OwnSteps`), with gradients of `backward` or of
    `loss.backward()`; the optimizer is not stepped again.
    """

    def __init__(self, core: ModularCore) -> None:
        self.core = core
        self.schedulers = UpdateSchedulers(core)
        self.begin_run()

    def begin_run(self) -> None:
        """Forget everything, also what the program's way of stepping was."""
        self.methods = StepMethods()
        self.routes = Routes()
        self.updates = self.core.run.updates
        self.own_steps = OwnSteps(self.core.run, self._before_own_step, self._after_own_step)
        self._num_micro_batches = self.core.run.num_micro_batches
        self._use: Use | None = None
        # of a step: all gradients, to see what it did to them
        self._at_start: dict[str, Versions] = {}
        self._is_watching = False
        self.reset()

    def reset(self) -> None:
        """Forget the step under way; gradients themselves are the updates' to forget."""
        self.is_used = False  # whether the step under way has called `backward` or stepped anything
        self._own: OptimizerUpdate | None = None  # whose plain step is under way
        self._usual_clip: float | None = None  # of that update
        self._spent: set[str] = set()  # of whose gradients that step, which leaves them, was taken
        self.own_steps.partial.clear()
        self.schedulers.reset()
        self._held: set[str] = set()
        self._versions: dict[str, Versions] = {}  # of incomplete gradients
        self._clips: dict[str, float] = {}
        # whether gradients of this window belong to all optimizers that they reached
        self._is_for_all = False
        self._forget_undecided()

    def _forget_undecided(self) -> None:
        # what updates had before the backward passes that are undecided
        self._before: dict[str, StoredGradients] | None = None
        self._losses: list[Tensor] = []
        # the optimizers that each of those backward passes reached
        self._reached: list[frozenset[str]] = []
        self._scale: Tensor | None = None  # that those were scaled by
        self._stepped: set[str] = set()

    # A step of the user's, and the calls in it

    def begin_step(self) -> None:
        """A step begins."""
        if self.own_steps.run is not self.core.run:
            self.begin_run()  # an experiment, or its end
        if self._num_micro_batches != self.core.run.num_micro_batches:
            self._num_micro_batches = self.core.run.num_micro_batches
            self.reset()  # memory ran out, and the window begins again
        self.is_used = False
        updates = self.updates.by_name.values()
        self.schedulers.begin_step(updates)
        self._at_start = {update.name: gradient_versions(update) for update in updates}

    def watching(self) -> AbstractContextManager[Any]:
        """Notice plain steps."""
        return NOTHING if self._is_watching else self._watch()

    def backward(
        self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """Add the gradients of this step's share of the window."""
        updates = self.updates.by_name
        self.updates.calls += 1
        self.is_used = True
        given = list(updates.values()) if optimizer is None else [self.updates.find(optimizer)]
        for update in given:
            if update.name not in self._held:
                check_unmixed(update, self._at_start.get(update.name))
        with self.core.runtime.no_autocast or NOTHING:
            if len(given) > 1:
                self._backward_to_all(loss, retain_graph)
                return
            self._decide()
            self._check_intact(given[0])
            given[0].backward(loss, self.updates.window, retain_graph=retain_graph)
            self._held.add(given[0].name)
            self._note(given[0])

    def step(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer have its gradients, and step it if the window ends here."""
        update = self.updates.find(optimizer)
        if not self.is_used:
            raise ConfigurationError(
                "step-without-backward",
                f"`self.step(self.{update.name})` was called without `self.backward(loss)` before "
                "it in this batch. Write `self.backward(loss)` and then "
                f"`self.step(self.{update.name})`.",
            )
        self.methods.check(self.core, update, "step")
        self._check_intact(update)
        self._take_undecided(update)
        self._stepped.add(update.name)
        self._held.add(update.name)
        if self.updates.window.is_last:
            self._finish(update)

    def clip(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip these gradients when they are complete, which is just before the optimizer's
        step."""
        update = self.updates.find(optimizer)
        is_stepped = update.name in self._spent or (
            update.name in self._stepped and not gradients(update)
        )
        if self.updates.window.is_last and is_stepped:
            raise ConfigurationError(
                "clipped-after-step",
                f"clip_gradients({update.name}) was called after step({update.name}), which is "
                "too late: call it before.",
            )
        self._clips[update.name] = max_norm

    def end_step(self) -> None:
        """End the step: assign its gradients and, at the end of the window, step the optimizers
        that have some."""
        self._decide()
        for name in self._spent:
            self.updates.by_name[name].zero()
            self._versions.pop(name, None)
        self._spent.clear()
        if self.updates.window.is_last:
            for update in self._due():
                self.methods.check(self.core, update, "end")
                self._finish(update)
            self._held.clear()
            self._clips.clear()
            self._is_for_all = False

    def follow_schedulers(self) -> None:
        """The batch is over: step the schedulers that the program has not stepped."""
        self.schedulers.follow_all()
        self.own_steps.end_step()

    def use(self, use: Use) -> None:
        """Note what trains in this run, a program's own calls or the losses that it returns; it
        cannot be both."""
        self._use = self._use or use
        if self._use != use:
            raise ConfigurationError(
                "trains-in-two-ways",
                "Some steps call `self.backward(loss)` or `loss.backward()` or step an optimizer, "
                "but others only return a loss, which is then trained automatically. Call "
                "`self.backward(loss)` in each of them, and return a loss that should not be "
                "trained as `loss.detach()`.",
            )

    def train_returned(self, returned: Any) -> None:
        """Train the loss that a step returned, where the program has never called `backward`
        itself."""
        if self.is_used or self._use == "backward":
            return
        for update in self.updates.by_name.values():
            now = gradient_versions(update)
            if now and now != self._at_start.get(update.name):  # by `loss.backward()`
                self.use("backward")  # the loss is only reported
                return
        loss = loss_in(self.core, returned)
        if loss is not None:
            self.use("return")
            self.core.train_loss(loss)

    # Plain steps

    @contextmanager
    def _watch(self) -> Iterator[None]:
        self._is_watching = True
        try:
            with self.own_steps:
                yield
        finally:
            self._is_watching = False

    def _before_own_step(self, update: OptimizerUpdate) -> None:
        if self.core.run.metrics.is_evaluating:
            self.core._check_update(None)
        self.use("backward")
        self.methods.check(self.core, update, "own")
        if update.name in self._held or any(update.name in names for names in self._reached):
            self._check_intact(update)
            self._spent.add(update.name)
        self._take_undecided(update)
        self._own = update
        self._usual_clip = update.clip_norm
        update.clip_norm = self._clips.pop(update.name, update.clip_norm)

    def _after_own_step(self, update: OptimizerUpdate) -> None:
        update.clip_norm = self._usual_clip
        self._own = None
        self.is_used = True
        self._stepped.add(update.name)
        self._note_step(update)

    # Backward passes, and whose gradients they are

    def _backward_to_all(self, loss: Tensor, retain_graph: bool) -> None:
        """One backward pass for all optimizers, in the smallest of their scales, which overflows
        for none."""
        updates = list(self.updates.by_name.values())
        window = self.updates.window
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
            holds_all=self.updates.holds_all,
            peers=updates[0].peers,
            retain_graph=retain_graph,
            overlaps=False,  # whose gradients these are is known later
        )
        self._reached.append(frozenset(update.name for update in updates if gradients(update)))
        if earlier is not None:
            add_gradients(params, earlier)
        for update in updates:
            self._note(update)

    def _take_off_earlier(self, updates: Sequence[OptimizerUpdate]) -> StoredGradients | None:
        """The gradients of the undecided backward passes, so that the next one's are known apart
        from them."""
        if not self._reached:
            return None
        for update in updates:
            self._check_intact(update)
        return remove_gradients([param for update in updates for param in update.params])

    def _set_aside(self, updates: Sequence[OptimizerUpdate], loss: Tensor) -> None:
        """Keep what earlier steps gave apart from what is coming."""
        for update in updates:
            self._check_intact(update)
        self._before = {update.name: remove_gradients(update.params) for update in updates}
        self._versions.clear()
        scales = [
            scale for update in updates if (scale := scale_of(update, loss.device)) is not None
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
                update = self.updates.by_name[name]
                if stepped:
                    self._drop(update, kept)
                else:
                    self._check_intact(update)
                    self._take(update, kept)
                    if gradients(update):
                        self._held.add(name)
        self._forget_undecided()

    def _take_undecided(self, update: OptimizerUpdate) -> None:
        """Decide that the backward passes so far were for this optimizer, too."""
        if self._before is not None and update.name in self._before:
            self._take(update, self._before.pop(update.name))

    def _take(self, update: OptimizerUpdate, kept: StoredGradients) -> None:
        """Add new gradients to those the update had before, in its own scale; flag their losses for
        its guard."""
        for loss in self._losses:
            update.flag_nonfinite(loss)
        new = gradients(update)
        if self._scale is not None and new:
            foreach_mul_(new, scale_of(update, self._scale.device) / self._scale)
        add_gradients(update.params, kept)
        self._note(update)

    def _drop(self, update: OptimizerUpdate, kept: StoredGradients) -> None:
        if self.core.accumulate > 1 and is_sharded(update):
            raise ConfigurationError(
                "sharded-window",
                "In an accumulation window of a sharded model, gradients that optimizer "
                f"{update.name!r} should not use cannot be removed again: name the optimizer of "
                "each loss, as in self.backward(loss, self.g_optimizer).",
            )
        for param, old in zip(update.params, kept, strict=True):
            param.grad = old
        if update.name in self._held:
            self._note(update)
        else:
            self.own_steps.partial.discard(update.name)
            self._versions.pop(update.name, None)

    def _note(self, update: OptimizerUpdate) -> None:
        """Remember gradients that are not complete yet, to see whether they are changed before."""
        self.own_steps.partial.add(update.name)
        is_partial = update.peers is not None or update.scaler is not None
        # a sharded model's are the sum over processes already, and clipped as such
        if (is_partial or self.core.accumulate > 1) and not is_sharded(update):
            self._versions[update.name] = gradient_versions(update)

    def _check_intact(self, update: OptimizerUpdate) -> None:
        """Refuse gradients that were removed or changed by the user; a sharded model may not have
        any yet."""
        if update.is_skipped or self._own is not None:
            return
        is_aside = self._before is not None and update.name in self._before
        is_held = update.name in self._held and not is_aside
        if is_held and not gradients(update) and not is_sharded(update):
            raise ConfigurationError(
                "gradients-gone",
                f"Optimizer {update.name!r} no longer has gradients, before it was stepped (with "
                f"gradient_accumulation_steps={self.core.accumulate}), although "
                "`self.backward(loss)` was called: zero_grad() has removed them, or the loss does "
                "not depend on its parameters. Remove zero_grad(); the trainer calls it after the "
                "step.",
            )
        noted = self._versions.get(update.name)
        if noted is not None and noted != gradient_versions(update):
            raise self._changed(update)

    def _changed(self, update: OptimizerUpdate) -> ConfigurationError:
        if update.scaler is not None:
            why = "still scaled for precision='fp16'"
        elif update.peers is not None:
            why = "those of this process's part of the batch, not yet averaged over the processes"
        else:
            why = f"part of a sum over {self.core.accumulate} batches (gradient_accumulation_steps)"
        return ConfigurationError(
            "gradients-changed",
            f"The gradients of optimizer {update.name!r} were changed after `self.backward(loss)`, "
            f"while they were {why}. The cause may be clip_grad_norm_ or "
            f"zero_grad(set_to_none=False). Call `self.clip_gradients(self.{update.name}, "
            "max_norm)` or set gradient_clip_val, which clip when they are complete; make other "
            "changes in `on_optimizer_step_start`.",
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
        """The phases of `update.finish`, but `schedule` waits for the end of the step."""
        if update.name in self.schedulers.due:
            if self.core.accumulate > 1:
                raise ConfigurationError(
                    "stepped-twice-in-window",
                    f"Optimizer {update.name!r} would be stepped twice in the last batch of an "
                    "accumulation window, the second time without the gradients of the other "
                    f"batches: with gradient_accumulation_steps={self.core.accumulate} step it "
                    "once per batch, and call `training_step` once.",
                )
            self.schedulers.follow(update)
        with self.core.runtime.no_autocast or NOTHING:
            clip_norm = self._clips.pop(update.name, update.clip_norm)
            is_stepped = update.complete()
            if is_stepped:
                update.start_step()
                usual = update.clip_norm
                update.clip_norm = clip_norm
                try:
                    is_stepped = update.clip()
                finally:
                    update.clip_norm = usual
                if is_stepped:
                    update.step()
                update.zero()
        self.updates.window.has_stepped = True
        torch.clear_autocast_cache()  # it holds weights as they were before the step
        if is_stepped:
            self.schedulers.due[update.name] = update
        self._note_step(update)

    def _note_step(self, update: OptimizerUpdate) -> None:
        """An optimizer was stepped, by the trainer or by the program."""
        self.own_steps.partial.discard(update.name)
        self._held.discard(update.name)
        self._versions.pop(update.name, None)
        self.core.events.emit("on_optimizer_step_end", update.name)


class StepMethods:
    """The method by which each optimizer is stepped in a run; one that is stepped by two is stepped
    too often."""

    def __init__(self) -> None:
        self._first: dict[str, StepMethod] = {}

    def check(self, core: ModularCore, update: OptimizerUpdate, method: StepMethod) -> None:
        """Note how an optimizer is about to be stepped; a second method for it is refused."""
        first = self._first.setdefault(update.name, method)
        if first == method or (core.accumulate > 1 and "own" not in (first, method)):
            return
        name = update.name
        words = {
            "end": "the trainer, at the end of a batch that called `self.backward(loss)` but no "
            "`step`",
            "step": f"`self.step(self.{name})`",
            "own": f"`self.{name}.step()`",
        }
        raise ConfigurationError(
            "two-ways-to-step",
            f"Optimizer {name!r} is stepped in two different ways: first by {words[first]}, now "
            f"by {words[method]}. Choose one for every batch: `self.backward(loss)` alone, or "
            f"followed by `self.step(self.{name})` or `self.{name}.step()` in the same "
            "`training_step`. To step after every fourth batch only, set "
            "gradient_accumulation_steps=4 and leave the step to the trainer.",
        )


class Routes:
    """The optimizers that losses reach where a step does not name the optimizer of a loss."""

    def __init__(self) -> None:
        self._seen: list[frozenset[str]] = []  # sets of optimizers, each when it first came

    def check(self, reached: Sequence[frozenset[str]]) -> None:
        """Refuse losses of one step, or of alternating steps, that could be for one optimizer or
        for several."""
        for position, names in enumerate(reached):
            for other in reached[:position]:
                if names & other and len(names | other) > 1:
                    raise _unclear(names, other)
        for names in reached:
            before = self._seen[-1] if self._seen else names
            if names in self._seen and names != before and names & before:
                raise _unclear(names, before)
            if names and names not in self._seen:
                self._seen.append(names)


def _unclear(names: frozenset[str], other: frozenset[str]) -> ConfigurationError:
    both = sorted(names & other)
    first = " and ".join(sorted(names))
    second = " and ".join(sorted(other))
    example = min(names ^ other, default=both[0])
    return ConfigurationError(
        "unclear-optimizer",
        "It is not clear which optimizer each loss is for: one `self.backward(loss)` reaches the "
        f"parameters of {first}, another one those of {second}, so {both[0]} would be trained on "
        f"both. Name the optimizer of each loss: `self.backward(loss, self.{example})`, or call "
        f"`self.step(self.{example})` after it. For one loss for all of them, call "
        "`self.backward(first + second)`.",
    )


def check_unmixed(update: OptimizerUpdate, left: Versions | None) -> None:
    """Refuse to add to gradients that `loss.backward()` of an earlier step left."""
    if left and left == gradient_versions(update):
        raise ConfigurationError(
            "gradients-mixed",
            f"Optimizer {update.name!r} still has gradients from `loss.backward()` in an earlier "
            "batch, and `self.backward(loss)` would add to them. Use the same one of the two in "
            f"every batch; remove unused gradients with `self.{update.name}.zero_grad()`.",
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


def nothing_trained(core: ModularCore) -> ConfigurationError:
    """An epoch is over in which there was neither a `backward` nor a step."""
    progress = core.progress
    return ConfigurationError(
        "modular-trained-nothing",
        f"Nothing was trained: in epoch {progress.epoch + 1} ({progress.epoch_step} batches) your "
        f"code stepped none of the optimizers ({', '.join(core.optimizers)}). Call "
        "`self.backward(loss)` in `training_step`, or step an optimizer after `loss.backward()`, "
        "or return the loss itself, neither detached nor as a plain number.",
    )


def is_sharded(update: OptimizerUpdate) -> bool:
    return any(mesh_of(param) is not None for param in update.params)


def scale_of(update: OptimizerUpdate, device: torch.device) -> Any:
    """What an update's losses are scaled by, on the device; None where they are not."""
    return None if update.scaler is None else update.scaler.scale(torch.ones((), device=device))


def remove_gradients(params: Sequence[torch.nn.Parameter]) -> StoredGradients:
    """The gradients of these parameters, which have none afterwards."""
    kept = [param.grad for param in params]
    for param in params:
        param.grad = None
    return kept


def add_gradients(params: Sequence[torch.nn.Parameter], kept: StoredGradients) -> None:
    """Add what the parameters have now to what they had before."""
    for param, old in zip(params, kept, strict=True):
        if old is not None:
            param.grad = old if param.grad is None else old.add_(param.grad)


class UpdateSchedulers(StepSchedulers):
    """Refuses schedulers that the user's program steps after the trainer has."""

    def __init__(self, core: ModularCore) -> None:
        super().__init__()
        self.core = core
        self._left: dict[str, list[Any]] = {}  # positions after the trainer's own step

    def reset(self) -> None:
        super().reset()
        self._left = {}

    def begin_step(self, updates: Iterable[OptimizerUpdate]) -> None:
        for name, left in self._left.items():
            schedulers = self.core.run.updates.by_name[name].schedulers
            for scheduler, before in zip(schedulers, left, strict=False):
                check_scheduler(self.core, scheduler, before)
        self._left = {}
        super().begin_step(updates)

    def step(self, update: OptimizerUpdate) -> None:
        super().step(update)
        self._left[update.name] = scheduler_positions(update)


class EpochSchedulers:
    """Steps schedulers after an epoch, unless the user's loop has, and refuses ones that are then
    stepped again."""

    def __init__(self, core: ModularCore) -> None:
        self.core = core
        self._positions: dict[str, Any] = {}  # when the epoch began
        self._left: dict[str, Any] = {}  # positions after the trainer's own step

    def note(self) -> None:
        """An epoch begins here."""
        self._positions = {
            name: scheduler_position(schedule.scheduler)
            for name, schedule in self.core.schedules.items()
        }
        self._left = {}

    def step(self, row: Mapping[str, float]) -> None:
        """An epoch is over, with these metrics."""
        for name, schedule in self.core.schedules.items():
            if schedule.interval == "epoch" and scheduler_position(
                schedule.scheduler
            ) == self._positions.get(name):
                self._watching(name, schedule, row).step(row)
                self._left[name] = scheduler_position(schedule.scheduler)

    def check(self) -> None:
        """Refuse schedulers that the user's program has stepped again since."""
        for name, left in self._left.items():
            check_scheduler(self.core, self.core.schedules[name].scheduler, left)

    def _watching(self, name: str, schedule: Schedule, row: Mapping[str, float]) -> Schedule:
        """The schedule, with the metric that it watches if it does."""
        if not schedule.watches or schedule.metric is not None:
            return schedule
        usual = next((name for name in ("val_loss", "val/loss") if name in row), "loss")
        watched = self.core.config.monitor or usual
        if watched not in row:
            raise ConfigurationError(
                "unmeasured-plateau-metric",
                f"self.{name} (ReduceLROnPlateau) watches {watched!r}, which this epoch did not "
                f"measure; available: {', '.join(row) or 'nothing'}. Name one of them with "
                "monitor=.",
            )
        return replace(schedule, metric=watched)


def check_scheduler(core: ModularCore, scheduler: Any, left_at: int | None) -> None:
    """Refuse a scheduler that goes on by itself after the trainer has stepped it."""
    now = getattr(scheduler, "last_epoch", None)
    if now is None or left_at is None or now <= left_at:
        return
    name = next(
        (name for name, s in core.schedules.items() if s.scheduler is scheduler), "scheduler"
    )
    raise ConfigurationError(
        "scheduler-stepped-again",
        f"Scheduler {name!r} was stepped twice, by the trainer and then by your code "
        f"(`self.{name}.step()` in a callback or event). Remove that call, or move it to "
        "`training_step` or `training_loop`: the trainer does not step the schedulers that they "
        "step.",
    )
