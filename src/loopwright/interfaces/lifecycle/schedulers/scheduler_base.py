"""Schedulers of a field of every parameter group, set after every optimizer update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from ....errors import ConfigurationError


class SchedulerBase(ABC):
    """Sets a field of every parameter group from a number of updates."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        for group in optimizer.param_groups:
            if param_group_field not in group:
                raise ConfigurationError(
                    f"{type(self).__name__} schedules {param_group_field!r}, which this optimizer "
                    "does not have; available: "
                    f"{', '.join(key for key in group if key != 'params')}."
                )
            group.setdefault(f"initial_{param_group_field}", group[param_group_field])

    @property
    def base_values(self) -> list[Any]:
        """The value that each parameter group began with, before any scheduler changed it."""
        return [group[f"initial_{self.param_group_field}"] for group in self.optimizer.param_groups]

    @property
    def base_lr_values(self) -> list[Any]:
        """The same by the name of the published system."""
        return self.base_values

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> Any:
        """The values after `num_updates` updates: one for all groups, one for each, or None to
        change nothing."""

    def step_update(self, num_updates: int) -> None:
        """Set the values that belong to this number of updates."""
        values = self.get_updated_values(num_updates)
        if values is not None:
            self.update_param_groups(values)

    def update_param_groups(self, values: Any) -> None:
        groups = self.optimizer.param_groups
        listed = list(values) if isinstance(values, (list, tuple)) else [values] * len(groups)
        for group, value in zip(groups, listed, strict=True):
            group[self.param_group_field] = value

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        vars(self).update(state_dict)


class StatefulSchedulerBase(SchedulerBase):
    """Counts the updates itself: `step()` once after each of them.

    The first update takes the values of 0 updates, so a scheduler sets those when it is made.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = 0

    def step(self) -> None:
        self._num_updates += 1
        self.step_update(self._num_updates)
