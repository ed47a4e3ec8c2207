"""Continue a run with a changed program: options of the program replace restored ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, OneCycleLR

from .._torch_compat import INNER_SCHEDULERS, closed_form_of, set_last_lr
from ..optim.build import CurveSchedule
from .fingerprint import group_key, key_of
from .restore import Kept, compare_groups

if TYPE_CHECKING:
    from ..run.changes import Change
    from .run import TrainingRun

SWITCHES = ("amsgrad", "centered", "momentum")  # options that decide what state an optimizer has
# `get_lr` ignores the previous rate
CLOSED = (LambdaLR, OneCycleLR, CyclicLR, CosineAnnealingWarmRestarts)
Group = dict[str, Any]


class NewValues:
    """The program's options of optimizers and schedulers; recorded before a checkpoint is loaded,
    set afterwards."""

    def __init__(
        self, run: TrainingRun, tree: Mapping[str, Any], changed: Mapping[str, Change]
    ) -> None:
        self.run = run
        self.changed = changed
        optimizers = run.components.optimizers
        schedules = run.components.schedules
        self._groups = {
            name: [_options(group) for group in optimizer.param_groups]
            for name, optimizer in optimizers.items()
        }
        self._schedulers = {name: _settings(s.scheduler) for name, s in schedules.items()}
        saved = tree["optimizers"]
        lost_schedules = set(tree["schedules"]) - set(schedules)
        self._has_lost_schedule = bool(lost_schedules)
        new_optimizers = {
            name
            for name, optimizer in optimizers.items()
            if name not in saved
            or self._needs_other_state(key_of("optimizer", name))
            or compare_groups(optimizer, saved[name])
        }
        new_schedules = {
            name
            for name in schedules
            if name not in tree["schedules"] or key_of("scheduler", name) in changed
        }
        self.kept = Kept(
            new_optimizers | (set(saved) - set(optimizers)), new_schedules | lost_schedules
        )

    def _needs_other_state(self, prefix: str) -> bool:
        """Whether an optimizer is of another class, or an option of it has been switched on or
        off."""
        return prefix in self.changed or any(
            key.startswith(f"{prefix}.")
            and key.rpartition(".")[2] in SWITCHES
            and bool(change.first) != bool(change.second)
            for key, change in self.changed.items()
        )

    def apply(self) -> None:
        """Set the new values, and print which states of the checkpoint could not be used."""
        run = self.run
        for name, optimizer in run.components.optimizers.items():
            if name in self.kept.optimizers:
                run.say(
                    f"Optimizer {name!r} ({type(optimizer).__name__}) does not match the saved "
                    "optimizer state, so it starts with empty state."
                )
            self._apply_options(name, optimizer)
        for name in run.components.schedules:
            if name in self.kept.schedules:
                run.say(f"Schedule {name!r} is new in this run: it starts from its beginning.")

    def _apply_options(self, name: str, optimizer: Optimizer) -> None:
        given = self._groups[name]
        schedulers = {
            key: schedule.scheduler
            for key, schedule in self.run.components.schedules.items()
            if _steps(schedule.scheduler, optimizer)
        }
        continued = [key for key in schedulers if key not in self.kept.schedules]
        has_new_rate = (
            name in self.kept.optimizers
            or self._has_lost_schedule
            or any(self._is_changed(key_of("scheduler", key)) for key in schedulers)
        )
        for number, (group, new) in enumerate(zip(optimizer.param_groups, given, strict=True)):
            start = group_key(key_of("optimizer", name), number, len(given))
            has_new_rate = has_new_rate or f"{start}.lr" in self.changed
            factor = self._part_left(group, f"{start}.lr") if continued else None
            for option, value in new.items():
                if f"{start}.{option}" in self.changed:
                    _set(group, option, value)
            if has_new_rate:
                _set_rate(group, new, factor)
        for key in continued if has_new_rate else ():
            self._apply_schedule(key_of("scheduler", key), schedulers[key], self._schedulers[key])
            _recompute(schedulers[key], optimizer)

    def _is_changed(self, prefix: str) -> bool:
        return any(key == prefix or key.startswith(f"{prefix}.") for key in self.changed)

    def _part_left(self, group: Group, key: str) -> float:
        """Return the factor that a schedule had applied to the old learning rate."""
        first: Any = self.changed[key].first if key in self.changed else group["lr"]
        old = group.get("initial_lr", first)
        is_known = isinstance(old, int | float | Tensor) and float(old) != 0
        return float(group["lr"]) / float(old) if is_known else 1.0

    def _apply_schedule(self, prefix: str, scheduler: Any, given: dict[str, Any]) -> None:
        for option, value in given.items():
            if option == "base_lrs" or f"{prefix}.{option}" in self.changed:
                setattr(scheduler, option, value)
        for number, inner in enumerate(getattr(scheduler, INNER_SCHEDULERS, ())):
            self._apply_schedule(f"{prefix}.{number}", inner, given[INNER_SCHEDULERS][number])


def _options(group: Group) -> Group:
    return {key: _copied(value) for key, value in group.items() if key != "params"}


def _settings(scheduler: Any) -> dict[str, Any]:
    """Return the attributes of a scheduler, with those of its inner schedulers."""
    if isinstance(scheduler, CurveSchedule):
        return {}
    own = {
        key: list(value) if isinstance(value, list) else value
        for key, value in vars(scheduler).items()
    }
    if INNER_SCHEDULERS in own:
        own[INNER_SCHEDULERS] = [_settings(inner) for inner in own[INNER_SCHEDULERS]]
    return own


def _steps(scheduler: Any, optimizer: Optimizer) -> bool:
    """Whether a scheduler changes the optimizer's rate step by step; a curve computes it from the
    run's progress."""
    is_curve = isinstance(scheduler, CurveSchedule)
    return not is_curve and getattr(scheduler, "optimizer", None) is optimizer


def _set_rate(group: Group, new: Group, factor: float | None) -> None:
    """Set the new learning rate, times the factor that the continued schedule had applied to the
    old one."""
    base: Any = new.get("initial_lr", new["lr"])
    if "initial_lr" in group or "initial_lr" in new:
        _set(group, "initial_lr", base)
    for option in new:  # options that a scheduler keeps in the groups, such as its largest rate
        if option.startswith(("max_", "min_", "base_")):
            _set(group, option, new[option])
    _set(group, "lr", new["lr"] if factor is None else base * factor)


def _recompute(scheduler: Any, optimizer: Optimizer) -> None:
    """Set the rates of a scheduler with new options at its position, if they do not depend on
    previous rates."""
    form = closed_form_of(scheduler)
    if form is None and isinstance(scheduler, CLOSED):
        form = scheduler.get_lr
    if form is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "get_lr is for steps only"
            rates = form()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            _set(group, "lr", rate)
    set_last_lr(scheduler, [group["lr"] for group in optimizer.param_groups])


def _set(group: Group, option: str, value: Any) -> None:
    if isinstance(group.get(option), Tensor):  # a compiled optimizer keeps a reference to it
        group[option].fill_(value)
    else:
        group[option] = _copied(value)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
