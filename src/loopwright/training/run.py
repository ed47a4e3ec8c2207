"""One run: everything that lives from its first update to its last, over several `train` calls, kills and resumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..callback import Callback, Dispatch, Hook, TrainerHooks
from ..metrics.best import Directions
from ..metrics.history import History
from ..metrics.meter import Meter
from ..metrics.progress import Limits, Progress
from ..runtime import Runtime, Signals
from .components import Components
from .consensus import StopConsensus
from .update import Window
from .updates import Updates

if TYPE_CHECKING:
    from ..checkpoint.tree import Group
    from ..data.stream import Stream
    from ..run import RunDirectory
    from ..run.changes import Change
    from .program import Program, Words
    from .resume import PendingRestore


class TrainingRun:
    """The state of one run. Only `training` writes it; a finder or a dry run makes a fresh one.

    A `train` call goes through these states; each is entered once, in this order:

    | state | what is true | entered in |
    |---|---|---|
    | built | models, optimizers and callbacks exist | `assembly` |
    | identified | the program's fingerprint is known | `resume` |
    | restored | a checkpoint, if there is one, is loaded; the position in the data is `pending` | `resume` |
    | placed | the position in the data and the random generators are those of the next step | `train_call` |
    | training | signals are handled, `on_train_start` was emitted | `train_call` |
    | over | a limit was reached or a stop requested; `on_loop_end` saves, `on_train_end` follows | `train_call` |
    """

    def __init__(
        self,
        program: Program,
        runtime: Runtime,
        components: Components,
        *,
        run_dir: Path | None = None,
        progress_style: str = "auto",
    ) -> None:
        self.program, self.runtime, self.components = program, runtime, components
        self.run_dir, self.progress_style = run_dir, progress_style
        # How far it is
        self.progress, self.history, self.meter = Progress(), History(), Meter()
        self.directions = Directions()
        self.limits = Limits()
        self.num_calls = 0  # of `train`, in this program
        self.eval_seconds = 0.0  # spent in evaluations, which the clock of training leaves out
        # The update under way
        self.window = Window()
        self.optimization = Updates({}, self.window)
        self.num_micro_batches = 1  # that a step is divided into, since memory ran out
        self.skips_nonfinite = False
        # Data
        self.train_data: Any = None
        self.train_stream: Stream | None = None
        self.eval_stream: Stream | None = None
        # Evaluations under way
        self.phases: list[Meter] = []
        self.is_evaluating = False
        # Requests to stop
        self.stop_reason: str | None = None
        self.signals = Signals()
        self.signals.is_shared = runtime.world > 1
        self.consensus: StopConsensus | None = None
        # Files
        self.directory: RunDirectory | None = None
        self.pending: PendingRestore | None = None
        self.fingerprint: dict[str, Any] | None = None  # what the program gave this run to be
        self.accepted: list[Change] = []  # differences between the program and the run that it continues
        self.token = ""  # names the directory in which several processes write a checkpoint together
        # Listeners
        self.callbacks: list[Callback] = []
        self.hooks: dict[str, list[Hook]] = {}

    def fresh(self) -> TrainingRun:
        """A run of the same program that has not begun: without a directory, schedules or output, for an experiment."""
        return TrainingRun(self.program, self.runtime, self.components.without_schedules(), progress_style="silent")

    @property
    def words(self) -> Words:
        """What messages call the user's methods and arguments."""
        return self.program.words

    # Events

    def bind(self, callbacks: Iterable[Callback]) -> None:
        """Work out once which functions each event calls: the trainer's own hook first, then the callbacks'."""
        self.callbacks = list(callbacks)
        program = self.program
        self.hooks = Dispatch(Callback, program, self.callbacks, TrainerHooks, program._trainer_for).hooks

    def emit(self, event: str, *args: Any) -> None:
        """Call the hooks of an event."""
        for hook in self.hooks[event]:
            hook(*args)

    def say(self, line: str) -> None:
        """Print a line on the first process, unless the trainer is silent."""
        if self.progress_style != "silent" and self.runtime.is_main:
            print(line.encode(errors="backslashreplace").decode(), flush=True)  # paths need not be Unicode

    # The end

    def stop(self, reason: str) -> None:
        """Request the end of training after the current update; the first reason stays."""
        self.stop_reason = self.stop_reason or reason

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal requested the end of training."""
        return self.signals.stop is not None and not self.program._defers_signals

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals in this block; several ranks act on a signal at the same update."""
        self.consensus = StopConsensus(self) if self.runtime.world > 1 else None
        with self.signals:
            yield

    def set_limits(self, limits: Limits) -> None:
        """Set the limits of a `train` call, which count from its beginning."""
        self.limits = limits.from_call(self.progress)

    def leave_out_epochs(self, number: int) -> None:
        """Let epochs that were trained not count for the limit of this call."""
        self.progress.call_epoch += number
        epochs = self.limits.epochs
        self.limits = self.limits if epochs is None else replace(self.limits, epochs=epochs + number)

    def is_done(self, limits: Limits | None = None) -> bool:
        """Whether a signal, a stop request or a limit ends training; a stop request once all processes know of it."""
        limits = self.limits if limits is None else limits
        is_stopping = self.stop_reason is not None and (self.consensus is None or self.consensus.has_stop)
        return self.signals.stop is not None or is_stopping or limits.reached(self.progress) is not None

    # Metrics

    def flush(self) -> None:
        """Read the pending step metrics from the device and pass them on: a log point."""
        rows = self.meter.flush_rows(self.progress, self.runtime.sum_table if self.runtime.world > 1 else None)
        self.directions.losses |= self.meter.losses
        self.optimization.check()
        self.program._adopt_replaced()
        if rows:
            self.history.add_steps(rows)
            self.emit("on_log", rows)

    @property
    def current_meter(self) -> Meter:
        """The meter that `log` writes to: of the evaluation under way, else of the epoch."""
        return self.phases[-1] if self.phases else self.meter

    @contextmanager
    def phase(self, meter: Meter) -> Iterator[None]:
        """Make a meter the one that `log` writes to."""
        size = self.window.size  # an evaluation may be nested in a step
        self.phases.append(meter)
        try:
            yield
        finally:
            self.phases.pop()
            self.window.size = size

    @property
    def opened_stream(self) -> Stream:
        """The training data, which a `train` call has opened."""
        assert self.train_stream is not None
        return self.train_stream

    def start_after(self, earlier: Progress, rows: Iterable[Mapping[str, float]]) -> None:
        """Count on from epochs that other runs trained, before the first step; `rows` are theirs in the history."""
        progress = self.progress
        progress.epoch, progress.update, progress.sample = earlier.epoch, earlier.update, earlier.sample
        progress.step = progress.recorded_step = earlier.step
        progress.seconds = earlier.seconds
        for epoch, row in enumerate(rows):
            self.history.set_epoch(epoch, row)

    def epoch_length(self) -> int | None:
        """Batches in an epoch, where that is known."""
        return None if self.train_stream is None else self.train_stream.num_batches

    # Checkpoints

    def capture(self, *, has_history: bool = True) -> dict[str, Any]:
        """Everything that the run needs in order to continue exactly from here; perhaps without the history."""
        from .state import capture

        return capture(self, has_history=has_history)

    def capture_models(self) -> dict[str, Any]:
        """The state dicts of the models by name."""
        from .state import capture_models

        return capture_models(self)

    def return_to(self, state: Mapping[str, Any], source: str) -> None:
        """Go to another moment of this run, whose state `capture` gave; `source` names it in errors."""
        from .state import return_to

        return_to(self, state, source)

    def checkpoint_meta(self) -> dict[str, Any]:
        """What a listing shows of a checkpoint without reading it."""
        from .state import meta_of

        return meta_of(self)

    def writing_group(self) -> Group:
        """This process as one of those that write a checkpoint together."""
        from .state import group_of

        return group_of(self)

    def writing_token(self) -> str:
        """The name of the directory in which the processes write the next checkpoint together."""
        from .state import token_of

        return token_of(self)
