"""`Profile`: where the time of a run goes, and what torch's own profiler records of a few steps."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from .._torch_compat import dump_memory_snapshot, record_memory
from ..callback import Callback, surrounding
from ..callbacks.measuring import process_peak
from ..checkpoint.atomic import staged_file
from ..errors import ConfigurationError, Interrupted, check_number, public
from ..run.files import PROFILE
from .clock import Clock
from .instrument import Instrument, is_timed, program_of
from .report import NANOSECONDS, Report

if TYPE_CHECKING:
    from ..callback import Trainer

logger = logging.getLogger("loopwright")
NUM_STEPS = 3  # of a trace
NUM_OPERATORS = 10
IS_LINUX = hasattr(os, "sched_getaffinity")  # which says how many cores this process may use
Phase = Literal["warm-up", "trace", "measure", "over"]


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
        trace: Write a trace of 3 steps by torch's profiler: True for `trace.json` in the run
            directory, or a path. These steps come after the warm-up and are not counted.
        memory: Record which operators of these 3 steps allocate the most memory; on CUDA, a memory
            snapshot too.
        sync_every: On an accelerator, wait for it in every n-th step; the parts of a step are
            measured in these.

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
    def __init__(
        self,
        warmup: int = 3,
        steps: int | None = None,
        *,
        trace: bool | str | Path = False,
        memory: bool = False,
        sync_every: int = 10,
    ) -> None:
        check_number("Profile(warmup", warmup, least=0, of="steps")
        check_number("Profile(sync_every", sync_every, least=1, of="steps")
        if steps is not None:
            check_number("Profile(steps", steps, least=1, of="steps")
        self.warmup = warmup
        self.steps = steps
        self.trace = trace
        self.memory = memory
        self.sync_every = sync_every
        self._instrument: Instrument | None = None  # while a run is measured
        self._is_block = False
        self._reset(None)

    def _reset(self, program: Any) -> None:
        """Begin with a program; what another one took is not in its report."""
        self._program = program
        self.report: Report | None = None
        self._phase: Phase = "warm-up"
        self._clock: Clock | None = None
        self._recording: Recording | None = None
        # nanoseconds and steps before measuring
        self._earlier = 0
        self._num_warmup = 0
        self._first_sample = 0
        self._num_samples = 0

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON, as in `profile.json`; empty before there is one."""
        return {} if self.report is None else self.report.as_dict()

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
        self._first_sample = program.progress.sample
        self._recording = self._recording or self._recording_of(program)
        if self._clock is None:
            device = program.runtime.device
            sync = None if device.type == "cpu" else partial(torch.accelerator.synchronize, device)
            self._clock = Clock(sync, self.sync_every)
        self._instrument = Instrument(self._clock)
        self._instrument.attach(program)
        self._instrument.add_hook(program.run, "on_update_end", self._go_on)
        self._instrument.add_hook(program.run, "on_train_end", self._finish)
        self._instrument.add_hook(program.run, "on_exception", self._finish)
        self._clock.start(after_gap=self._is_block)
        self._go_on()

    def _go_on(self) -> None:
        """After an update: go from the warm-up to the trace, from there to measuring, and to its
        end."""
        clock = self._clock
        assert clock is not None
        if self._phase == "warm-up" and clock.num_steps >= self.warmup:
            self._phase = "measure" if self._recording is None else "trace"
            self._num_warmup = clock.num_steps
            self._restart()
            if self._recording is not None:
                self._recording.start()
        elif self._phase == "trace" and clock.num_steps >= NUM_STEPS:
            self._stop_recording()
            self._phase = "measure"
            self._restart()
        elif self._phase == "measure" and self.steps is not None and clock.num_steps >= self.steps:
            self._finish()
            self._phase = "over"

    def _restart(self) -> None:
        assert self._clock is not None
        self._earlier += self._clock.restart()
        self._first_sample = self._program.progress.sample
        self._num_samples = 0

    def _finish(self, error: BaseException | None = None) -> None:
        """End measuring: put everything back, and report."""
        instrument = self._instrument
        self._instrument = None
        if instrument is None:
            return
        assert self._clock is not None
        self._clock.stop()
        instrument.detach()
        self._stop_recording()
        self._num_samples += self._program.progress.sample - self._first_sample
        self._first_sample = self._program.progress.sample
        self.report = self._build()
        if self._program.runtime.is_main:
            self._publish(is_shown=_is_end(error))

    # The report

    def _build(self) -> Report:
        program = self._program
        clock = self._clock
        assert clock is not None
        device = program.runtime.device
        memory: dict[str, Any] = {"process": process_peak()}
        if device.type == "cuda":
            memory["device"] = torch.cuda.max_memory_allocated(device)
        files = {}
        if self._recording is not None:
            if self._recording.operators:
                memory["operators"] = self._recording.operators
            files = {what: self._shown(path) for what, path in self._recording.files.items()}
        return Report(
            dict(clock.spent),
            num_steps=clock.num_steps,
            num_samples=self._num_samples,
            last_step=program.progress.step,
            warmup_steps=self._num_warmup,
            warmup_seconds=self._earlier / NANOSECONDS,
            device=str(device),
            num_workers=getattr(program.run.data.given, "num_workers", None),
            num_cores=len(os.sched_getaffinity(0)) if IS_LINUX else os.cpu_count(),
            world=program.runtime.world,
            sampled_every=None if device.type == "cpu" else self.sync_every,
            memory=memory,
            files=files,
        )

    def _publish(self, *, is_shown: bool) -> None:
        """Write the report to the run directory, and print it; a failed write is no reason to stop
        a run."""
        assert self.report is not None
        if self._directory is not None:
            try:
                with staged_file(self._directory / PROFILE) as staged:
                    staged.write_text(json.dumps(self.report.as_dict(), indent=1))
            except OSError as error:
                logger.warning("The profile could not be written: %s", error)
        if is_shown and not self._is_block:
            for line in self.report.lines():
                self._program.run.say(line)

    @property
    def _directory(self) -> Path | None:
        directory = self._program.run.files.directory
        return None if directory is None else Path(directory.path)

    def _recording_of(self, program: Any) -> Recording | None:
        if not (self.trace or self.memory) or not program.runtime.is_main:
            return None
        folder = self._directory
        trace = None
        if isinstance(self.trace, str | Path):
            trace = Path(self.trace)
            folder = trace.parent
        elif self.trace:
            if folder is None:
                raise ConfigurationError(
                    "trace-without-folder",
                    "Profile(trace=True) writes to the run directory, but there is none: pass "
                    "`run_dir=` to the trainer, or a path: Profile(trace='trace.json').",
                )
            trace = folder / "trace.json"
        has_snapshot = self.memory and folder and program.runtime.device.type == "cuda"
        snapshot = folder / "memory.pickle" if folder and has_snapshot else None
        return Recording(program.runtime.device, trace, self.memory, snapshot)

    def _stop_recording(self) -> None:
        if self._recording is not None:
            try:
                self._recording.stop()
            except OSError as error:
                logger.warning("The trace could not be written: %s", error)

    def _shown(self, path: Path) -> str:
        directory = self._directory
        if directory is not None and path.is_relative_to(directory):
            path = path.relative_to(directory)
        return str(path)


