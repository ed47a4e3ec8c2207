"""The loop: the only place where training data is iterated. It knows no devices, no files and no
printing.

`open_steps` is a generator of steps, and its caller computes each of them: the core by `train_step`
(`train_steps`), a interface by the stages of its document, a user loop by its own body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from ..data.stream import may_be_left, waits_for_data
from ..errors import DataError, Rewinding, WaitInterrupted
from ..metrics.result import StepResult
from .evaluate import evaluate
from .out_of_memory import redo_window, step_in_micro_batches
from .step_checks import SchedulerWatch, check_clipping, check_skipped

if TYPE_CHECKING:
    from ..data.stream import Batch, Stream
    from ..metrics.progress import Limits, Progress
    from .run import TrainingRun

NOTHING = StepResult(size=0)  # the result of a process without a sample of the batch
FLUSH_STEPS = 512
FLUSH_SECONDS = 0.25


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """A batch that is being trained on, at its position in the accumulation window.

    Whoever computes the step sets `result`, and `is_last` if it will ask for no more steps of this
    epoch.
    """

    batch: Any
    size: int
    window: Sequence[Batch]
    position: int
    result: StepResult = NOTHING
    is_last: bool = False


def train(run: TrainingRun, one_epoch: Callable[[], None] | None = None) -> None:
    """Train epochs until a limit is reached or a stop is requested; `one_epoch` takes the place of
    the program's own.

    A run that was killed after its last update, before that was evaluated, has only the end of its
    epoch to do.
    """
    one_epoch = one_epoch or run.program._train_epoch
    if run.progress.is_unrecorded and run.is_done():
        one_epoch()
    while not run.is_done():
        one_epoch()


def train_epoch(
    run: TrainingRun, stream: Stream | None = None, limits: Limits | None = None
) -> None:
    """Train one epoch, or the rest of it: its steps, an evaluation, and its row in the history.

    A signal leaves it where it is: a resumed run takes the remaining steps, or the evaluation, from
    there. Stream and limits are those of the run, unless others are given.
    """
    begin_epoch(run, stream)
    train_steps(run, stream, limits)
    end_steps(run)
    measured: dict[str, float] = {}
    if run.data.eval_stream is not None and not run.is_interrupted:
        measured = evaluate(run, run.data.eval_stream)
    if not run.is_interrupted:
        record_epoch(run, measured)


def begin_epoch(run: TrainingRun, stream: Stream | None = None) -> None:
    """Start an epoch, unless a resumed run is in it already."""
    if not run.progress.in_epoch:
        (run.opened_stream if stream is None else stream).begin(run.progress.epoch)
        run.metrics.meter = run.metrics.meter.fresh()
        run.updates.start_epoch()
        run.emit("on_epoch_start")
    run.program._adopt_replaced()
    run.updates.refresh(run.components.modules.values())
    if run.stopping.consensus is not None:
        run.sum_and_compare({})


def end_steps(run: TrainingRun) -> None:
    """Read the metrics of the steps; if the data is exhausted, emit `on_train_epoch_end`."""
    run.flush()
    if run.skips_nonfinite or run.runtime.precision == "fp16":
        run.metrics.meter.log({"skipped_updates": run.updates.num_skipped})
    if run.progress.is_exhausted and not run.is_interrupted:
        run.media.end_steps()
        run.emit("on_train_epoch_end")


def record_epoch(run: TrainingRun, measured: Mapping[str, float]) -> None:
    """Write the epoch's row in the history; if the data is exhausted, end the epoch."""
    progress = run.progress
    runtime = run.runtime
    row = run.metrics.meter.compute(
        runtime.sum_table, is_final=progress.is_exhausted, gather=runtime.gather_samples
    )
    row |= {f"eval_{name}": value for name, value in measured.items()}
    run.history.set_epoch(progress.epoch, row)
    progress.recorded_step = progress.step
    if run.updates.num_skipped:
        check_skipped(run)
    if progress.is_exhausted:
        if progress.epoch == 0:
            run.program._check_trained()
        run.metrics.meter.is_over = True
        progress.next_epoch()
        run.program._schedule_epoch(row)
        schedules = SchedulerWatch(run.components.schedules)
        run.emit("on_epoch_end", row)
        schedules.check("on_epoch_end")
        if run.stopping.consensus is not None:
            run.stopping.consensus.on_stop(run)


