"""How a program steps its optimizers and schedulers: checks of its own steps, and what the trainer
leaves to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import LBFGS

from ...errors import ConfigurationError
from ...optim.build import Schedule
from ...runtime.dtensor import mesh_of
from ...training.step_checks import (
    Versions,
    gradient_versions,
    own_step_obstacle,
    scheduler_position,
    scheduler_positions,
)
from ...training.update import OptimizerUpdate
from .._shared import StepSchedulers

if TYPE_CHECKING:
    from .core import ModularCore


StepMethod = Literal["end", "step", "own"]
Use = Literal["backward", "return"]


class StepMethods:
    """The method by which each optimizer is stepped in a run; one that is stepped by two is stepped
    too often."""

    def __init__(self) -> None:
        self._first: dict[str, StepMethod] = {}

    def check(self, trainer: ModularCore, update: OptimizerUpdate, method: StepMethod) -> None:
        """Note how an optimizer is about to be stepped; a second method for it is refused."""
        if method != "own" and isinstance(update.optimizer, LBFGS):
            raise ConfigurationError(
                f"self.{update.name} is LBFGS, which computes the loss several times per step: "
                f"write `self.{update.name}.step(closure)` in `training_step`, or use another "
                "optimizer."
            )
        first = self._first.setdefault(update.name, method)
        if first == method or (trainer.accumulate > 1 and "own" not in (first, method)):
            return
        name = update.name
        words = {
            "end": "the trainer, at the end of a batch that called `self.backward(loss)` but no "
            "`step`",
            "step": f"`self.step(self.{name})`",
            "own": f"`self.{name}.step()`",
        }
        raise ConfigurationError(
            f"Optimizer {name!r} is stepped in two different ways: first by {words[first]}, now "
            f"by {words[method]}. Choose one for every batch: `self.backward(loss)` alone, or "
            f"followed by `self.step(self.{name})` or `self.{name}.step()` in the same "
            "`training_step`. To step after every fourth batch only, set "
            "gradient_accumulation_steps=4 and leave the step to the trainer."
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
        "It is not clear which optimizer each loss is for: one `self.backward(loss)` reaches the "
        f"parameters of {first}, another one those of {second}, so {both[0]} would be trained on "
        f"both. Name the optimizer of each loss: `self.backward(loss, self.{example})`, or call "
        f"`self.step(self.{example})` after it. For one loss for all of them, call "
        "`self.backward(first + second)`."
    )


def check_own_step(trainer: ModularCore, update: OptimizerUpdate, *, is_ours: bool) -> None:
    """Refuse `optimizer.step()` where it would be a wrong step; `is_ours` says that gradients come
    from `backward`."""
    name = update.name
    if trainer.run.is_evaluating:
        trainer._check_update(None)
    obstacle = own_step_obstacle(trainer, update, is_averaged=is_ours, is_clipped=True)
    if (
        obstacle is None
        and not is_ours
        and update.clip_norm is not None
        and not has_gradients(update)
    ):
        obstacle = (
            f"has no gradients yet for gradient_clip_val={update.clip_norm} to clip, as with "
            "a closure"
        )
    if obstacle is None:
        return
    if is_ours:
        instead = (
            f"write `self.step(self.{name})` instead, or leave the step to the trainer, and "
            "remove zero_grad()"
        )
    else:
        instead = (
            "write `self.backward(loss)` instead of `loss.backward()`, and remove "
            f"`self.{name}.step()` and zero_grad(), which the trainer calls"
        )
    raise ConfigurationError(
        f"`self.{name}.step()` was called by your code, which {obstacle}: {instead}."
    )


def complete(update: OptimizerUpdate) -> None:
    """Make gradients those of all processes; there are none where the loss was refused, so that
    nothing is stepped."""
    if update.complete() and not update.read_flag():
        update.zero()


def gradients_gone(trainer: ModularCore, update: OptimizerUpdate) -> ConfigurationError:
    """Gradients that `backward` computed were removed before the optimizer was stepped."""
    if trainer.accumulate > 1:
        where = (
            f"in an accumulation window of {trainer.accumulate} batches "
            "(gradient_accumulation_steps)"
        )
    else:
        where = "before the optimizer was stepped"
    return ConfigurationError(
        f"Optimizer {update.name!r} no longer has gradients, {where}, although "
        "`self.backward(loss)` was called: zero_grad() has removed them, or the loss does not "
        "depend on its parameters. Remove zero_grad(); the trainer calls it after the step."
    )


def gradients_changed(trainer: ModularCore, update: OptimizerUpdate) -> ConfigurationError:
    """Gradients were clipped or changed before they were complete."""
    if update.scaler is not None:
        why = "still scaled for precision='fp16'"
    elif update.peers is not None:
        why = "those of this process's part of the batch, not yet averaged over the processes"
    else:
        why = f"part of a sum over {trainer.accumulate} batches (gradient_accumulation_steps)"
    return ConfigurationError(
        f"The gradients of optimizer {update.name!r} were changed after `self.backward(loss)`, "
        f"while they were {why}. The cause may be clip_grad_norm_ or "
        f"zero_grad(set_to_none=False). Call `self.clip_gradients(self.{update.name}, max_norm)` "
        "or set gradient_clip_val, which clip when they are complete; make other changes in "
        "`on_optimizer_step_start`."
    )


def twice_in_window(trainer: ModularCore, update: OptimizerUpdate) -> ConfigurationError:
    return ConfigurationError(
        f"Optimizer {update.name!r} would be stepped twice in the last batch of an accumulation "
        "window, the second time without the gradients of the other batches: with "
        f"gradient_accumulation_steps={trainer.accumulate} step it once per batch, and call "
        "`training_step` once."
    )


def gradients_left(update: OptimizerUpdate) -> ConfigurationError:
    return ConfigurationError(
        f"A batch called `loss.backward()` but did not step optimizer {update.name!r}. Resume "
        "points in `run_dir` do not contain such gradients, so a killed run could not continue "
        "exactly. To step after several batches, set gradient_accumulation_steps and call "
        "`self.backward(loss)`; remove unused gradients with zero_grad()."
    )


def check_unmixed(update: OptimizerUpdate, left: Versions | None) -> None:
    """Refuse to add to gradients that `loss.backward()` of an earlier step left."""
    if left and left == gradient_versions(update):
        raise ConfigurationError(
            f"Optimizer {update.name!r} still has gradients from `loss.backward()` in an earlier "
            "batch, and `self.backward(loss)` would add to them. Use the same one of the two in "
            f"every batch; remove unused gradients with `self.{update.name}.zero_grad()`."
        )


def have_changed(updates: Iterable[OptimizerUpdate], before: Mapping[str, Versions]) -> bool:
    """Whether there are gradients that were not there before: where no call of ours made them,
    `loss.backward()`."""
    return any(
        has_gradients(update) and gradient_versions(update) != before.get(update.name)
        for update in updates
    )


def clipped_late(update: OptimizerUpdate) -> ConfigurationError:
    return ConfigurationError(
        f"clip_gradients({update.name}) was called after step({update.name}), which is too late: "
        "call it before."
    )


def sharded_in_window(update: OptimizerUpdate) -> ConfigurationError:
    return ConfigurationError(
        f"In an accumulation window of a sharded model, gradients that optimizer {update.name!r} "
        "should not use cannot be removed again: name the optimizer of each loss, as in "
        "self.backward(loss, self.g_optimizer)."
    )


def unknown_optimizer(given: Any, updates: Iterable[str]) -> ConfigurationError:
    shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    return ConfigurationError(
        f"{shown} is not one of this trainer's optimizers ({', '.join(updates)}): pass one that "
        "configure_optimizers assigned to self, or its name."
    )


def are_incomplete(trainer: ModularCore, update: OptimizerUpdate) -> bool:
    """Whether gradients after `backward` are not yet what the optimizer is stepped with."""
    if any(mesh_of(param) is not None for param in update.params):
        return False  # a sharded model's are the sum over processes already, and clipped as such
    return update.peers is not None or update.scaler is not None or trainer.accumulate > 1


def step_without_backward(trainer: ModularCore, update: OptimizerUpdate) -> ConfigurationError:
    raw = (
        " There are gradients from `loss.backward()`, which are neither scaled nor averaged."
        if has_gradients(update)
        else ""
    )
    return ConfigurationError(
        f"`self.step(self.{update.name})` was called without `self.backward(loss)` before it in "
        f"this batch.{raw} Write `self.backward(loss)` and then `self.step(self.{update.name})`."
    )


def loss_in(trainer: ModularCore, returned: Any) -> Tensor | None:
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
            f"`training_step` returned {', '.join(losses)} but trained nothing: only a value "
            "returned as 'loss' is trained automatically. Call `self.backward(loss)` for each "
            "loss; with several optimizers, `self.backward(loss, "
            f"self.{next(iter(trainer.optimizers))})`. Return values that should only be reported "
            "as `value.detach()`."
        )
    return losses.get("loss")


def two_uses() -> ConfigurationError:
    return ConfigurationError(
        "Some steps call `self.backward(loss)` or `loss.backward()` or step an optimizer, but "
        "others only return a loss, which is then trained automatically. Call "
        "`self.backward(loss)` in each of them, and return a loss that should not be trained as "
        "`loss.detach()`."
    )


def nothing_trained(trainer: ModularCore) -> ConfigurationError:
    """An epoch is over in which there was neither a `backward` nor a step."""
    progress = trainer.progress
    updates = trainer.run.updates.by_name
    raw = [name for name, update in updates.items() if has_gradients(update)]
    what = (
        "called `loss.backward()`, but no optimizer was stepped"
        if raw
        else "trained none of the optimizers"
    )
    advice = (
        f"Call `self.{raw[0]}.step()` after it, or return the loss without calling backward()"
        if raw
        else "Call `self.backward(loss)` in `training_step`, or return the loss itself"
    )
    return ConfigurationError(
        f"Nothing was trained: in epoch {progress.epoch + 1} ({progress.epoch_step} batches) your "
        f"code {what} ({', '.join(updates)}). {advice}; it must be neither detached nor a plain "
        "number."
    )


def has_gradients(update: OptimizerUpdate) -> bool:
    return any(param.grad is not None for param in update.params)


StoredGradients = Sequence[Tensor | None]


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

    def __init__(self, trainer: ModularCore) -> None:
        super().__init__()
        self.trainer = trainer
        self._left: dict[str, list[Any]] = {}  # positions after the trainer's own step

    def reset(self) -> None:
        super().reset()
        self._left = {}

    def begin_step(self, updates: Iterable[OptimizerUpdate]) -> None:
        for name, left in self._left.items():
            schedulers = self.trainer.run.updates.by_name[name].schedulers
            for scheduler, before in zip(schedulers, left, strict=False):
                check_scheduler(self.trainer, scheduler, before)
        self._left = {}
        super().begin_step(updates)

    def step(self, update: OptimizerUpdate) -> None:
        super().step(update)
        self._left[update.name] = scheduler_positions(update)


class EpochSchedulers:
    """Steps schedulers after an epoch, unless the user's loop has, and refuses ones that are then
    stepped again."""

    def __init__(self, trainer: ModularCore) -> None:
        self.trainer = trainer
        self._positions: dict[str, Any] = {}  # when the epoch began
        self._left: dict[str, Any] = {}  # positions after the trainer's own step

    def note(self) -> None:
        """An epoch begins here."""
        self._positions = {
            name: scheduler_position(schedule.scheduler)
            for name, schedule in self.trainer.schedules.items()
        }
        self._left = {}

    def step(self, row: Mapping[str, float]) -> None:
        """An epoch is over, with these metrics."""
        for name, schedule in self.trainer.schedules.items():
            if schedule.interval == "epoch" and scheduler_position(
                schedule.scheduler
            ) == self._positions.get(name):
                self._watching(name, schedule, row).step(row)
                self._left[name] = scheduler_position(schedule.scheduler)

    def check(self) -> None:
        """Refuse schedulers that the user's program has stepped again since."""
        for name, left in self._left.items():
            check_scheduler(self.trainer, self.trainer.schedules[name].scheduler, left)

    def _watching(self, name: str, schedule: Schedule, row: Mapping[str, float]) -> Schedule:
        """The schedule, with the metric that it watches if it does."""
        if not schedule.watches or schedule.metric is not None:
            return schedule
        usual = next((name for name in ("val_loss", "val/loss") if name in row), "loss")
        watched = self.trainer.config.monitor or usual
        if watched not in row:
            raise ConfigurationError(
                "unmeasured-plateau-metric",
                f"self.{name} (ReduceLROnPlateau) watches {watched!r}, which this epoch did not "
                f"measure; available: {', '.join(row) or 'nothing'}. Name one of them with "
                "monitor=.",
            )
        return replace(schedule, metric=watched)


def check_scheduler(trainer: ModularCore, scheduler: Any, left_at: int | None) -> None:
    """Refuse a scheduler that goes on by itself after the trainer has stepped it."""
    now = getattr(scheduler, "last_epoch", None)
    if now is None or left_at is None or now <= left_at:
        return
    name = next(
        (name for name, s in trainer.schedules.items() if s.scheduler is scheduler), "scheduler"
    )
    raise ConfigurationError(
        f"Scheduler {name!r} was stepped twice, by the trainer and then by your code "
        f"(`self.{name}.step()` in a callback or event). Remove that call, or move it to "
        "`training_step` or `training_loop`: the trainer does not step the schedulers that they "
        "step."
    )