def _is_end(error: BaseException | None) -> bool:
    """Whether a run was ended by a limit, a stop or a signal, not by an error."""
    return error is None or isinstance(error, Interrupted | KeyboardInterrupt)


class Recording:
    """Records a few steps for a trace file, and for the memory of operators or (on CUDA) a memory
    snapshot.

    Args:
        device: The device of the run.
        trace: The file of the chrome trace; None for no trace.
        memory: Whether to record memory.
        snapshot: The file of the memory snapshot, which only CUDA has; None for none.
    """

    def __init__(
        self, device: torch.device, trace: Path | None, memory: bool, snapshot: Path | None
    ) -> None:
        self.device = device
        self.trace = trace
        self.memory = memory
        self.snapshot = snapshot
        self.operators: list[dict[str, Any]] = []  # that allocated the most
        self.files: dict[str, Path] = {}  # that were written, by what they are
        self._profiler: Any = None

    def start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        if self.snapshot is not None:
            record_memory(True)
        kinds = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=kinds, profile_memory=self.memory)
        self._profiler.start()

    def stop(self) -> None:
        """End the recording and write its files."""
        profiler = self._profiler
        self._profiler = None
        if profiler is None:
            return
        profiler.stop()
        if self.memory:
            self.operators = _largest(profiler.key_averages())
        if self.snapshot is not None:
            dump_memory_snapshot(str(self.snapshot))
            record_memory(False)
            self.files["memory snapshot"] = self.snapshot
        if self.trace is not None:
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self.trace))
            self.files["trace"] = self.trace


def _largest(events: Any) -> list[dict[str, Any]]:
    """The operators that allocated the most, with the bytes of all their calls."""
    found = []
    for event in events:
        allocated = event.self_cpu_memory_usage + event.self_device_memory_usage
        if allocated > 0:
            found.append({"name": event.key, "bytes": allocated, "calls": event.count})
    return sorted(found, key=lambda one: -one["bytes"])[:NUM_OPERATORS]