def train_steps(
    run: TrainingRun, stream: Stream | None = None, limits: Limits | None = None
) -> None:
    """Train the steps of an epoch up to its end or a limit; after a rewind, continue from the
    restored step."""
    watch = run.program._watch_steps()
    with nullcontext() if watch is None else watch:
        while True:
            try:
                compute_steps(run, watch, open_steps(run, stream, limits))
                break
            except Rewinding as rewinding:
                undo = rewinding.undo
            undo()
    if watch is not None:
        watch.end_epoch()


def compute_steps(run: TrainingRun, watch: Any, steps: Iterable[Step]) -> None:
    """Compute each step by the trainer's `train_step`, in micro-batches once memory has run out."""
    autocast = run.runtime.autocast
    train_step = step_function(run)
    call = (
        partial(check_clipping, run, train_step)
        if run.progress.step == 0 and run.compiled is None
        else train_step
    )
    for step in steps:
        try:
            with autocast:
                result = call(step.batch)
            # as the trainer's own step returns it
            is_ready = type(result) is StepResult and result.size is not None
            step.result = result if is_ready else StepResult.of(result, step.size)
        except torch.OutOfMemoryError as error:
            step.result = redo_window(run, step.window, step.position, error)
            train_step = step_function(run)
        call = train_step
        if watch is not None:
            watch.after_step(step.result, step.position)


def step_function(run: TrainingRun) -> Callable[[Any], Any]:
    """`train_step`, or the compiled step, or, once memory has run out, `train_step` in
    micro-batches."""
    if run.num_micro_batches > 1:
        return partial(step_in_micro_batches, run)
    return run.program.train_step if run.compiled is None else run.compiled.step_function(run)


def open_steps(
    run: TrainingRun, stream: Stream | None = None, limits: Limits | None = None
) -> Iterator[Step]:
    """Yield the steps of an epoch up to its end or a limit; the caller computes each one.

    A step is over when the next one is asked for: then it is counted and measured, and an update
    follows the last step of a window of `accumulate` batches. After a step with `is_last` there are
    no more.
    """
    progress = run.progress
    meter = run.metrics.meter
    window = run.window
    stream = run.opened_stream if stream is None else stream
    limits = run.call.limits if limits is None else limits
    step_starts = run.hooks["on_train_step_start"]
    step_ends = run.hooks["on_train_step_end"]
    update_ends = run.hooks["on_update_end"]
    feed = run.program._open_feed(stream)
    prepare_batch = run.program.prepare_batch if feed is None else feed.get
    started = monotonic() - run.metrics.eval_seconds
    seconds = progress.seconds
    flushed = progress.seconds
    flushed_step = progress.step
    num_shares = run.runtime.num_shares
    consensus = run.stopping.consensus
    if run.is_done(limits):
        progress.is_exhausted = _has_given_all(progress, stream)
        return
    for batches in take_windows(run, stream, limits):
        divisors = shares(batches, num_shares)
        window.has_stepped = False
        for position, (value, size, total) in enumerate(batches, start=1):
            window.divisor = divisors[position - 1]
            window.is_last = position == len(batches)
            window.size = size
            if consensus is not None:
                run.runtime.start_step(window.is_last, size)
            window.stage = "step"
            step = Step(prepare_batch(value), size, batches, position)
            for hook in step_starts:
                hook(step.batch)
            if feed is not None:
                feed.start(_value_after(run, batches, position, stream, limits))
            yield step
            window.stage = "update"
            progress.next_step(size if total is None else total)
            meter.add(step.result if size or total is None else NOTHING, progress)
            for hook in step_ends:
                hook(step.batch, step.result)
            if step.is_last and not window.is_last:
                run.updates.reset()  # the window stays incomplete
                window.stage = ""
                progress.is_exhausted = True
                return
            is_last = step.is_last
            del step
        window.stage = ""
        progress.next_update()
        progress.seconds = seconds + monotonic() - run.metrics.eval_seconds - started
        if consensus is not None:
            consensus.after_update(run)
        for hook in update_ends:
            hook()
        if (
            progress.seconds - flushed > FLUSH_SECONDS
            or progress.step - flushed_step >= FLUSH_STEPS
        ):
            flushed = progress.seconds
            flushed_step = progress.step
            run.flush()
        if is_last or run.is_done(limits):
            progress.is_exhausted = is_last or (
                not run.is_interrupted and _has_given_all(progress, stream)
            )
            return


