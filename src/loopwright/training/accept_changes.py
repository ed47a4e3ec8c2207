"""Continue a run with a changed program: options of the program replace restored ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from .._torch_compat import INNER_SCHEDULERS
from .fingerprint import group_key, key_of
from .restore import Kept, compare_groups

if TYPE_CHECKING:
    from ..run.changes import Change
    from .run import TrainingRun

SWITCHES = ("amsgrad", "centered", "momentum")  # options that decide what state an optimizer has
# options that schedulers change, or keep in groups, such as the largest rate
SCHEDULED = ("lr", "initial_lr", "max_", "min_", "base_")
Group = dict[str, Any]


class NewValues:
    """The program's options of optimizers and schedulers; recorded before a checkpoint is loaded,
    set afterwards.

    A schedule with a new option, or of a new learning rate, is put where the saved one was by
    stepping it as often. ReduceLROnPlateau, whose steps need metrics, keeps its state, and the new
    rate is reduced as far as the old one was.
    """

    def __init__(
        self, run: TrainingRun, tree: Mapping[str, Any], changed: Mapping[str, Change]
    ) -> None:
        self.run = run
        self.changed = changed
        self._saved_schedules = tree["schedules"]
        saved = tree["optimizers"]
        optimizers = run.components.optimizers
        schedules = run.components.schedules
        self._groups = {
            name: [_options(group) for group in optimizer.param_groups]
            for name, optimizer in optimizers.items()
        }
        self._schedule_options = {
            name: dict(getattr(schedule.scheduler, "__dict__", {}))
            for name, schedule in schedules.items()
        }
        new_optimizers = set()
        self._rescheduled = set()
        for name, optimizer in optimizers.items():
            is_new = (
                name not in saved
                or self._needs_other_state(key_of("optimizer", name))
                or bool(compare_groups(optimizer, saved[name]))
            )
            if is_new:
                new_optimizers.add(name)
            if is_new or self._has_new_rate(name):
                self._rescheduled.add(name)
        self._new_schedules = {
            name
            for name in schedules
            if name not in self._saved_schedules or key_of("scheduler", name) in changed
        }
        kept_schedules = self._new_schedules | (set(self._saved_schedules) - set(schedules))
        kept_schedules.update(*map(self._replayed, self._rescheduled))
        self.kept = Kept(new_optimizers | (set(saved) - set(optimizers)), kept_schedules)

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
            for key in self._replayed(name) if name in self._rescheduled else ():
                self._replay(key)
        for name, options in self._schedule_options.items():
            for option in options if name not in self.kept.schedules else ():
                if f"{key_of('scheduler', name)}.{option}" in self.changed:
                    setattr(run.components.schedules[name].scheduler, option, options[option])
        for name in self._new_schedules:
            run.say(f"Schedule {name!r} is new in this run: it starts from its beginning.")

    def _apply_options(self, name: str, optimizer: Optimizer) -> None:
        given = self._groups[name]
        is_reduced = (
            name not in self.kept.optimizers
            and not self._replayed(name)
            and any(key not in self._new_schedules for key in self._schedules_of(name))
        )
        for number, (group, new) in enumerate(zip(optimizer.param_groups, given, strict=True)):
            start = group_key(key_of("optimizer", name), number, len(given))
            if is_reduced:
                new["lr"] = self._reduced(f"{start}.lr", new["lr"], group["lr"])
            for option, value in new.items():
                is_scheduled = name in self._rescheduled and option.startswith(SCHEDULED)
                if is_scheduled or f"{start}.{option}" in self.changed:
                    _set(group, option, value)

    def _reduced(self, key: str, given: Any, saved: Any) -> Any:
        """Return the program's learning rate, times the factor by which the old one was reduced."""
        old: Any = self.changed[key].first if key in self.changed else given
        is_known = isinstance(old, int | float | Tensor) and float(old)
        return given * (float(saved) / float(old)) if is_known else given

    def _needs_other_state(self, prefix: str) -> bool:
        """Whether an optimizer is of another class, or an option of it has been switched on or
        off."""
        return prefix in self.changed or any(
            key.startswith(f"{prefix}.")
            and key.rpartition(".")[2] in SWITCHES
            and bool(change.first) != bool(change.second)
            for key, change in self.changed.items()
        )

    def _has_new_rate(self, name: str) -> bool:
        """Whether the learning rate of an optimizer, or a schedule of it, is another than before."""
        if not set(self._saved_schedules) <= set(self.run.components.schedules):
            return True  # a schedule is taken away
        prefix = f"{key_of('optimizer', name)}."
        starts = tuple(f"{key_of('scheduler', key)}." for key in self._schedules_of(name))
        for key in self.changed:
            if f"{key}.".startswith(starts) or (key.startswith(prefix) and key.endswith(".lr")):
                return True
        return False

    def _schedules_of(self, name: str) -> list[str]:
        """The torch schedulers of an optimizer, which change its rate step by step."""
        optimizer = self.run.components.optimizers[name]
        return [
            key
            for key, schedule in self.run.components.schedules.items()
            if isinstance(schedule.scheduler, LRScheduler)
            and schedule.scheduler.optimizer is optimizer
        ]

    def _replayed(self, name: str) -> list[str]:
        schedules = self.run.components.schedules
        return [
            key
            for key in self._schedules_of(name)
            if key not in self._new_schedules
            and not isinstance(schedules[key].scheduler, ReduceLROnPlateau)
        ]

    def _replay(self, key: str) -> None:
        scheduler = self.run.components.schedules[key].scheduler
        saved = self._saved_schedules[key]
        if isinstance(scheduler, ChainedScheduler):  # only those inside it count
            saved = saved[INNER_SCHEDULERS][0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps without steps of the optimizer
            for _ in range(saved["last_epoch"]):
                scheduler.step()


def _options(group: Group) -> Group:
    return {key: _copied(value) for key, value in group.items() if key != "params"}


def _set(group: Group, option: str, value: Any) -> None:
    if isinstance(group.get(option), Tensor):  # a compiled optimizer keeps a reference to it
        group[option].fill_(value)
    else:
        group[option] = _copied(value)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
