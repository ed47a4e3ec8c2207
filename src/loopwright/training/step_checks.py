"""What steps do with losses and optimizers: those that train nothing, or the wrong thing, are errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .._torch_compat import version_of
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .result import StepResult
    from .update import Lane

Versions = list[tuple[int, int]]  # of gradients


class StepWatch:
    """Looks at each step of an epoch, from outside: at counters, and at optimizer steps that are none of `update`.

    Such a step is counted and followed by the optimizer's schedulers, unless the trainer refuses it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.optimization = trainer, trainer.optimization
        self.lanes = list(trainer.optimization.lanes.values())
        self._is_whole = trainer.progress.epoch_step == 0
        self._calls = trainer.optimization.calls
        self._is_first = True
        self._is_accumulating = trainer.accumulate > 1
        self._before = [lane.calls for lane in self.lanes]
        self._taking_part: list[bool] = []
        self._positions: dict[str, list[Any]] = {}  # of schedulers, before a step that was none of `update`
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> StepWatch:
        for lane in self.lanes:
            self._handles += watch_own_steps(lane, self._before_own_step, self._after_own_step)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def after_step(self, result: StepResult, position: int) -> None:
        """A step is over, at this position of its window."""
        if self._is_accumulating:
            self._check_window(position)
        if self._is_first:
            self._check_first(result)
        if self._positions:
            self._schedule()

    def end_epoch(self) -> None:
        """All steps of an epoch are over: without a single update, the next one would change nothing either."""
        progress = self.trainer.progress
        is_whole = self._is_whole and progress.is_exhausted
        if is_whole and self.lanes and self.optimization.calls == self._calls:
            raise ConfigurationError(
                f"Nothing was trained: {progress.epoch_step} steps of epoch {progress.epoch + 1} are over, and "
                f"`{self.trainer.step_name}` updated none of the optimizers ({', '.join(self.optimization.lanes)}). "
                f"Call `{self.trainer.update_call}` in it."
            )

    def _check_first(self, result: StepResult) -> None:
        self._is_first = False
        if self.optimization.calls != self._calls:
            return
        step, call = self.trainer.step_name, self.trainer.update_call
        if any(param.grad is not None for lane in self.lanes for param in lane.params):
            raise ConfigurationError(
                f"`{step}` called backward() and no optimizer was stepped, so nothing was trained. Call `{call}` "
                "instead: it is backward, accumulation, clipping, the optimizer's step and zeroing."
            )
        values = [result.loss, *result.metrics.values()]
        if any(isinstance(value, Tensor) and value.requires_grad for value in values):
            raise ConfigurationError(
                f"`{step}` returned a loss and updated nothing: returning the loss does not train, it only reports. "
                f"Call `{call}` before you return."
            )

    def _check_window(self, position: int) -> None:
        """Every optimizer takes part in all steps of an accumulation window, once in each, or in none of them."""
        calls = [lane.calls for lane in self.lanes]
        counts = [now - before for now, before in zip(calls, self._before, strict=True)]
        self._before = calls
        if position == 1:
            self._taking_part = [count > 0 for count in counts]
        for lane, count, takes_part in zip(self.lanes, counts, self._taking_part, strict=True):
            if count != takes_part and self.trainer.num_pieces == 1:
                self._refuse_window(lane, position, count)

    def _refuse_window(self, lane: Lane, position: int, count: int) -> None:
        if count > 1:
            what = f"updated {count} times in step {position}"
        elif count == 1:
            what = f"updated in step {position}, but not in the steps before it,"
        else:
            what = f"updated in the steps before, but not in step {position}"
        raise ConfigurationError(
            f"Optimizer {lane.name!r} was {what} of an accumulation window of {self.trainer.accumulate} batches, so "
            "its gradients would not be those of the window. Update it once in every step of a window or in none: "
            "go by `self.progress.update`, which is the same in all steps of a window (`if self.progress.update % 5 == "
            "0: self.update(...)`), or do not accumulate."
        )

    def _before_own_step(self, lane: Lane) -> None:
        self.trainer.check_own_step(lane)
        self._positions[lane.name] = scheduler_positions(lane)

    def _after_own_step(self, lane: Lane) -> None:
        self.optimization.calls += 1
        lane.own_steps += 1
        lane.updates += 1
        self.trainer.window.is_spent = True

    def _schedule(self) -> None:
        """Step the schedulers of optimizers that took a step of their own, but for those that the user stepped."""
        for name, before in self._positions.items():
            lane = self.optimization.lanes[name]
            self.trainer.check_own_step(lane)  # `update` may have followed
            if scheduler_positions(lane) == before:
                lane.schedule()
        self._positions = {}