@waits_for_data
@may_be_left
def take_windows(run: TrainingRun, stream: Stream, limits: Limits) -> Iterator[list[Batch]]:
    """Yield the epoch's batches in groups of `accumulate`; the last group may be shorter.

    A signal ends it while it waits: nothing of the group was trained, and the position is that of
    the last update.
    """
    progress = run.progress
    is_limited = limits.samples is not None
    stream.leave_when(run.stopping.wait)
    try:
        while batches := stream.take(
            run.program.accumulate, limits.samples_left(progress) if is_limited else None
        ):
            yield batches
    except WaitInterrupted:
        return
    _check_length(progress, stream)
    progress.is_exhausted = True


@waits_for_data
def _value_after(
    run: TrainingRun, batches: list[Batch], position: int, stream: Stream, limits: Limits
) -> Any:
    """Return the batch after this one, as far as it is known before this step; None where none will
    be trained."""
    if position < len(batches):
        return batches[position].value
    progress = run.progress
    (_, size, total) = batches[-1]
    left = limits.samples_left(progress)
    if left is not None:
        left -= size if total is None else total
    is_last = (limits.updates is not None and progress.update + 1 >= limits.updates) or (
        left is not None and left <= 0
    )
    return None if is_last or run.is_done(limits) else stream.upcoming(left)


def shares(batches: list[Batch], num_shares: int) -> list[float]:
    """Return the divisor of each step's mean loss that makes the window's gradient the mean over
    all its samples.

    Gradients are averaged over processes, hence the factor `num_shares`. A process without samples
    has weight 0.
    """
    if len(batches) == 1 and batches[0].total is None:
        return [1.0]
    total = sum(batch.size if batch.total is None else batch.total for batch in batches)
    return [total / (batch.size * num_shares) if batch.size else inf for batch in batches]


def _has_given_all(progress: Progress, stream: Stream) -> bool:
    """Whether an epoch of known length is complete: by samples, since a limit may have cut a batch
    in two."""
    if stream.num_samples is not None:
        return progress.epoch_sample >= stream.num_samples
    return progress.epoch_step == stream.num_batches


def _check_length(progress: Progress, stream: Stream) -> None:
    """Raise if an epoch had no batches, or fewer than its length: this is an error and not the end
    of training."""
    if progress.epoch_step == 0:
        reason = "is empty in this epoch; an iterator can be used only once"
        remedy = (
            "an object that can be iterated in every epoch: a data set, a list, or an object "
            "whose `__iter__` starts from the beginning"
        )
        if progress.epoch == 0:
            reason = "is empty"
            remedy = "a data set or loader with at least one batch"
            remedy += " (is `drop_last` on with fewer samples than a batch?)"
        raise DataError(
            "empty-training-data",
            f"The training data {reason} (epoch {progress.epoch + 1}): pass {remedy}.",
        )
    if stream.num_batches is not None and progress.epoch_step < stream.num_batches:
        raise DataError(
            "data-ended-early",
            f"The training data ended early: {progress.epoch_step} batches in epoch "
            f"{progress.epoch + 1}, but its length is {stream.num_batches}. Correct its "
            "`__len__`, or remove it to train on data of any length.",
        )
