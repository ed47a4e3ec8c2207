"""Learning rates and weight decays that follow a curve over the run."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..callback import Callback
from ..errors import ConfigurationError
from ..optim.schedules import Curve, done_of, extent_of, is_limited

if TYPE_CHECKING:
    from ..trainer import Trainer


class Scheduled(Callback):
    """Sets one option of an optimizer's parameter groups before every update, from where the run is on its clock.

    The curve's values are factors of what each group had to begin with, so groups keep their proportions; with
    `is_absolute` they are the values themselves, for all groups but those that have 0. A run that is resumed, or
    killed in between, finds the same values, since they depend on nothing else.
    """

    option = ""

    def __init__(self, schedule: Curve, *, optimizer: str | None = None, is_absolute: bool = False) -> None:
        self.schedule = schedule
        self.optimizer = optimizer
        self.is_absolute = is_absolute
        self._curve: Curve = schedule
        self._groups: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer) -> None:
        owner = type(self).__name__
        if not is_limited(trainer.run.limits):
            raise ConfigurationError(
                f"{owner} needs to know how long the run is: pass `num_epochs`, `num_updates` or `num_samples`."
            )
        self._curve = self.schedule.resolve(extent_of(trainer))
        self._groups = self._find(trainer, owner)
        for group in self._groups:
            group.setdefault(f"initial_{self.option}", _copied(group[self.option]))
        self._set(trainer)

    def on_epoch_start(self, trainer: Trainer) -> None:
        self._set(trainer)

    def on_update_end(self, trainer: Trainer) -> None:
        self._set(trainer)

    def on_rewind(self, trainer: Trainer) -> None:
        self._groups = self._find(trainer, type(self).__name__)  # an optimizer that loads has new ones
        self._set(trainer)

    def _find(self, trainer: Trainer, owner: str) -> list[dict[str, Any]]:
        names = list(trainer.optimizers) if self.optimizer is None else [self.optimizer]
        for name in names:
            if name not in trainer.optimizers:
                near = difflib.get_close_matches(name, trainer.optimizers, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigurationError(
                    f"{owner}(optimizer={name!r}): the trainer's optimizers are {', '.join(trainer.optimizers)}.{hint}"
                )
        groups = [group for name in names for group in trainer.optimizers[name].param_groups]
        if not all(self.option in group for group in groups):
            raise ConfigurationError(
                f"{owner} schedules {self.option!r}, which optimizer {', '.join(names)} does not have; there is: "
                f"{', '.join(key for key in groups[0] if key != 'params')}."
            )
        return groups

    def _set(self, trainer: Trainer) -> None:
        done = done_of(trainer)
        assert done is not None
        value = self._curve.value(done)
        for group in self._groups:
            base = group[f"initial_{self.option}"]
            wanted = base * value if not self.is_absolute else value if base != 0 else base
            own = group[self.option]
            if isinstance(own, Tensor):  # which a compiled optimizer holds on to
                own.fill_(wanted)
            else:
                group[self.option] = float(wanted)


class ScheduleLearningRate(Scheduled):
    """Lets the learning rate follow a curve: `ScheduleLearningRate(WarmupCosine(warmup=0.05))`.

    `Trainer(scheduler=WarmupCosine(warmup=0.05))` is the same.
    """

    option = "lr"


class ScheduleWeightDecay(Scheduled):
    """Lets the weight decay follow a curve: `ScheduleWeightDecay(Cosine(start=1.0, end=10.0))`."""

    option = "weight_decay"


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
