"""Continue a run with a changed program: options of the program replace restored ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, OneCycleLR

from .._torch_compat import INNER_SCHEDULERS, closed_form_of, set_last_lr
from ..optim.build import CurveSchedule
from .fingerprint import group_key, key_of
from .state_mismatch import Kept

if TYPE_CHECKING:
    from ..run.changes import Change
    from ..training.run import TrainingRun

SWITCHES = ("amsgrad", "centered", "momentum")  # options that decide what state an optimizer has
# `get_lr` ignores the previous rate
CLOSED = (
    LambdaLR,
    OneCycleLR,
    CyclicLR,
    CosineAnnealingWarmRestarts,
)
Group = dict[str, Any]


class NewValues:
    """The program's options of optimizers and schedulers; recorded before a checkpoint is loaded,
    set afterwards."""

    def __init__(
        self, run: TrainingRun, tree: Mapping[str, Any], changed: Mapping[str, Change]
    ) -> None:
        self.changed = changed
        self._saved = tree["optimizers"]
        self._groups = {
            name: [_options(g) for g in o.param_groups]
            for name, o in run.components.optimizers.items()
        }
        self._schedulers = {
            name: _settings(s.scheduler) for name, s in run.components.schedules.items()
        }
        self.kept = Kept(
            frozenset(self._new_optimizers(run))
            | (set(tree["optimizers"]) - set(run.components.optimizers)),
            frozenset(self._new_schedules(run, tree))
            | (set(tree["schedules"]) - set(run.components.schedules)),
        )
        self._has_lost_schedule = bool(set(tree["schedules"]) - set(run.components.schedules))

    def apply(self, run: TrainingRun) -> None:
        """Set the new values, and print which states of the checkpoint could not be used."""
        for name, optimizer in run.components.optimizers.items():
            if name in self.kept.optimizers:
                kind = type(optimizer).__name__
                run.say(
                    f"Optimizer {name!r} ({kind}) does not match the saved optimizer state, so it "
                    "starts with empty state."
                )
            self._apply_options(run, name, optimizer)
        for name in run.components.schedules:
            if name in self.kept.schedules:
                run.say(f"Schedule {name!r} is new in this run: it starts from its beginning.")

    # Components that do not fit their saved state

    def _new_optimizers(self, run: TrainingRun) -> Iterator[str]:
        from .state_mismatch import compare_groups

        for name, optimizer in run.components.optimizers.items():
            prefix = key_of("optimizer", name)
            count = len(optimizer.param_groups)
            switches = [
                f"{group_key(prefix, n, count)}.{option}"
                for n in range(count)
                for option in SWITCHES
            ]
            is_switched = any(
                key in self.changed and _is_switched(self.changed[key]) for key in switches
            )
            is_new = name not in self._saved or prefix in self.changed or is_switched
            if is_new or compare_groups(optimizer, self._saved[name]):
                yield name

    def _new_schedules(self, run: TrainingRun, tree: Mapping[str, Any]) -> Iterator[str]:
        for name in run.components.schedules:
            if name not in tree["schedules"] or key_of("scheduler", name) in self.changed:
                yield name

    # Options

    def _apply_options(self, run: TrainingRun, name: str, optimizer: Optimizer) -> None:
        prefix = key_of("optimizer", name)
        given = self._groups[name]
        schedules = {
            key: s.scheduler
            for key, s in run.components.schedules.items()
            if _steps(s.scheduler, optimizer)
        }
        is_rescheduled = self._has_lost_schedule or any(
            key == start or key.startswith(f"{start}.")
            for key in self.changed
            for start in (key_of("scheduler", schedule) for schedule in schedules)
        )
        has_new_rate = name in self.kept.optimizers or is_rescheduled
        for number, (group, new) in enumerate(zip(optimizer.param_groups, given, strict=True)):
            start = group_key(prefix, number, len(given))
            for option in [option for option in new if f"{start}.{option}" in self.changed]:
                _set(group, option, new[option])
            if has_new_rate or f"{start}.lr" in self.changed:
                has_new_rate = True
                self._apply_rate(
                    name,
                    number,
                    group,
                    new,
                    is_continued=bool(set(schedules) - self.kept.schedules),
                )
        for key, scheduler in schedules.items():
            if has_new_rate and key not in self.kept.schedules:
                self._apply_schedule(key_of("scheduler", key), scheduler, self._schedulers[key])
                _recompute(scheduler, optimizer)

    def _apply_rate(
        self, name: str, number: int, group: Group, new: Group, *, is_continued: bool
    ) -> None:
        """Set the new learning rate, times the factor that the schedule had applied to the old
        one."""
        base: Any = new.get("initial_lr", new["lr"])
        if "initial_lr" in group or "initial_lr" in new:
            _set(group, "initial_lr", base)
        for option in new:  # options that a scheduler keeps in the groups, such as its largest rate
            if option.startswith(("max_", "min_", "base_")):
                _set(group, option, new[option])
        _set(group, "lr", base * self._part_left(name, number) if is_continued else new["lr"])

    def _part_left(self, name: str, number: int) -> float:
        """Return the factor that a schedule had applied to the old learning rate."""
        saved = self._saved.get(name, {}).get("param_groups", [])
        group = saved[min(number, len(saved) - 1)] if saved else {}
        key = f"{group_key(key_of('optimizer', name), number, len(self._groups[name]))}.lr"
        old: Any = group.get(
            "initial_lr", self.changed[key].first if key in self.changed else group.get("lr")
        )
        now: Any = group.get("lr")
        is_known = all(isinstance(value, (int, float, Tensor)) for value in (old, now))
        return float(now) / float(old) if is_known and float(old) else 1.0

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
    return (
        not isinstance(scheduler, CurveSchedule)
        and getattr(scheduler, "optimizer", None) is optimizer
    )


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


def _is_switched(change: Change) -> bool:
    return bool(change.first) != bool(change.second)


def _set(group: Group, option: str, value: Any) -> None:
    if isinstance(group.get(option), Tensor):  # a compiled optimizer keeps a reference to it
        group[option].fill_(value)
    else:
        group[option] = _copied(value)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
