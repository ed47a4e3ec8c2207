"""Where a run is: the one clock of epochs, steps, updates and samples, and the limits that stop
it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from ..errors import ConfigurationError
from ..text import counted, kind_of

UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def seconds_of(time: str | timedelta, name: str) -> float:
    """Seconds of a text such as "1h30m" or "90s", or of a `timedelta`."""
    if isinstance(time, timedelta):
        return time.total_seconds()
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*(d|h|min|m|s)\s*", time)
    if not parts or "".join(number + unit for number, unit in parts) != "".join(time.split()):
        raise ConfigurationError(
            "time-text",
            f"{name}={time!r}: use a number of seconds, a `timedelta`, or a string with units, "
            "such as '1h30m', '45min', '90s' or '2d'.",
        )
    return sum(float(number) * UNITS[unit] for number, unit in parts)


@dataclass(slots=True)
class Progress:
    """Counters of a run. A step is one batch; an update is one window of steps that ends in
    optimizer steps.

    Args:
        epoch: Completed epochs.
        step: Steps of the run.
        update: Updates of the run.
        sample: Samples of the run, of all processes together.
        epoch_step: Steps of the current epoch.
        epoch_sample: Samples of the current epoch.
        is_exhausted: Whether all data of the current epoch was used.
        recorded_step: The step up to which the history has rows of epochs.
        seconds: Time in training, evaluations not included.
        call: The number of the `train` call, from 1.
        call_epoch: `epoch` at the beginning of the call; likewise `call_update`, `call_sample` and
            `call_seconds`.
        call_finished: Whether the call ended by a limit or a stop.

    >>> import torch, loopwright
    >>> model, x = torch.nn.Linear(1, 1), torch.ones(10, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(model, optimizer, torch.nn.MSELoss(), accumulate=2, progress="silent")
    >>> _ = trainer.train((x, x), num_epochs=1, batch_size=2)
    >>> trainer.progress.step, trainer.progress.update, trainer.progress.sample
    (5, 3, 10)
    """

    epoch: int = 0
    step: int = 0
    update: int = 0
    sample: int = 0
    epoch_step: int = 0
    epoch_sample: int = 0
    is_exhausted: bool = False
    recorded_step: int = 0
    seconds: float = 0.0
    call: int = 0
    call_epoch: int = 0
    call_update: int = 0
    call_sample: int = 0
    call_seconds: float = 0.0
    call_finished: bool = False

    def next_step(self, size: int) -> None:
        self.step += 1
        self.epoch_step += 1
        self.sample += size
        self.epoch_sample += size

    def next_update(self) -> None:
        self.update += 1

    def next_epoch(self) -> None:
        self.go_to_epoch(self.epoch + 1)

    def go_to_epoch(self, epoch: int) -> None:
        """Put the clock at the beginning of an epoch; the other counters stay."""
        self.epoch = epoch
        self.epoch_step = 0
        self.epoch_sample = 0
        self.is_exhausted = False

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self.epoch_step > 0

    @property
    def is_unrecorded(self) -> bool:
        """Whether steps were taken in this epoch that no row of the history tells of yet."""
        return self.in_epoch and self.step > self.recorded_step

    def next_call(self) -> None:
        """Begin another `train` call: its limits count from here."""
        self.call += 1
        self.call_epoch = self.epoch
        self.call_update = self.update
        self.call_sample = self.sample
        self.call_seconds = self.seconds
        self.call_finished = False

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for field in fields(self):
            setattr(self, field.name, state[field.name])


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a `train` call goes; the limit that is reached first ends it."""

    epochs: int | None = None
    updates: int | None = None
    samples: int | None = None
    seconds: float | None = None

    @classmethod
    def given(cls, epochs: Any, updates: Any, samples: Any, time: Any) -> Limits:
        """Limits from the arguments of `train`."""
        for name, count in (
            ("num_epochs", epochs),
            ("num_updates", updates),
            ("num_samples", samples),
        ):
            is_number = isinstance(count, int | float | str) and not isinstance(count, bool)
            if count is not None and not is_number:
                raise ConfigurationError(
                    "train-argument",
                    f"{name} is {kind_of(count)}: use a whole number. The order is "
                    "`train(data, num_epochs, eval_data)`; pass inputs and targets as `(x, y)`.",
                )
        seconds = seconds_of(time, "max_time") if isinstance(time, str | timedelta) else time
        return cls(epochs, updates, samples, seconds)

    def from_call(self, progress: Progress) -> Limits:
        """The same limits as absolute values of the run's clock."""

        def absolute(start: Any, amount: Any) -> Any:
            return None if amount is None else start + amount

        return Limits(
            absolute(progress.call_epoch, self.epochs),
            absolute(progress.call_update, self.updates),
            absolute(progress.call_sample, self.samples),
            absolute(progress.call_seconds, self.seconds),
        )

    def reached(self, progress: Progress) -> str | None:
        """The limit that has been reached, in words, or None."""
        if self.updates is not None and progress.update >= self.updates:
            return f"{counted(progress.update, 'update')} done"
        if self.samples is not None and progress.sample >= self.samples:
            return f"{counted(progress.sample, 'sample')} seen"
        if self.epochs is not None and progress.epoch >= self.epochs:
            return f"{counted(progress.epoch, 'epoch')} done"
        if self.seconds is not None and progress.seconds >= self.seconds:
            return f"{self.seconds:g} s passed"
        return None

    def samples_left(self, progress: Progress) -> int | None:
        return None if self.samples is None else self.samples - progress.sample
