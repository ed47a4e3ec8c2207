"""The loop: the only place where training data is iterated. It knows no devices, no files and no printing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from ..callback import Rewinding
from ..data.random import preserved_rng
from ..errors import ConfigurationError, DataError
from ..metrics.meter import Meter
from .out_of_memory import redo_window, step_function
from .result import StepResult

if TYPE_CHECKING:
    from ..data.open import Batch, Stream
    from ..trainer import Trainer
    from .progress import Limits, Progress
    from .step_checks import StepWatch

NOTHING = StepResult(size=0)  # what was measured by a process that had no sample of a batch
FLUSH_STEPS = 512
FLUSH_SECONDS = 0.25
MEASURING = ("on_eval_step_end", "on_eval_end")  # where metrics can be logged besides `eval_step`


@dataclass(slots=True)
class Step:
    """A batch that is being trained on, at its position in the window; whoever computes it sets the result.

    `is_left` says that no more steps of this epoch will be asked for.
    """

    batch: Any
    size: int
    window: Sequence[Batch]
    position: int
    result: StepResult = NOTHING
    is_left: bool = False


def train(trainer: Trainer, stream: Stream, until: Limits) -> None:
    """Epochs until a limit is reached or someone asks to stop.

    A run that was killed after its last update, before that was evaluated, has only the end of its epoch to do.
    """
    if trainer.progress.is_unrecorded and trainer.is_done(until):
        trainer.run_epoch(stream, until)
    while not trainer.is_done(until):
        trainer.run_epoch(stream, until)


def train_epoch(trainer: Trainer, stream: Stream, until: Limits) -> None:
    """One epoch, or what is left of it: its steps, an evaluation, and its row in the history.

    A signal leaves it where it is: a resumed run takes the remaining steps, or the evaluation, from there.
    """
    begin_epoch(trainer, stream)
    take_steps(trainer, stream, until)
    trainer.flush()
    if trainer.progress.is_exhausted and not trainer.is_interrupted:
        trainer.emit("on_train_epoch_end")
    measured: dict[str, float] = {}
    if trainer.eval_stream is not None and not trainer.is_interrupted:
        measured = evaluate(trainer, trainer.eval_stream)
    if not trainer.is_interrupted:
        record_epoch(trainer, measured)


def begin_epoch(trainer: Trainer, stream: Stream) -> None:
    """Start an epoch, unless a resumed run is in it already."""
    progress = trainer.progress
    if not progress.in_epoch:
        stream.begin(progress.epoch)
        trainer.meter = trainer.meter.fresh()
        trainer.emit("on_epoch_start")
    trainer.adopt_replaced()
    trainer.optimization.refresh(trainer.modules.values())


def record_epoch(trainer: Trainer, measured: Mapping[str, float]) -> None:
    """Write the epoch's row in the history; when its data is exhausted it is over."""
    progress, runtime = trainer.progress, trainer.runtime
    row = trainer.meter.compute(runtime.sum_table, is_final=progress.is_exhausted, gather=runtime.gather_samples)
    row |= {f"eval_{name}": value for name, value in measured.items()}
    trainer.history.set_epoch(progress.epoch, row)
    progress.recorded_step = progress.step
    if progress.is_exhausted:
        if progress.epoch == 0:
            trainer.check_trained()
        progress.next_epoch()
        trainer.schedule_epoch(row)
        trainer.emit("on_epoch_end", row)
        if trainer.accord is not None:
            trainer.accord.on_stop(trainer)


def take_steps(trainer: Trainer, stream: Stream, until: Limits) -> None:
    """The steps of an epoch to its end or a limit; where a callback asks to go back, again from there."""
    watch = trainer.watch_steps()
    with watch or nullcontext():
        while True:
            try:
                deque(train_steps(trainer, stream, until, watch), maxlen=0)
                break
            except Rewinding as rewinding:
                undo = rewinding.undo
            undo()
    if watch is not None:
        watch.end_epoch()


