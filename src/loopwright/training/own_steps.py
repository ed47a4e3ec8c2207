"""A plain `optimizer.step()` in a training step is an update: people who know torch write torch.

`OwnSteps` watches the optimizers of a run while steps of the user are computed. Before a plain step
the gradients are made those of an update: averaged over processes, checked for finiteness, and
clipped as configured. After it the step is counted, and when the training step is over the
optimizer's schedulers follow, unless the user stepped them, and its gradients are dropped.

What a user may write, on one process or several:

- `zero_grad()` anywhere, or nowhere: no gradients of a stepped optimizer live on to the next step.
- `clip_grad_norm_` before `step()`: with DDP, gradients are averaged when `loss.backward()` returns;
  FSDP2 averages them itself. What the trainer clips comes after it.
- `scaler.scale(loss).backward(); scaler.step(optimizer)` with a `torch.amp.GradScaler` of their own.
- `optimizer.step(closure)`: the gradients of each call of the closure are averaged and clipped, and
  the loss that it returns is averaged, so that LBFGS decides the same on all processes.
- several optimizers, each stepped with its own loss, as in a GAN; also some of them by `update`.
- `scheduler.step()`, before or after, of a scheduler that counts updates or epochs: the trainer then
  leaves this scheduler alone.

A step is refused where it cannot be right: in an evaluation (`refused`), with `accumulate` above 1,
on a micro-batch after memory ran out, with gradients of fp16 that were not scaled, beside an
`update` of the same optimizer, and with shards of batches that differ in size between processes.

An interface uses it without subclassing, around the loop that calls the user's steps:

    with OwnSteps(run) as own_steps:
        for step in open_steps(run):
            step.result = ...  # the user's step
            own_steps.end_step()

`with refused(run):` surrounds an evaluation (`Trainer._eval_mode` has it). Messages have the words
of the interface (`run.message_names`: `step`, `eval_step`, `update`, `accumulate`). A loop that the
user wrote calls no `end_step`: then the next step of the same optimizer, or the end of the context,
ends the step before. `before` and `after` are called around each plain step, with its update.
`num_steps` counts them. Where gradients come from the phase `OptimizerUpdate.backward`, the
interface adds the optimizer's name to `partial`: its next plain step then calls `complete`. An
interface whose stages divide losses, complete gradients and clip says so with `has_stages`: a step
in the last batch of a window is right then, and gradients of optimizers in `completed` are used as
they are. One that steps an optimizer by its phases lets schedulers follow with `schedulers`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._torch_compat import call_after_backward, foreach_div_, overflow_flags
from .._torch_compat.fast_paths import ignore_updates
from ..errors import ConfigurationError
from ..runtime.dtensor import clip_grad_norm
from .update import OptimizerUpdate

if TYPE_CHECKING:
    from .program import MessageNames
    from .run import TrainingRun

Listener = Callable[[OptimizerUpdate], None]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class OwnSteps:
    """The plain steps of a run's optimizers, as updates; a context around the user's steps.

    Args:
        run: The run, whose updates have the optimizers.
        before: Called before each plain step, once it is not refused.
        after: Called after each plain step, once it is counted.
        has_stages: The losses that the user gets are divided for accumulation already, and
            gradients are averaged once a window.
    """

    def __init__(
        self,
        run: TrainingRun,
        before: Listener | None = None,
        after: Listener | None = None,
        *,
        has_stages: bool = False,
    ) -> None:
        self.run = run
        self.has_stages = has_stages
        self.num_steps = 0
        # optimizers whose gradients are those of `OptimizerUpdate.backward`, not complete yet
        self.partial: set[str] = set()
        self.completed: set[str] = set()  # optimizers whose gradients a stage has completed
        self.schedulers = StepSchedulers()
        self._listen_before = before
        self._listen_after = after
        self._updates: list[OptimizerUpdate] = []
        self._calls: dict[str, int] = {}  # of `update`, when the step began
        # an optimizer's first gradient that a step has left to later ones, with its parameter
        self._left: dict[str, tuple[nn.Parameter, Tensor]] = {}
        self._watches = ExitStack()  # what ends with the context
        self._no_autocast: AbstractContextManager[Any] | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin a step: nothing is stepped, and `update` was not called."""
        self._taken: set[str] = set()
        self._skipped: set[str] = set()
        self._averaged: set[str] = set()
        self._reached: set[str] = set()  # by the backward pass under way
        self._depths: Counter[str] = Counter()  # of calls of `step` under way
        self._note_position()

    def _note_position(self) -> None:
        for update in self._updates:
            self._calls[update.name] = update.calls
            if update.schedulers:
                self.schedulers.begin_step([update])

    def __enter__(self) -> OwnSteps:
        self._watch()
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.end_step()
        self._unwatch()

    def end_step(self) -> None:
        """End the user's step: let schedulers follow, and drop the gradients that were used."""
        if self._no_autocast is not None:
            self._leave_autocast(is_late=True)
        if self._taken:
            for update in self._updates:
                # those that `update` trains have gradients of another optimizer's loss
                if update.name in self._taken or update.calls:
                    update.zero()
        if self.schedulers.due:
            for update in list(self.schedulers.due.values()):
                self.schedulers.follow(update)
        if self.num_steps and self.run.files.run_dir is not None and not self.has_stages:
            self._note_left()
        if self._updates != list(self.run.updates.by_name.values()):
            self._watch()  # an optimizer was replaced
        elif self._taken:
            self._forget()
        else:
            self._note_position()

    # The optimizers, and their parameters on several processes

    def _watch(self) -> None:
        self._unwatch()
        self._updates = list(self.run.updates.by_name.values())
        self._left = {}
        self._forget()
        self.schedulers.begin_epoch(self._updates)
        for update in self._updates:
            self._watch_steps(update)
            if self.run.runtime.averages_gradients and not self.has_stages:
                self._watch_gradients(update)
            if self.run.files.run_dir is not None and not self.has_stages:
                self._watch_zeroing(update)
        if self.num_steps:
            self._watch_updates()

    def _unwatch(self) -> None:
        self._leave_autocast(is_late=True)
        self._watches.close()

    def _watch_steps(self, update: OptimizerUpdate) -> None:
        @ignore_updates
        def enter(_: object, args: tuple[Any, ...], options: dict[str, Any]) -> Arguments | None:
            if update.is_stepping:
                return None
            self._depths[update.name] += 1
            # hooks are called again by the `super().step()` of a subclass of an optimizer
            return self._enter(update, args, options) if self._depths[update.name] == 1 else None

        @ignore_updates
        def leave(*_: object) -> None:
            if not update.is_stepping:
                self._depths[update.name] -= 1
                if self._depths[update.name] == 0:
                    self._leave(update)

        self._watches.callback(update.optimizer.register_step_pre_hook(enter).remove)
        self._watches.callback(update.optimizer.register_step_post_hook(leave).remove)

    def _watch_gradients(self, update: OptimizerUpdate) -> None:
        """Average gradients when the backward pass of a plain `loss.backward()` ends."""

        def reach(_: nn.Parameter) -> None:
            if self.run.runtime.is_in_backward:
                return  # of `update`, which averages its gradients itself
            if not self._reached:
                call_after_backward(self._average_reached)
            self._reached.add(update.name)

        for param in update.params:
            if param.requires_grad:
                register: Any = param.register_post_accumulate_grad_hook
                self._watches.callback(register(reach).remove)

    def _watch_zeroing(self, update: OptimizerUpdate) -> None:
        """Notice that gradients of earlier steps are zeroed, which may happen in place."""
        attributes = vars(update.optimizer)
        before = {name: own for name, own in attributes.items() if name == "zero_grad"}
        zero_grad = update.optimizer.zero_grad

        def zero(*args: Any, **options: Any) -> None:
            self._left.pop(update.name, None)
            zero_grad(*args, **options)

        attributes["zero_grad"] = zero
        self._watches.callback(attributes.update, before)
        self._watches.callback(attributes.pop, "zero_grad", None)

    def _watch_updates(self) -> None:
        """Look before each `update` of a program that has plain steps, too."""
        run = self.run
        run_phases = run.updates.run_phases

        def checked(update: OptimizerUpdate, *args: Any) -> None:
            is_whole = run.program.accumulate == 1 and run.num_micro_batches == 1
            for one in getattr(update, "members", (update,)):
                if one.name in self._taken:
                    raise self._stepped_twice(one)
                if is_whole and gradients(one):
                    raise ConfigurationError(
                        "stray-gradients",
                        f"`{run.message_names.update}` would add to gradients that {one.title} "
                        "has already, of `loss.backward()` for another optimizer: detach what "
                        "that loss is computed from, or step both optimizers in the same way.",
                    )
            run_phases(update, *args)

        vars(run.updates)["run_phases"] = checked
        self._watches.callback(vars(run.updates).pop, "run_phases", None)

    def _average_reached(self) -> None:
        for update in self._updates:
            if update.name in self._reached:
                self._average(update)
        self._reached = set()

    def _average(self, update: OptimizerUpdate) -> None:
        """Average gradients, each process's weighted by its part of the batch.

        Gradients that are averaged already stay as they are: the mean of the weights is 1.
        """
        divisor = self.run.window.divisor
        if self.run.window.size == 0 and divisor != 1.0:  # it computes with another's samples
            update.zero()
        elif divisor != 1.0:
            _divide(update, divisor)
        update.average()
        self._averaged.add(update.name)

    # A plain step

    def _enter(
        self, update: OptimizerUpdate, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Arguments | None:
        """Prepare a plain step; a closure is replaced by one whose gradients are an update's."""
        name = update.name
        self._check(update)
        self.schedulers.follow(update)
        self._skipped.discard(name)
        if self._listen_before is not None:
            self._listen_before(update)
        if not self.num_steps:
            self._watch_updates()
        self._taken.add(name)
        self.run.window.has_stepped = True
        self._leave_autocast()
        self._no_autocast = self.run.runtime.no_autocast
        if self._no_autocast is not None:
            self._no_autocast.__enter__()
        closure = args[1] if len(args) > 1 else options.get("closure")
        if closure is not None:
            closure = self._wrap(update, closure)
            if len(args) > 1:
                return (args[0], closure, *args[2:]), options
            return args, options | {"closure": closure}
        self._prepare(update)
        update.empty_steps += not gradients(update) and name not in self._skipped
        return None

    def _prepare(self, update: OptimizerUpdate, *, is_first: bool = True) -> None:
        """Make the gradients those of an update; none are left where the step must not be taken."""
        is_clipped = update.name in self.completed  # by the stage after the one that completed it
        if not self._complete(update):
            self._skip(update)
            return
        for listener in update.listeners if is_first else ():
            listener(update.name)
        is_clipped = is_clipped or not gradients(update)  # torch cannot clip none
        if not is_clipped and not self._is_clipped(update) and not update.clip():
            self._skip(update)

    def _is_clipped(self, update: OptimizerUpdate) -> bool:
        """Whether the gradients are within the norm, as after a `clip_grad_norm_` of the user's.

        To clip them again would shorten them once more, by a millionth. A device is not waited for.
        """
        limit = update.clip_norm
        if limit is None or update.clip_value is not None or not self.run.runtime.reads_are_free:
            return False
        if update.peers is None:
            norm = nn.utils.get_total_norm(gradients(update))
        else:
            norm = clip_grad_norm(update.params, math.inf)
        is_within = norm.item() <= limit * (1 + 1e-6)
        if is_within:
            update.norm = norm
        return is_within

    def _complete(self, update: OptimizerUpdate) -> bool:
        """Whether the gradients of all processes, unscaled, can be used."""
        optimizer: Any = update.optimizer
        is_complete = update.name in self.completed
        is_of_stages = self.has_stages and update.scaler is None
        if is_complete or is_of_stages or update.name in self.partial:
            self.partial.discard(update.name)
            self.completed.discard(update.name)
            is_usable = (is_complete or update.complete()) and update.read_flag()
            if is_usable and update.scaler is not None:
                flags = overflow_flags(update.scaler, optimizer)
                is_usable = not any(flag.item() for flag in flags)
                update.epoch.skipped += not is_usable
                update.scaler.update()
            return is_usable
        if getattr(optimizer, "found_inf", None) is not None:
            # a scaler of the user's leaves it to a fused optimizer to unscale, or to do nothing
            if optimizer.grad_scale is not None:
                _divide(update, optimizer.grad_scale)
                optimizer.grad_scale = None
            return not optimizer.found_inf.item()
        if self.run.runtime.averages_gradients and update.name not in self._averaged:
            self._average(update)
        self._averaged.discard(update.name)
        return update.guard is None or (update.is_finite() and update.read_flag())

    def _skip(self, update: OptimizerUpdate) -> None:
        self._skipped.add(update.name)
        update.zero()  # a step without gradients changes nothing

    def _wrap(self, update: OptimizerUpdate, closure: Callable[[], Any]) -> Callable[[], Any]:
        is_first = True

        def evaluate() -> Any:
            nonlocal is_first
            runtime = self.run.runtime
            torch.clear_autocast_cache()  # the optimizer may have moved the weights
            with runtime.autocast:
                loss = closure()
            self._prepare(update, is_first=is_first)
            is_first = False
            if update.peers is None or loss is None or runtime.num_shares == 1:
                return loss
            own = torch.as_tensor(loss).detach()
            share = own * 0 if self.run.window.size == 0 else self.run.window.share_of(own)
            return (runtime.sum_count(share) / runtime.num_shares).to(own.dtype)

        return evaluate

    def _leave(self, update: OptimizerUpdate) -> None:
        self._leave_autocast()
        self.num_steps += 1
        self.run.updates.calls += 1
        if update.name not in self._skipped:
            update.num_updates += 1
            update.epoch.stepped += 1
            self.schedulers.due[update.name] = update
        if self._listen_after is not None:
            self._listen_after(update)

    def _leave_autocast(self, *, is_late: bool = False) -> None:
        """End the context without autocast; late where `step()` raised, and contexts around it have
        set autocast since."""
        if self._no_autocast is None:
            return
        device = self.run.runtime.device.type
        is_enabled = torch.is_autocast_enabled(device)
        self._no_autocast.__exit__(None, None, None)
        self._no_autocast = None
        if is_late:
            torch.set_autocast_enabled(device, is_enabled)
        torch.clear_autocast_cache()  # it holds weights as they were before the step

    # What cannot be right

    def _check(self, update: OptimizerUpdate) -> None:
        run = self.run
        is_partial = update.name in self.partial  # its losses were scaled, and weighted
        if run.metrics.is_evaluating:
            raise update_in_evaluation(run.message_names)
        if run.program.accumulate > 1 and not (self.has_stages and run.window.is_last):
            raise self.in_window(update)
        if run.num_micro_batches > 1:
            raise self._refusal(
                update,
                "step-of-micro-batch",
                "with the gradients of a part of the batch, because memory ran out and batches "
                "are split into micro-batches",
            )
        is_scaled = update.scaler is None or is_partial or update.name in self.completed
        if not is_scaled and not _is_of_scaler():
            raise self._refusal(
                update,
                "step-without-scaling",
                "with gradients of fp16 that were not scaled, so that small ones are lost; use "
                "bf16, scale the loss by a `torch.amp.GradScaler`",
            )
        if update.calls != self._calls[update.name]:
            raise self._stepped_twice(update)
        is_sharded = update.peers is not None and not run.runtime.averages_gradients
        if is_sharded and not is_partial and run.window.divisor != 1.0:
            raise self._refusal(
                update,
                "uneven-sharded-batch",
                f"in a batch of which this process has {run.window.size} samples and others "
                "have more or fewer; FSDP2 averages gradients of processes without weights: use "
                "batches that all processes share evenly (`drop_last=True`)",
            )
        param, grad = self._left.pop(update.name, (None, None))
        if param is not None and param.grad is grad:
            raise ConfigurationError(
                "gradients-of-earlier-steps",
                f"{update.title} was stepped with gradients to which several steps have added. "
                "Resume points do not contain gradients, so a killed run could not continue "
                f"exactly: set {run.message_names.accumulate} and call "
                f"`{run.message_names.update}`, or call `zero_grad()` in each step, or train "
                "without a run directory.",
            )

    def _note_left(self) -> None:
        """Note the optimizers with gradients that later steps may add to."""
        self._left = {}
        for update in self._updates:
            found = (p for p in update.params if p.grad is not None)
            param = None if update.name in self._taken else next(found, None)
            if param is not None and param.grad is not None:
                self._left[update.name] = (param, param.grad)

    def in_window(self, update: OptimizerUpdate) -> ConfigurationError:
        """The error of a step without the gradients of a whole accumulation window."""
        return self._refusal(
            update,
            "step-in-window",
            f"with the gradients of one batch, but {self.run.message_names.accumulate} requires "
            f"those of {self.run.program.accumulate} batches",
        )

    def _stepped_twice(self, update: OptimizerUpdate) -> ConfigurationError:
        names = self.run.message_names
        return ConfigurationError(
            "step-and-update",
            f"`{names.step}` called both `{names.update}` and `step()` for {update.title}, so it "
            f"would be stepped twice: remove one of them. `{names.update}` runs backward, clips, "
            "steps and zeroes.",
        )

    def _refusal(self, update: OptimizerUpdate, code: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            code,
            f"`{self.run.message_names.step}` called step() of {update.title} {why}, or call "
            f"`{self.run.message_names.update}` instead of backward() and step().",
        )


class StepSchedulers:
    """The schedulers of optimizers that are stepped in the user's step, which may step them itself.

    Those that count updates follow when the step is over, or before the second step of their
    optimizer. One that counts epochs belongs to the user once a step has stepped it.
    """

    def __init__(self) -> None:
        # updates whose schedulers are still to be stepped
        self.due: dict[str, OptimizerUpdate] = {}
        self._before: dict[str, list[Any]] = {}  # positions of schedulers when the step began
        self._of_epochs: dict[str, list[Any]] = {}

    def reset(self) -> None:
        """Forget the step under way."""
        self.due = {}
        self._before = {}

    def begin_step(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Note where the schedulers are that count updates."""
        for update in updates:
            if update.schedulers:
                self._before[update.name] = positions_of(update.schedulers)

    def begin_epoch(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Note where the schedulers are that count epochs."""
        for update in updates:
            self._of_epochs[update.name] = positions_of(update.epoch_schedulers)

    def follow(self, update: OptimizerUpdate) -> None:
        """Step the schedulers of an update that is due, unless the user stepped them."""
        if self.due.pop(update.name, None) is None:
            return
        if update.schedulers:
            if positions_of(update.schedulers) == self._before.get(update.name):
                update.schedule()
            self._before[update.name] = positions_of(update.schedulers)
        if update.epoch_schedulers:
            self.note_between([update])

    def note_between(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Notice schedulers of epochs that the user has stepped, in a step or after the last one."""
        for update in updates:
            now = positions_of(update.epoch_schedulers)
            if now != self._of_epochs.get(update.name, now):
                update.is_paced_by_user = True

    def check(self, updates: Iterable[OptimizerUpdate]) -> None:
        """Refuse schedulers that a callback has stepped since the trainer did, between two steps."""
        for update in updates:
            before = self._before.get(update.name, ())
            for scheduler, left_at in zip(update.schedulers, before, strict=False):
                now = scheduler_position(scheduler)
                if isinstance(now, int) and now > left_at:
                    raise stepped_twice(scheduler, "a callback or an event", "update")


def stepped_twice(scheduler: Any, where: str, interval: str) -> ConfigurationError:
    """The error of a scheduler that the trainer steps and that the user steps, too."""
    return ConfigurationError(
        "scheduler-stepped-twice",
        f"{type(scheduler).__name__} was stepped in {where}, and the trainer steps it as well, "
        f"once per {interval}: remove the `scheduler.step()` of your own, or do not pass the "
        "scheduler to the trainer.",
    )


def is_paced_by_user(run: TrainingRun, scheduler: Any) -> bool:
    """Whether the user's plain steps step this scheduler, although it counts epochs."""
    return any(
        update.is_paced_by_user and scheduler in update.epoch_schedulers
        for update in run.updates.by_name.values()
    )


@contextmanager
def refused(run: TrainingRun) -> Iterator[None]:
    """Context of an evaluation, in which no optimizer of the run may be stepped."""

    def refuse(*_: object) -> None:
        raise update_in_evaluation(run.message_names)

    handles = [
        optimizer.register_step_pre_hook(refuse) for optimizer in run.components.optimizers.values()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def update_in_evaluation(words: MessageNames) -> ConfigurationError:
    """The error of an update, by `update` or by a plain step, in an evaluation or prediction."""
    return ConfigurationError(
        "update-in-evaluation",
        "An update during an evaluation would train on the evaluation data. "
        f"`{words.eval_step}` and other code that runs in an evaluation or prediction must not "
        f"update. Update in `{words.step}`.",
    )


def gradients(update: OptimizerUpdate) -> list[Tensor]:
    """The gradients that the parameters of an optimizer have."""
    return [param.grad for param in update.params if param.grad is not None]


def _divide(update: OptimizerUpdate, divisor: Tensor | float) -> None:
    found = gradients(update)
    if found:
        foreach_div_(found, divisor)


def positions_of(schedulers: Iterable[Any]) -> list[Any]:
    """The positions of schedulers, to see whether the user steps them."""
    return [scheduler_position(scheduler) for scheduler in schedulers]


def scheduler_position(scheduler: Any) -> Any:
    """How far a scheduler is: its counter, or else all of its state; None where it has neither."""
    position = getattr(scheduler, "last_epoch", getattr(scheduler, "_num_updates", None))
    if position is None and hasattr(scheduler, "state_dict"):
        return repr(scheduler.state_dict())
    return position


def _is_of_scaler() -> bool:
    """Whether a `GradScaler` steps the optimizer, a few frames above this one."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            return True
    return False
