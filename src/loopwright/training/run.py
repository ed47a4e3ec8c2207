"""The state of one run, from its first update to its last, over several `train` calls, kills and
resumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ..callback import Callback, Dispatch, Hook, TrainerHooks
from ..data.order import derive_seed
from ..data.random import OwnGenerators
from ..errors import CheckpointError, ConfigurationError, LoopwrightError
from ..metrics.best import Directions
from ..metrics.history import History
from ..metrics.meter import Meter
from ..metrics.progress import Limits, Progress
from ..metrics.rows import Note, Place
from ..runtime import Runtime, Signals
from .components import Components
from .media_log import MediaLog
from .update import Window
from .updates import Updates

if TYPE_CHECKING:
    from ..checkpoint.sharded import Group
    from ..data.stream import Stream
    from ..run import RunDirectory
    from ..run.changes import Change
    from ..run.manifest import RunFacts
    from .program import MessageNames, Program


# begins the name in a table of metrics that has a digest; those of metrics begin with a number
SETTINGS = "settings "
MAX_NOTES = 1000  # that wait for a recorder; without one they are forgotten


class Measuring:
    """What is being measured: the epoch under way, evaluations in it, and the time they take."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.meter.is_over = True  # until the first epoch begins, or a resumed run is in one
        self.phases: list[Meter] = []  # current evaluations, which may be nested
        self.is_evaluating = False
        self.directions = Directions()
        self.eval_seconds = 0.0  # in evaluations and compiling, which training time excludes
        self.compile_seconds = 0.0  # those of them in compiling, of `compile="step"`


@dataclass(slots=True)
class Call:
    """The `train` call under way and its limits."""

    limits: Limits = field(default_factory=Limits)
    number: int = 0  # of the call, in this program
    # whether the call was finished in the resume point that this process continues
    was_finished: bool = False
    is_trial: bool = False  # whether it is an experiment of a finder, of which nothing stays


@dataclass(slots=True)
class RunData:
    """The data of the call under way: as it was given, and opened."""

    given: Any = None
    train_stream: Stream | None = None
    eval_stream: Stream | None = None


class RunFiles:
    """The directory of a run, what it notes of the program, and what was restored from it."""

    def __init__(self) -> None:
        self.run_dir: Path | None = None
        self.directory: RunDirectory | None = None
        self.label: RunFacts = {}  # the user's name, tags and config of the run
        # describes the program, to compare it when the run is resumed
        self.fingerprint: dict[str, Any] | None = None
        # differences between the program and the run that it continues
        self.accepted: list[Change] = []
        self.pending: SavedPosition | None = None
        from .callback_schedulers import CallbackSchedulers  # with the first run, not the package

        self.callback_schedulers = CallbackSchedulers()
        # names the directory in which several processes write a checkpoint together
        self.token = ""


class Stopping:
    """The requests to end training: of the program, by a signal, and of other processes."""

    def __init__(self, run: TrainingRun) -> None:
        self.reason: str | None = None
        from .waiting import DataWait  # with the first run, not the package

        self.wait = DataWait(run)
        self.signals = Signals(self.wait.request)
        self.signals.is_shared = run.runtime.world > 1
        self.consensus: StopConsensus | None = None