def train_steps(
    trainer: Trainer, stream: Stream, until: Limits, watch: StepWatch | None = None
) -> Iterator[StepResult]:
    """One result per batch, each computed by `train_step`."""
    autocast, train_step = trainer.runtime.autocast, step_function(trainer)
    for step in open_steps(trainer, stream, until):
        try:
            with autocast:
                step.result = StepResult.of(train_step(step.batch), step.size)
        except torch.OutOfMemoryError as error:
            step.result = redo_window(trainer, step.window, step.position, error)
            train_step = step_function(trainer)
        if watch is not None:
            watch.after_step(step.result, step.position)
        yield step.result


def open_steps(trainer: Trainer, stream: Stream, until: Limits) -> Iterator[Step]:
    """The steps of an epoch to its end or a limit, for whoever computes them.

    A step is over when the next one is asked for. An update follows every window of `accumulate` batches. After a step
    with `is_left` there are no more.
    """
    progress, meter, window = trainer.progress, trainer.meter, trainer.window
    step_starts, step_ends = trainer.hooks["on_train_step_start"], trainer.hooks["on_train_step_end"]
    update_ends = trainer.hooks["on_update_end"]
    started, seconds, flushed = monotonic() - trainer.eval_seconds, progress.seconds, progress.seconds
    num_shares, accord = trainer.runtime.num_shares, trainer.accord
    if trainer.is_done(until):
        progress.is_exhausted = _has_given_all(progress, stream)
        return
    for batches in take_windows(trainer, stream, until):
        divisors = shares(batches, num_shares)
        window.is_spent = False
        for position, (value, size, total) in enumerate(batches, start=1):
            window.divisor = divisors[position - 1]
            window.is_last = position == len(batches)
            window.size = size
            if accord is not None:
                trainer.runtime.start_step(window.is_last, size)
            step = Step(trainer.prepare_batch(value), size, batches, position)
            for hook in step_starts:
                hook(step.batch)
            yield step
            progress.next_step(size if total is None else total)
            meter.add(step.result if size or total is None else NOTHING)
            for hook in step_ends:
                hook(step.batch, step.result)
            if step.is_left and not window.is_last:
                trainer.optimization.reset()  # the rest of the window is not coming
                progress.is_exhausted = True
                return
            is_left = step.is_left
            del step
        progress.next_update()
        progress.seconds = seconds + monotonic() - trainer.eval_seconds - started
        if accord is not None:
            accord.after_update(trainer)
        for hook in update_ends:
            hook()
        if progress.seconds - flushed > FLUSH_SECONDS or meter.num_pending >= FLUSH_STEPS:
            flushed = progress.seconds
            trainer.flush()
        if is_left or trainer.is_done(until):
            progress.is_exhausted = is_left or (not trainer.is_interrupted and _has_given_all(progress, stream))
            return


def take_windows(trainer: Trainer, stream: Stream, until: Limits) -> Iterator[list[Batch]]:
    """The epoch's batches in groups of `accumulate`, the last one perhaps shorter."""
    progress = trainer.progress
    while True:
        batches = stream.take(trainer.accumulate, until.samples_left(progress))
        if not batches:
            break
        yield batches
    _check_length(trainer, stream)
    progress.is_exhausted = True


def shares(batches: list[Batch], num_shares: int) -> list[float]:
    """What each step's mean loss is divided by, so that the window's gradient is the mean over all its samples.

    Processes average their gradients, so each one's part counts `num_shares` times as much; a stand-in counts nothing.
    """
    if len(batches) == 1 and batches[0].total is None:
        return [1.0]
    total = sum(batch.size if batch.total is None else batch.total for batch in batches)
    return [total / (batch.size * num_shares) if batch.size else inf for batch in batches]


def _has_given_all(progress: Progress, stream: Stream) -> bool:
    """Whether an epoch of known length is complete: by samples, since a limit may have cut a batch in two."""
    if stream.num_samples is not None:
        return progress.epoch_sample >= stream.num_samples
    return progress.epoch_step == stream.num_batches


