"""The callback `Profile`, which measures where the time of a run goes."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..callback import Callback, surrounding
from ..callbacks.measuring import process_peak
from ..checkpoint.atomic import staged_file
from ..errors import ConfigurationError, Interrupted, check_number, public
from ..run.files import PROFILE
from .clock import Clock
from .instrument import Instrument, is_timed, program_of
from .report import Report

if TYPE_CHECKING:
    from ..callback import Trainer

logger = logging.getLogger("loopwright")
Phase = Literal["warm-up", "measure", "over"]


class Profile(Callback):
    """Measures where the time of a run goes, and says what to do about it.

    Every moment belongs to one part: waiting for data, moving it, forward pass, backward pass,
    optimizer, callbacks, logging, evaluation, checkpoints, and the rest. The report is printed when
    training ends, is here as `report`, and is in the run directory as `profile.json`, which
    `loopwright show` prints. Results are the same with and without.

    In a trainer that takes no such callbacks, it is used around the training:
    `with Profile(): trainer.train(...)`.

    Args:
        warmup: Steps at the beginning that are not counted; in a run with no more steps, all of
            them are.
        steps: Measure this number of steps and no more; None for all of the run.

    Example:
        >>> import torch
        >>> from loopwright import Trainer
        >>> from loopwright.callbacks import Profile
        >>> x, model = torch.ones(64, 2), torch.nn.Linear(2, 1)
        >>> profile = Profile(warmup=1)
        >>> trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), callbacks=profile)
        >>> _ = trainer.train((x, x[:, :1]), num_epochs=1, batch_size=8)  # doctest: +ELLIPSIS
        Training without a run directory...
        Where the time went: 7 steps in ...
        >>> profile.report.num_steps, "forward" in profile.report.parts
        (7, True)
    """

    precedence = -3  # before all others, to measure them

    @public
    def __init__(self, warmup: int = 3, steps: int | None = None) -> None:
        check_number("Profile(warmup", warmup, least=0, of="steps")
        if steps is not None:
            check_number("Profile(steps", steps, least=1, of="steps")
        self.warmup = warmup
        self.steps = steps
        self._instrument: Instrument | None = None  # while a run is measured
        self._is_block = False
        self._reset(None)

    def _reset(self, program: Any) -> None:
        """Begin with a program; what another one took is not in its report."""
        self._program = program
        self.report: Report | None = None
        self._phase: Phase = "warm-up"
        self._clock: Clock | None = None
        self._num_warmup = 0

    # Around a training

    def __enter__(self) -> Profile:
        """Measure every run that starts in this block, in whichever interface."""
        self._is_block = True
        self._block = surrounding.set((*surrounding.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        surrounding.reset(self._block)
        self._finish(error)
        if self.report is not None and self._program.runtime.is_main and _is_end(error):
            print(self.report, flush=True)

    # Events

    def on_train_start(self, trainer: Trainer) -> None:
        self._begin(program_of(trainer))

    def on_epoch_start(self, trainer: Trainer) -> None:
        """Begin where an interface has no event for the start of training; time what the run has
        got since then."""
        program = program_of(trainer)
        if self._instrument is None:
            self._begin(program)
        elif program is self._program:
            self._instrument.attach(program)

    def _begin(self, program: Any) -> None:
        if self._instrument is not None and program is not self._program:
            return  # a run inside of the one that is measured
        self._finish()
        if not self._is_block and program is not self._program:
            self._reset(program)
        if self._phase == "over" or (self._is_block and self not in surrounding.get()):
            return
        if is_timed(program.run):
            raise ConfigurationError(
                "two-profiles",
                "Two profiles measure the same run, and each would measure the other: pass one "
                "`Profile` as a callback, or use one around the training.",
            )
        self._program = program
        if self._clock is None:
            device = program.runtime.device
            sync = None if device.type == "cpu" else partial(torch.accelerator.synchronize, device)
            self._clock = Clock(sync)
        self._instrument = Instrument(self._clock)
        self._instrument.attach(program)
        self._instrument.add_hook(program.run, "on_update_end", self._go_on)
        self._instrument.add_hook(program.run, "on_train_end", self._finish)
        self._instrument.add_hook(program.run, "on_exception", self._finish)
        self._clock.start()
        self._go_on()

    def _go_on(self) -> None:
        """After an update: go from the warm-up to measuring, and to its end."""
        clock = self._clock
        assert clock is not None
        if self._phase == "warm-up" and clock.num_steps >= self.warmup:
            self._phase = "measure"
            self._num_warmup = clock.num_steps
            clock.restart()
        elif self._phase == "measure" and self.steps is not None and clock.num_steps >= self.steps:
            self._finish()
            self._phase = "over"

    def _finish(self, error: BaseException | None = None) -> None:
        """End measuring: put everything back, and report."""
        instrument = self._instrument
        self._instrument = None
        if instrument is None:
            return
        assert self._clock is not None
        self._clock.charge()
        instrument.detach()
        self.report = self._build()
        if self._program.runtime.is_main:
            self._publish(is_shown=_is_end(error))

    # The report

    def _build(self) -> Report:
        program = self._program
        clock = self._clock
        assert clock is not None
        device = program.runtime.device
        memory = {"process": process_peak()}
        if device.type == "cuda":
            memory["device"] = torch.cuda.max_memory_allocated(device)
        return Report(
            dict(clock.spent),
            num_steps=clock.num_steps,
            last_step=program.progress.step,
            warmup_steps=self._num_warmup,
            num_workers=getattr(program.run.data.given, "num_workers", None),
            num_cores=num_cores(),
            world=program.runtime.world,
            memory=memory,
        )

    def _publish(self, *, is_shown: bool) -> None:
        """Write the report to the run directory, and print it; a failed write is no reason to stop
        a run."""
        assert self.report is not None
        directory = self._program.run.files.directory
        if directory is not None:
            try:
                with staged_file(directory.path / PROFILE) as staged:
                    staged.write_text(json.dumps(self.report.as_dict(), indent=1))
            except OSError as error:
                logger.warning("The profile could not be written: %s", error)
        if is_shown and not self._is_block:
            for line in self.report.lines():
                self._program.run.say(line)


def _is_end(error: BaseException | None) -> bool:
    """Whether a run was ended by a limit, a stop or a signal, not by an error."""
    return error is None or isinstance(error, Interrupted | KeyboardInterrupt)


def num_cores(quota_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The cores that this process may use, by its affinity and the quota of its container."""
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = map(int, Path(quota_file).read_text().split())
        return max(min(allowed, quota // period), 1)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return allowed