class TrainingRun:
    """The state of one run. Only `training` writes it; a finder makes a fresh one.

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
        progress_style: str = "auto",
        is_trial: bool = False,
    ) -> None:
        self.program = program
        self.runtime = runtime
        self.components = components
        self.progress = Progress()
        self.history = History()
        self.metrics = Measuring()
        self.media = MediaLog(self)
        self.generators = OwnGenerators()
        self.call = Call(is_trial=is_trial)
        self.data = RunData()
        self.files = RunFiles()
        self.stopping = Stopping(self)
        # The current update
        self.window = Window()
        self.updates = Updates({}, self.window)
        self.compiled: Any = None  # with `compile="step"`: a `compiled.CompiledStep`
        self.num_micro_batches = 1  # that a step is divided into, since memory ran out
        self.skips_nonfinite = False
        # Listeners and output
        self.callbacks: list[Callback] = []
        self.hooks: dict[str, list[Hook]] = {}
        self.progress_style = progress_style
        # lines and events that no recorder has taken yet
        self.notes: deque[Note] = deque(maxlen=MAX_NOTES)

    def fresh(self, runtime: Runtime | None = None, compiled: Any = None) -> TrainingRun:
        """Return a new run of the same program, without directory, schedules and output, for an
        experiment."""
        runtime = runtime or self.runtime
        components = self.components.without_schedules()
        run = TrainingRun(self.program, runtime, components, progress_style="silent", is_trial=True)
        run.compiled = compiled
        return run

    @property
    def message_names(self) -> MessageNames:
        """The names of the user's methods and arguments in messages."""
        return self.program._message_names

    # Random numbers

    def own_generators(self) -> AbstractContextManager[None]:
        """Context of a call that draws from the run's own generators; afterwards the program's are
        as before."""
        return self.generators.in_use(follows_program=self.program.seed is None)

    @property
    def rank_seed(self) -> int | None:
        """The seed of this rank's random numbers in steps; None where they begin at the program's
        generators."""
        seed = self.program.seed
        rank = self.runtime.sample_rank
        return seed if seed is None or rank == 0 else derive_seed(seed, rank)

    # Events

    def bind(self, callbacks: Iterable[Callback]) -> None:
        """Prepare the functions that each event calls: the trainer's own hook first, then those of
        the callbacks."""
        self.callbacks = list(callbacks)
        program = self.program
        self.hooks = Dispatch(
            Callback, program, self.callbacks, TrainerHooks, program._trainer_given_to
        ).hooks

    def emit(self, event: str, *args: Any) -> None:
        """Call the hooks of an event."""
        for hook in self.hooks[event]:
            hook(*args)

    def say(self, line: str) -> None:
        """Print a line on the first process, unless the trainer is silent; a recorder takes it in
        any case."""
        self.notes.append(Note("line", line, time(), self.place()))
        if self.progress_style != "silent" and self.runtime.is_main:
            # paths need not be Unicode
            print(line.encode(errors="backslashreplace").decode(), flush=True)

    def note(self, event: str, summary: str = "", /, **detail: Any) -> None:
        """Note an event of the run for a recorder: an evaluation, a kept model, smaller
        micro-batches."""
        self.notes.append(Note(event, summary, time(), self.place(), detail))

    def place(self) -> Place:
        """Return the position in the run: update, step, epoch, samples, seconds; a step under way
        counts."""
        at = self.progress
        stage = self.window.stage
        size = self.window.size * self.runtime.num_shares if stage == "step" else 0
        return (
            at.update + (stage != ""),
            at.step + (stage == "step"),
            at.epoch,
            at.sample + size,
            at.seconds,
        )

    # The end

    def stop(self, reason: str) -> None:
        """Request the end of training after the current update; the first reason stays."""
        self.stopping.reason = self.stopping.reason or reason

    def train_on(self) -> None:
        """Drop the reason for which an earlier `train` call or process had stopped."""
        self.stopping.reason = None

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal requested the end of training."""
        return self.stopping.signals.stop is not None and not self.program._defers_signals

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle signals in this block; several ranks act on a signal at the same update.

        A block inside of such a block, as of an interface whose user wrote the loop, changes
        nothing.
        """
        if self.stopping.signals.is_handling:
            yield
            return
        self.stopping.consensus = StopConsensus(self) if self.runtime.world > 1 else None
        with self.stopping.wait, self.stopping.signals:
            yield

    def set_limits(self, limits: Limits) -> None:
        """Set the limits of a `train` call, which count from its beginning."""
        self.call.limits = limits.from_call(self.progress)

    def leave_out_epochs(self, number: int) -> None:
        """Let epochs that were trained not count for the limit of this call."""
        self.progress.call_epoch += number
        epochs = self.call.limits.epochs
        self.call.limits = (
            self.call.limits
            if epochs is None
            else replace(self.call.limits, epochs=epochs + number)
        )

    def is_done(self, limits: Limits | None = None) -> bool:
        """Whether a signal, a stop request or a limit ends training; a stop request counts once all
        ranks have it."""
        if self.stopping.signals.stop is not None:
            return True
        if self.stopping.reason is not None and (
            self.stopping.consensus is None or self.stopping.consensus.has_stop
        ):
            return True
        return (self.call.limits if limits is None else limits).reached(self.progress) is not None

    # Metrics

    def sum_and_compare(
        self, table: Mapping[str, tuple[float, float]]
    ) -> dict[str, tuple[float, float]]:
        """Sum a table of metrics over all processes; raise on all of them if their settings differ.

        It is called when an epoch begins and at log points. A checkpoint is a log point, so none
        has weights that differ between processes.
        """
        settings = self.updates.settings(self.components.modules)
        key = f"{SETTINGS}{crc32(repr(list(settings.values())).encode())}"
        total = self.runtime.sum_table({**table, key: (1.0, 1.0)})
        digests = [name for name in total if name.startswith(SETTINGS)]
        for name in digests:
            del total[name]
        if len(digests) > 1:
            from ..run.changes import differing_by_rank, listed_by_rank

            differing = differing_by_rank(self.runtime.gather_objects(settings))
            raise ConfigurationError(
                "different-settings",
                "The processes train with different settings, so their weights would differ (after "
                f"update {self.progress.update}):{listed_by_rank(differing)}\nChange settings on "
                "every process in the same way: not under a condition on the rank, nor on a loss "
                "or metric of one process.",
            )
        return total

    def flush(self) -> None:
        """Read the pending step metrics from the device and emit `on_log`: a log point."""
        rows = self.metrics.meter.flush_rows(
            self.progress, self.sum_and_compare if self.runtime.world > 1 else None
        )
        self.metrics.directions.losses |= self.metrics.meter.losses
        self.updates.check()
        self.program._adopt_replaced()
        if rows:
            self.history.add_steps(rows)
            self.emit("on_log", rows)

    @property
    def current_meter(self) -> Meter:
        """The meter that `log` writes to: that of the current evaluation, else of the epoch."""
        return self.metrics.phases[-1] if self.metrics.phases else self.metrics.meter

    def log(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the evaluation or epoch under way; where there is none, they have no row
        to be in."""
        self.current_meter.log(values)  # first: a value that is none is the mistake to tell of
        if not self.metrics.phases and self.metrics.meter.is_over and not self.progress.in_epoch:
            raise ConfigurationError(
                "log-outside-epoch",
                f"log({', '.join(map(str, values))}): no epoch or evaluation is in progress, so "
                "the value would be lost. For a metric of the epoch, call it in a step or in "
                "on_train_epoch_end (when on_epoch_end is called, the row of the epoch is "
                "already written); before or after training, use log_text or log_table.",
            )

    @contextmanager
    def phase(self, meter: Meter) -> Iterator[None]:
        """Make a meter the one that `log` writes to."""
        size = self.window.size  # an evaluation may be nested in a step
        self.metrics.phases.append(meter)
        try:
            yield
        finally:
            self.metrics.phases.pop()
            self.window.size = size

    @property
    def opened_stream(self) -> Stream:
        """The training data, which a `train` call has opened."""
        assert self.data.train_stream is not None
        return self.data.train_stream

    def start_after(self, earlier: Progress, rows: Iterable[Mapping[str, float]]) -> None:
        """Count on from epochs that other runs trained, before the first step; `rows` are theirs in
        the history."""
        progress = self.progress
        progress.epoch = earlier.epoch
        progress.update = earlier.update
        progress.sample = earlier.sample
        progress.step = progress.recorded_step = earlier.step
        progress.seconds = earlier.seconds
        for epoch, row in enumerate(rows):
            self.history.set_epoch(epoch, row)

    def epoch_length(self) -> int | None:
        """Batches in an epoch, where that is known."""
        return None if self.data.train_stream is None else self.data.train_stream.num_batches

    def identify(self, description: dict[str, Any]) -> None:
        """Take over a description of the program, where no `train` call of the core has made
        one."""
        self.files.fingerprint = description

    # Checkpoints

    def capture_models(self) -> dict[str, Any]:
        """Return the state dicts of the models by name."""
        return {name: model.state_dict() for name, model in self.components.models.items()}

    def checkpoint_meta(self) -> dict[str, Any]:
        """Return the metadata that listings of checkpoints show."""
        at = self.progress
        return {"epoch": at.epoch, "step": at.step, "update": at.update, "sample": at.sample}

    def writing_group(self) -> Group:
        """Return the group of processes that write a checkpoint, with the rank of this one."""
        from ..checkpoint.sharded import Group

        return Group(self.runtime.rank, self.runtime.world)

    def writing_token(self) -> str:
        """Return the name of the directory in which all processes write the next checkpoint."""
        if self.runtime.world > 1 and not self.files.token:
            from ..checkpoint.atomic import new_token

            self.files.token = self.runtime.broadcast_object(new_token())
        return self.files.token


class StopConsensus:
    """The requests of all ranks to stop or to save, one update late, so that no rank waits for
    another."""

    def __init__(self, run: TrainingRun) -> None:
        self.clock = run.progress.seconds
        self.has_stop = False

    def after_update(self, run: TrainingRun) -> None:
        """Exchange requests: act on all ranks' requests of the previous update, and set the clock
        to that of rank 0."""
        signals = run.stopping.signals
        runtime = run.runtime
        progress = run.progress
        runtime.finish_update(run.components.modules.values())
        clock = int(progress.seconds * 1e6) if runtime.is_main else 0
        requests = (
            signals.requested or 0,
            int(run.stopping.reason is not None),
            int(signals.take_save()),
            clock,
        )
        stop, has_stop, save, clock = runtime.exchange(requests)
        self.clock = progress.seconds = max(self.clock, clock / 1e6)
        signals.wants_save = bool(save)
        if stop:
            signals.stop = stop
        if has_stop:
            self.on_stop(run)

    def on_stop(self, run: TrainingRun) -> None:
        """Take over the reason to stop of another rank; all ranks have to call this at the same
        update."""
        reasons = run.runtime.gather_objects(run.stopping.reason)
        run.stopping.reason = next((reason for reason in reasons if reason is not None), None)
        self.has_stop = run.stopping.reason is not None


@dataclass(slots=True)
class SavedPosition:
    """The part of a checkpoint that waits until data and updates exist, in the next `train` call."""

    data: dict[str, Any] | None
    eval_data: dict[str, Any] | None = None
    rng: dict[str, Any] | None = None
    updates: dict[str, Any] | None = None  # the counters of each optimizer, until they are restored
    fingerprint: dict[str, Any] | None = None

    def restore_updates(self, run: TrainingRun) -> None:
        """Restore the counters of each optimizer, as soon as there are updates."""
        if self.updates is not None and run.updates.by_name:
            run.updates.load_state_dict(self.updates)
            self.updates = None

    def restore_rng(self, run: TrainingRun) -> None:
        """Restore the random generators of the run."""
        if self.rng is not None:
            run.generators.restore(self.rng)

    def place(self, run: TrainingRun, stream: Stream) -> None:
        """Restore the positions in the data, then the random generators, since opening data may use
        them."""
        if self.data is not None:
            seek(stream, self.data)
        if self.eval_data is not None and run.data.eval_stream is not None:
            seek(run.data.eval_stream, self.eval_data)
        self.restore_rng(run)


def seek(stream: Stream, state: dict[str, Any]) -> None:
    """Restore a saved position in the data."""
    try:
        stream.load_state_dict(state)
    except LoopwrightError:
        raise
    except Exception as error:  # any error of a damaged state, or of a user's own load_state_dict
        raise CheckpointError(
            "wrong-data-position",
            f"The data position in the checkpoint cannot be used ({type(error).__name__}: "
            f"{error}): use another checkpoint, or start a new run.",
        ) from error
