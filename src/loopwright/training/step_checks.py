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
    from ..callback import Trainer
    from ..metrics.result import StepResult
    from .run import TrainingRun

T = TypeVar("T")
Versions = list[tuple[int, int]]  # of gradients


class StepWatch:
    """Checks each step of an epoch by the counters of updates; plain steps are updates, too
    (`own_steps`)."""

    def __init__(self, trainer: Trainer, schedules: Mapping[str, Any] | None = None) -> None:
        self.trainer = trainer
        self._names = trainer._message_names
        self._updates = trainer.run.updates
        self._schedules = SchedulerWatch(schedules or {})
        self._is_whole = trainer.progress.epoch_step == 0
        self.is_first = True
        self._num_calls = self._updates.calls
        self._calls = self._calls_of_each()
        self._taking_part: set[OptimizerUpdate] = set()
        self._own_steps = OwnSteps(trainer.run)
        # attributes of optimizers, and their own `zero_grad`
        self._replaced: list[tuple[dict[str, Any], Any]] = []

    def __enter__(self) -> StepWatch:
        self._own_steps.__enter__()
        if self.trainer.accumulate > 1:
            for update in self._updates.by_name.values():
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
        if self.trainer.accumulate > 1 and self.trainer.run.num_micro_batches == 1:
            self._check_window(position)
        if self.is_first:
            self.is_first = False
            self._check_first(result)
        self._own_steps.end_step()

    def end_epoch(self) -> None:
        """Refuse an epoch without a single update: the next one would change nothing either."""
        progress = self.trainer.progress
        is_whole = self._is_whole and progress.is_exhausted
        names = self._updates.by_name
        if is_whole and names and self._updates.calls == self._num_calls:
            raise ConfigurationError(
                "epoch-without-update",
                f"Nothing was trained: after {progress.epoch_step} steps of epoch "
                f"{progress.epoch + 1}, `{self._names.step}` has not updated any of the "
                f"optimizers ({', '.join(names)}). Call `{self._names.update}` in it.",
            )

    def _check_first(self, result: StepResult) -> None:
        step = self._names.step
        counts = [now - self._calls.get(each, 0) for each, now in self._calls_of_each().items()]
        self._schedules.check(
            f"`{step}`", num_updates=max(1, *counts), may_move=bool(self._own_steps.num_steps)
        )
        if self._updates.calls != self._num_calls:
            return
        grads = [grad for update in self._updates.by_name.values() for grad in gradients(update)]
        if grads and not are_finite(self.trainer.runtime.local_parts(grads)):
            return  # a `GradScaler` may have left out the step
        if grads:
            raise ConfigurationError(
                "backward-without-step",
                f"`{step}` called backward(), but no optimizer was stepped, so nothing was "
                f"trained. Call `{self._names.update}` instead: it runs backward, accumulates, "
                "clips, steps the optimizer and zeroes the gradients. Or step the optimizer "
                "yourself.",
            )
        values = [result.loss, *result.metrics.values()]
        if any(isinstance(value, Tensor) and value.requires_grad for value in values):
            raise ConfigurationError(
                "returned-loss-only",
                f"`{step}` returned a loss but updated nothing: a returned loss is only logged. "
                f"Call `{self._names.update}` before you return.",
            )

    def _check_window(self, position: int) -> None:
        """Every optimizer takes part in all steps of an accumulation window, once in each, or in
        none of them."""
        before = self._calls
        self._calls = self._calls_of_each()
        counts = {update: now - before.get(update, 0) for update, now in self._calls.items()}
        if position == 1:
            self._taking_part = {update for update, count in counts.items() if count}
        for update, count in counts.items():
            if count != (update in self._taking_part):
                raise ConfigurationError(
                    "partial-window",
                    f"{update.subject} updated {count} times in step {position} of an accumulation "
                    f"window of {self.trainer.accumulate} batches, and not so in the steps before, "
                    "so its gradients would not be those of the window. Update it once in every "
                    "step of a window, or in none of them: use a condition on "
                    "`self.progress.update`, which is the same in all steps of a window (`if "
                    "self.progress.update % 5 == 0: self.update(...)`), or do not accumulate.",
                )

    def _calls_of_each(self) -> dict[OptimizerUpdate, int]:
        return {update: update.calls for update in self._updates.every()}

    def _zero_grad(
        self, update: OptimizerUpdate, zero_grad: Callable[..., None], *args: Any, **options: Any
    ) -> None:
        """Zero the gradients for a step that asks for it, unless they are those of earlier steps of
        the window."""
        if gradients(update):
            raise ConfigurationError(
                "zeroed-in-window",
                f"`{self._names.step}` called zero_grad() within an accumulation window of "
                f"{self.trainer.accumulate} batches, which would drop the gradients of the batches "
                f"before: remove it. `{self._names.update}` zeroes the gradients after each "
                "window.",
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

    def check(self, where: str, *, num_updates: int = 0, may_move: bool = False) -> None:
        """Raise if a scheduler moved.

        Schedulers that count updates may have moved by the number of updates of a step; with
        `may_move`, since the user steps the optimizer too, all of them by any number.
        """
        for schedule, before in self._found:
            now = scheduler_position(schedule.scheduler)
            counts = num_updates and schedule.interval == "update"
            is_expected = counts and (not isinstance(before, int) or now <= before + num_updates)
            if now != before and not (may_move or is_expected):
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
    texts = []
    for update in updates:
        if update.num_updates == 0:
            texts.append(
                f"optimizer {update.name!r} was never stepped, so its {len(update.params)} "
                "parameters have not changed"
            )
        elif update.num_updates == update.empty_steps:
            texts.append(
                f"optimizer {update.name!r} was stepped {update.num_updates} times but never had a "
                "gradient; call zero_grad() before backward(), not between backward() and step()"
            )
    if len(texts) < len(updates):
        for text in texts:
            run.say(f"Epoch 1 did not train everything: {text}.")
    elif any(update.num_updates for update in updates):
        raise ConfigurationError(
            "no-gradients", f"Nothing was trained in epoch 1: {'; '.join(texts)}."
        )


def check_skipped(run: TrainingRun) -> None:
    """Raise at the end of an epoch, or of the run, if all of its updates were skipped, so that no
    weight changed.

    A loss scaler begins with a scale that may be too large, so that it may skip the updates of a
    short epoch.
    """
    updates = run.updates.by_name.values()
    idle = [update for update in updates if update.epoch.skipped and not update.epoch.stepped]
    is_last = run.is_done() or run.progress.epoch + 1 == run.call.limits.epochs
    if not idle or run.stopping.reason is not None or not (is_last or run.progress.is_exhausted):
        return  # a reason to stop says what was wrong
    scaler = idle[0].scaler
    scale = 0.0 if scaler is None else scaler.get_scale()
    why = "a loss or a gradient was not finite in each of them"
    advice = "Lower the learning rate, or look for bad samples"
    if scaler is not None:
        why = f"their gradients overflowed in fp16 (the loss scale is {scale:g} now)"
        advice = "Use bf16, which needs no scaling, or look for a loss that is very large"
    text = (
        f"all {sum(update.epoch.skipped for update in idle)} updates of optimizer "
        f"{', '.join(repr(update.name) for update in idle)} in epoch {run.progress.epoch + 1} were "
        f"skipped, since {why}"
    )
    if not any(update.epoch.stepped for update in updates) and (is_last or scale < 1):
        raise NonFiniteLossError("all-updates-skipped", f"Nothing was trained: {text}. {advice}.")
    run.say(f"{text[0].upper()}{text[1:]}.")


def refuse_update(trainer: Trainer, loss: Any, count: Any = None) -> None:
    """Raise for an update in an evaluation, or with a value that is not a loss."""
    names = trainer._message_names
    if trainer.run.metrics.is_evaluating:
        raise update_in_evaluation(names)
    if (mistake := mistake_in_loss(loss, count, names.takes_count)) is not None:
        raise ConfigurationError("not-a-loss", f"The loss in `{names.step}` {mistake}.") from None
    error = sys.exception()
    optimizers = list(trainer.optimizers)
    is_repeated = "a second time" in str(error)
    if error is None or not (is_repeated or "by an inplace operation" in str(error)):
        return
    if len(optimizers) > 1:
        error.add_note(
            "If several optimizers share one loss, update them together: `self.update(loss, "
            f"{optimizers})`."
        )
    elif is_repeated:
        error.add_note(
            f"`{names.update}` runs backward itself: remove `loss.backward()` from `{names.step}`."
        )


def gradient_versions(update: OptimizerUpdate) -> Versions:
    """The identities and versions of gradients, which change when gradients are replaced or changed
    in place."""
    return [
        (id(param.grad), version_of(param.grad))
        for param in update.params
        if param.grad is not None
    ]