def _check_length(trainer: Trainer, stream: Stream) -> None:
    """An epoch that gave nothing, or less than was announced, is a mistake and not the end of training."""
    progress = trainer.progress
    if progress.epoch_step == 0:
        reason = "is empty" if progress.epoch == 0 else "gave nothing in this epoch; an iterator can be used only once"
        raise DataError(
            f"The training data {reason} (epoch {progress.epoch + 1}): pass a data set or loader with at least one "
            "batch (is `drop_last` on with fewer samples than a batch?)."
        )
    if stream.num_batches is not None and progress.epoch_step < stream.num_batches:
        raise DataError(
            f"The training data ended early: {progress.epoch_step} batches in epoch {progress.epoch + 1}, but its "
            f"length says {stream.num_batches}. Correct its `__len__`, or remove it to train on data of any length."
        )


def evaluate(trainer: Trainer, stream: Stream) -> dict[str, float]:
    """Averages over all samples of the stream. Leaves modes and random generators as they were.

    A signal to a training run ends it at the next batch, without a result.
    """
    meter = Meter()
    step_ends, autocast = trainer.hooks["on_eval_step_end"], trainer.runtime.autocast
    with trainer.phase(meter), trainer.eval_mode(), torch.no_grad(), preserved_rng(), _timed(trainer):
        trainer.emit("on_eval_start", stream)
        trainer.adopt_replaced()
        start = stream.state_dict() if stream.spans_epochs else None
        stream.begin(0)
        steps = 0
        for steps, (batch, size, total) in enumerate(stream, start=1):
            if trainer.is_interrupted:
                break
            trainer.window.size, trainer.window.total = size, total
            batch = trainer.prepare_batch(batch)
            if size == 0 and total is not None:  # nothing of this batch is for this process
                trainer.stand_in(batch)
                continue
            with autocast:
                result = StepResult.of(trainer.eval_step(batch), size)
            if steps == 1 and result.is_empty and meter.is_empty and not any(trainer.hooks[name] for name in MEASURING):
                raise _nothing_measured(trainer)
            meter.add(result)
            for hook in step_ends:
                hook(batch, result)
            if meter.num_pending >= FLUSH_STEPS:
                meter.flush()
        if steps == 0:
            raise DataError("The evaluation data is empty: pass a data set or loader with at least one batch.")
        if not trainer.is_interrupted:
            trainer.runtime.reshard()
            trainer.emit("on_eval_end", stream)
        if trainer.is_interrupted:  # the resumed run does all of it again
            if start is not None:
                stream.load_state_dict(start)
            return {}
        trainer.directions.losses |= meter.losses
        measured = meter.compute(trainer.runtime.sum_table, gather=trainer.runtime.gather_samples)
        if not measured:
            raise _nothing_measured(trainer)
        return measured


def _nothing_measured(trainer: Trainer) -> ConfigurationError:
    return ConfigurationError(
        f"The evaluation measured nothing: `{trainer.eval_name}` returned no loss and no metrics, and none were "
        "logged. Return the loss, or a dict of named values such as {'loss': loss, 'accuracy': accuracy}."
    )


@contextmanager
def _timed(trainer: Trainer) -> Iterator[None]:
    """Count the seconds of an evaluation, so that the clock of training leaves them out; a nested one counts once."""
    began, before = monotonic(), trainer.eval_seconds
    try:
        yield
    finally:
        trainer.eval_seconds = before + monotonic() - began


def stand_in(trainer: Trainer, batch: Any) -> None:
    """Take part in the forward passes of an evaluation step without a sample for this process; nothing is measured."""
    from ..metrics.metric_objects import load_metric_states, metric_states

    measured = deepcopy(metric_states(trainer.modules))
    with trainer.runtime.autocast:
        trainer.eval_step(batch)
    load_metric_states(trainer.modules, [measured])


def predict(trainer: Trainer, stream: Stream) -> list[Any]:
    """The model's outputs, batch by batch; of all processes, each of which has a part of every batch."""
    outputs: list[tuple[Any, ...]] = []
    with trainer.eval_mode(), torch.no_grad(), preserved_rng():
        stream.begin(0)
        for batch, size, total in stream:
            if size == 0 and total is not None and not trainer.runtime.forwards_together:
                outputs.append(())
                continue
            batch = trainer.prepare_batch(batch)
            with trainer.runtime.autocast:
                output = trainer.predict_step(batch)
            outputs.append((output,) if size or total is None else ())
    return trainer.runtime.gather_parts(outputs)
