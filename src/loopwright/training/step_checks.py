"""Checks of the steps that a user wrote: a step that trains nothing, or the wrong thing, is an
error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from .._torch_compat import are_finite, version_of, watch_clipping
from ..errors import ConfigurationError, NonFiniteLossError
from ..metrics.result import mistake_in_loss
from .own_steps import (
    OwnSteps,
    gradients,
    scheduler_position,
    stepped_twice,
    update_in_evaluation,
)
from .update import OptimizerUpdate

if TYPE_CHECKING:
    from ..metrics.result import StepResult
    from .program import Program
    from .run import TrainingRun

T = TypeVar("T")
Versions = list[tuple[int, int]]  # of gradients


class StepWatch:
    """Checks each step of an epoch by the counters of updates; plain steps are updates, too
    (`own_steps`)."""

    def __init__(self, trainer: Program, schedules: Mapping[str, Any] | None = None) -> None:
        self.trainer = trainer
        self.optimization = trainer.run.updates
        self._schedules = SchedulerWatch({} if schedules is None else schedules)
        self.updates = list(trainer.run.updates.by_name.values())
        self._is_whole = trainer.progress.epoch_step == 0
        self._calls = trainer.run.updates.calls
        self._is_first = True
        self._is_accumulating = trainer.accumulate > 1
        self._before = self._calls_of_each()
        self._taking_part: set[OptimizerUpdate] = set()
        self._own_steps = OwnSteps(trainer.run)
        # attributes of optimizers, and their own `zero_grad`
        self._replaced: list[tuple[dict[str, Any], Any]] = []

    def __enter__(self) -> StepWatch:
        self._own_steps.__enter__()
        if self._is_accumulating:
            for update in self.updates:
                attributes = vars(update.optimizer)
                self._replaced.append((attributes, attributes.get("zero_grad")))
                attributes["zero_grad"] = partial(
                    self._zero_grad, update, update.optimizer.zero_grad
                )
        return self

    def __exit__(self, *raised: object) -> None:
        for attributes, own in self._replaced:
            attributes["zero_grad"] = own
            if own is None:
                del attributes["zero_grad"]
        self._own_steps.__exit__(*raised)

    def after_step(self, result: StepResult, position: int) -> None:
        """Check a step that has ended, at this position of its window."""
        if self._is_accumulating:
            self._check_window(position)
        if self._is_first:
            self._check_first(result)
        self._own_steps.end_step()

    def end_epoch(self) -> None:
        """Refuse an epoch without a single update: the next one would change nothing either."""
        progress = self.trainer.progress
        is_whole = self._is_whole and progress.is_exhausted
        if is_whole and self.updates and self.optimization.calls == self._calls:
            raise ConfigurationError(
                "epoch-without-update",
                f"Nothing was trained: after {progress.epoch_step} steps of epoch "
                f"{progress.epoch + 1}, `{self.trainer._message_names.step}` has not updated any of the "
                f"optimizers ({', '.join(self.optimization.by_name)}). Call "
                f"`{self.trainer._message_names.update}` in it.",
            )

    def _check_first(self, result: StepResult) -> None:
        self._is_first = False
        self._schedules.check(
            f"`{self.trainer._message_names.step}`",
            in_step=True,
            may_move=bool(self._own_steps.num_steps),
        )
        if self.optimization.calls != self._calls:
            return
        step = self.trainer._message_names.step
        call = self.trainer._message_names.update
        grads = [grad for update in self.updates for grad in gradients(update)]
        if grads and not are_finite(self.trainer.runtime.local_parts(grads)):
            return  # a `GradScaler` may have left out the step
        if grads:
            raise ConfigurationError(
                "backward-without-step",
                f"`{step}` called backward(), but no optimizer was stepped, so nothing was "
                f"trained. Call `{call}` instead: it runs backward, accumulates, clips, steps the "
                "optimizer and zeroes the gradients. Or step the optimizer yourself.",
            )
        values = [result.loss, *result.metrics.values()]
        if any(isinstance(value, Tensor) and value.requires_grad for value in values):
            raise ConfigurationError(
                "returned-loss-only",
                f"`{step}` returned a loss but updated nothing: a returned loss is only logged. "
                f"Call `{call}` before you return.",
            )

    def _check_window(self, position: int) -> None:
        """Every optimizer takes part in all steps of an accumulation window, once in each, or in
        none of them."""
        calls = self._calls_of_each()
        counts = {update: now - self._before.get(update, 0) for update, now in calls.items()}
        self._before = calls
        if position == 1:
            self._taking_part = {update for update, count in counts.items() if count}
        for update, count in counts.items():
            if count != (update in self._taking_part) and self.trainer.run.num_micro_batches == 1:
                self._refuse_window(update, position, count)

    def _calls_of_each(self) -> dict[OptimizerUpdate, int]:
        return {update: update.calls for update in self.optimization.every()}

    def _refuse_window(self, update: OptimizerUpdate, position: int, count: int) -> None:
        if count > 1:
            what = f"updated {count} times in step {position}"
        elif count == 1:
            what = f"updated in step {position}, but not in the steps before it,"
        else:
            what = f"updated in the steps before, but not in step {position}"
        raise ConfigurationError(
            "partial-window",
            f"{update.subject} {what} of an accumulation window of {self.trainer.accumulate} "
            "batches, so its gradients would not be those of the window. Update it once in every "
            "step of a window, or in none of them: use a condition on `self.progress.update`, "
            "which is the same in all steps of a window (`if self.progress.update % 5 == 0: "
            "self.update(...)`), or do not accumulate.",
        )

    def _zero_grad(
        self, update: OptimizerUpdate, zero_grad: Callable[..., None], *args: Any, **options: Any
    ) -> None:
        """Zero the gradients for a step that asks for it, unless they are those of earlier steps of
        the window."""
        if any(param.grad is not None for param in update.params):
            raise ConfigurationError(
                "zeroed-in-window",
                f"`{self.trainer._message_names.step}` called zero_grad() within an accumulation window "
                f"of {self.trainer.accumulate} batches, which would drop the gradients of the "
                f"batches before: remove it. `{self.trainer._message_names.update}` zeroes the gradients "
                "after each window.",
            )
        zero_grad(*args, **options)


class SchedulerWatch:
    """Notices schedulers of the trainer that the user steps, too; from where it is made to `check`.

    Args:
        schedules: the trainer's schedules, by name.
    """

    def __init__(self, schedules: Mapping[str, Any]) -> None:
        self._found = [
            (schedule, scheduler_position(schedule.scheduler)) for schedule in schedules.values()
        ]

    def check(self, where: str, *, in_step: bool = False, may_move: bool = False) -> None:
        """Raise if a scheduler moved.

        In a step, schedulers that count updates may have moved by one; with `may_move`, since the
        user steps the optimizer too, all of them by any number.
        """
        for schedule, before in self._found:
            now = scheduler_position(schedule.scheduler)
            is_expected = in_step and (
                may_move
                or (
                    schedule.interval == "update"
                    and (not isinstance(before, int) or now == before + 1)
                )
            )
            if now != before and not is_expected:
                raise stepped_twice(schedule.scheduler, where, schedule.interval)


def check_clipping(run: TrainingRun, step: Callable[[Any], T], batch: Any) -> T:
    """Call the first step of a run; if it clips gradients before there are any, or after they are
    gone, raise."""

    def look(name: str) -> None:
        params = (param for update in run.updates.by_name.values() for param in update.params)
        if any(param.grad is not None for param in params) or _is_in_update():
            return  # the parameters of this call have none, but others do
        raise ConfigurationError(
            "clipped-nothing",
            f"{name} was called when no parameter had a gradient, so it clipped nothing: "
            f"{run.message_names.clip}.",
        )

    with watch_clipping(look):
        return step(batch)


def _is_in_update() -> bool:
    """Whether the trainer itself clips, which it does whether or not there is a gradient."""
    frame = sys._getframe()
    codes = (OptimizerUpdate.clip.__code__, OwnSteps._is_clipped.__code__)
    while frame.f_back is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame.f_code in codes


def check_trained(run: TrainingRun) -> None:
    """After the first epoch: raise if no optimizer had a gradient, and print a line for each that
    had none."""
    updates = run.updates.by_name.values()
    texts = {update.name: text for update in updates if (text := _untrained_text(update))}
    if texts and len(texts) == len(updates) and any(update.num_updates for update in updates):
        raise ConfigurationError(
            "no-gradients", f"Nothing was trained in epoch 1: {'; '.join(texts.values())}."
        )
    if len(texts) < len(updates):
        for text in texts.values():
            run.say(f"Epoch 1 did not train everything: {text}.")


def check_skipped(run: TrainingRun) -> None:
    """Raise at the end of an epoch, or of the run, if all of its updates were skipped, so that no
    weight changed.

    A loss scaler begins with a scale that may be too large, so that it may skip the updates of a
    short epoch.
    """
    updates = [
        update
        for update in run.updates.by_name.values()
        if update.epoch.stepped or update.epoch.skipped
    ]
    idle = [update for update in updates if not update.epoch.stepped]
    is_last = run.is_done() or run.progress.epoch + 1 == run.call.limits.epochs
    if not idle or run.stopping.reason is not None or not (is_last or run.progress.is_exhausted):
        return  # a reason to stop says what was wrong
    names = ", ".join(repr(update.name) for update in idle)
    number = sum(update.epoch.skipped for update in idle)
    why = "a loss or a gradient was not finite in each of them"
    scale = 0.0
    advice = "Lower the learning rate, or look for bad samples"
    if (scaler := idle[0].scaler) is not None:
        scale = scaler.get_scale()
        why = f"their gradients overflowed in fp16 (the loss scale is {scale:g} now)"
        advice = "Use bf16, which needs no scaling, or look for a loss that is very large"
    text = (
        f"all {number} updates of optimizer {names} in epoch {run.progress.epoch + 1} were "
        f"skipped, since {why}"
    )
    if len(idle) == len(updates) and (is_last or scale < 1):
        raise NonFiniteLossError("all-updates-skipped", f"Nothing was trained: {text}. {advice}.")
    run.say(f"{text[0].upper()}{text[1:]}.")


def _untrained_text(update: OptimizerUpdate) -> str | None:
    if update.num_updates == 0:
        return (
            f"optimizer {update.name!r} was never stepped, so its {len(update.params)} "
            "parameters have not changed"
        )
    if update.num_updates == update.empty_steps:
        return (
            f"optimizer {update.name!r} was stepped {update.num_updates} times but never had a "
            "gradient; call zero_grad() before backward(), not between backward() and step()"
        )
    return None


def refuse_update(trainer: Program, loss: Any, count: Any) -> None:
    """Raise for an update in an evaluation, or with a value that is not a loss."""
    if trainer.run.metrics.is_evaluating:
        raise update_in_evaluation(trainer._message_names)
    if (mistake := mistake_in_loss(loss, count, trainer._message_names.takes_count)) is not None:
        raise ConfigurationError(
            "not-a-loss", f"The loss in `{trainer._message_names.step}` {mistake}."
        ) from None
    error = sys.exception()
    names = list(trainer.optimizers)
    if len(names) == 1 and error is not None and "a second time" in str(error):
        call = trainer._message_names.update
        error.add_note(
            f"`{call}` runs backward itself: remove `loss.backward()` from `{trainer._message_names.step}`."
        )
    if len(names) > 1 and any(
        text in str(error) for text in ("a second time", "by an inplace operation")
    ):
        assert error is not None
        error.add_note(
            "If several optimizers share one loss, update them together: `self.update(loss, "
            f"{names})`."
        )


def gradient_versions(update: OptimizerUpdate) -> Versions:
    """The identities and versions of gradients, which change when gradients are replaced or changed
    in place."""
    return [
        (id(param.grad), version_of(param.grad))
        for param in update.params
        if param.grad is not None
    ]