def watch_own_steps(
    lane: Lane, before: Callable[[Lane], None], after: Callable[[Lane], None] | None = None
) -> list[RemovableHandle]:
    """Call functions around steps of an optimizer that are none of `update`; handles that end it."""

    def enter(_: object, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if not lane.is_stepping:
            is_empty = not any(param.grad is not None for param in lane.params)
            has_closure = len(arguments) > 1 or bool(options)  # which computes gradients in the step; self comes first
            lane.empty_steps += is_empty and not has_closure
            before(lane)

    def leave(*_: object) -> None:
        if not lane.is_stepping and after is not None:
            after(lane)

    handles = [lane.optimizer.register_step_pre_hook(enter)]
    return handles if after is None else [*handles, lane.optimizer.register_step_post_hook(leave)]


def check_trained(trainer: Trainer) -> None:
    """At the end of the first epoch: an error if no optimizer had a gradient, a line about each that had none."""
    lanes = trainer.optimization.lanes.values()
    told = {lane.name: text for lane in lanes if (text := _untrained_text(lane))}
    if told and len(told) == len(lanes) and any(lane.updates for lane in lanes):
        raise ConfigurationError(f"Nothing was trained in epoch 1: {'; '.join(told.values())}.")
    if len(told) < len(lanes):
        for text in told.values():
            trainer.say(f"Epoch 1 did not train everything: {text}.")


def _untrained_text(lane: Lane) -> str | None:
    if lane.updates == 0:
        return f"optimizer {lane.name!r} was never stepped, so its {len(lane.params)} parameters are as they were"
    if lane.updates == lane.empty_steps:
        return (
            f"optimizer {lane.name!r} was stepped {lane.updates} times and never had a gradient; call zero_grad() "
            "before backward(), not between backward() and step()"
        )
    return None


def refuse_own_step(trainer: Trainer, lane: Lane) -> None:
    """Raise where an optimizer step that is none of `update` would be a wrong one."""
    if (obstacle := own_step_obstacle(trainer, lane)) is not None:
        raise ConfigurationError(
            f"`{trainer.step_name}` called step() of optimizer {lane.name!r} itself, which {obstacle}: call "
            f"`{trainer.update_call}` in place of backward() and step()."
        )


def own_step_obstacle(
    trainer: Trainer, lane: Lane, *, is_averaged: bool = False, is_clipped: bool = False
) -> str | None:
    """Why an optimizer must not be stepped by anything but `update`, or None.

    A door that averages gradients over processes or clips them before such a step says so.
    """
    if lane.peers is not None and not is_averaged:
        return "would go by the gradients of this process's part of the batch, and the processes' weights would differ"
    if trainer.accumulate > 1:
        return f"would come after every batch, not after {trainer.accumulate} of them as {trainer.accumulate_name} says"
    if trainer.num_pieces > 1:
        return "would come after a part of the batch, since memory ran out and batches are taken in pieces"
    if not is_clipped and (lane.clip_norm is not None or lane.clip_value is not None):
        name, value = ("clip_norm", lane.clip_norm) if lane.clip_norm is not None else ("clip_value", lane.clip_value)
        return f"would leave out the clipping that {name}={value} asks for"
    if lane.scaler is not None:
        return "would go without the loss scaling that precision='fp16' needs"
    return "`update` has done as well, so that it would be stepped twice" if lane.calls else None


def refuse_update(trainer: Trainer, loss: Any, count: Any) -> None:
    """Raise where an update is made in an evaluation, or with something that is no loss."""
    if trainer.is_evaluating:
        raise ConfigurationError(
            f"An update during an evaluation would train on its data: `{trainer.eval_name}`, and what else runs in an "
            f"evaluation or prediction, only measures. Update in `{trainer.step_name}`."
        )
    if (mistake := mistake_in_loss(loss, count, trainer.takes_count)) is not None:
        raise ConfigurationError(f"The loss trained in `{trainer.step_name}` {mistake}.") from None


def mistake_in_loss(loss: Any, count: Any, takes_count: bool = True) -> str | None:
    """What is wrong with a loss that could not be trained, or with its count; None if nothing is."""
    if loss is None:
        return "is None: look at what should have computed and returned it"
    if isinstance(loss, Mapping):
        return (
            f"is a {type(loss).__name__} ({', '.join(map(str, loss))}): give one tensor, such as the sum of its losses"
        )
    if not isinstance(loss, Tensor):
        shown = f" ({loss:g})" if type(loss) is float else ""
        return f"is a {type(loss).__name__}{shown}: give the tensor itself, without `.item()`, `float()` or `.tolist()`"
    if loss.is_complex():
        return f"is complex ({loss.dtype}): give a real number, such as `loss.abs()` or `loss.real`"
    if loss.numel() != 1:
        other = ", or give its sum with `count=`" if takes_count else ""
        return f"has shape {tuple(loss.shape)}: reduce it to one number, such as its mean{other}"
    if not loss.requires_grad:
        return (
            "has no graph, so there is nothing to train: compute it from the model's outputs, without `.detach()`, "
            "`torch.tensor(...)` or `torch.no_grad()`, and with something that is not frozen"
        )
    if count is None:
        return None
    if not isinstance(count, (int, float, Tensor)) or (isinstance(count, Tensor) and count.numel() != 1):
        return f"has the count {count!r}: give the number of items that it is a sum over"
    return None if count >= 0 else f"has the count {float(count):g}: give the number of items that it is a sum over"


def scheduler_positions(lane: Lane) -> list[Any]:
    """How far schedulers are, to tell whether the user steps them."""
    return [getattr(scheduler, "last_epoch", None) for scheduler in lane.schedulers]


def gradient_versions(lane: Lane) -> Versions:
    """What changes when gradients are replaced or changed in place."""
    return [(id(param.grad), version_of(param.grad)) for param in lane.params if param.grad is not None]
