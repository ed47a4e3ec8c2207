"""A `train` call from beginning to end: build, restore and check; then the loop; then the final
events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import GeneratorType
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from ..callback import Callback
from ..data.open import Stream
from ..data.random import seed_generators
from ..data.workers import workers_explained
from ..errors import ConfigurationError, DataError, check_number, interruption, is_notebook
from ..metrics.history import History
from ..metrics.progress import Limits
from ..text import counted
from . import steps as loop
from .assembly import settle_seed
from .callback_schedulers import unsaved_texts
from .facts import planned_totals, starting_line
from .first_batch import check_required_metrics, materialise
from .resume import Origin, restore_run
from .run import SavedPosition, TrainingRun, seek


def run_training(
    run: TrainingRun,
    data: Any,
    eval_data: Any,
    limits: Limits,
    *,
    batch_size: int | None,
    resume: bool | str | Path,
    changes: str = "refuse",
) -> History:
    """Train until a limit is reached; without any, for one epoch."""
    if resume is True and run.files.run_dir is None:
        raise ConfigurationError(
            "no-run-dir",
            "resume=True: there is no run to resume, since the trainer has no `run_dir=`.",
        )
    limits = _checked(limits)
    origin = Origin.checked(resume, changes)
    with run.runtime.supervised(), run.own_generators():
        return _train(run, data, eval_data, limits, batch_size, origin)


def _train(
    run: TrainingRun,
    data: Any,
    eval_data: Any,
    limits: Limits,
    batch_size: int | None,
    origin: Origin,
) -> History:
    settle_seed(run)
    if data is None:
        data, configured = run.program.configure_data()
        eval_data = configured if eval_data is None else eval_data
    _check_passes(data, limits, run.callbacks)
    run.data.eval_stream = None
    if eval_data is not None:
        run.data.eval_stream = run.program._open(
            eval_data, _size_for(eval_data, data, batch_size), shuffle=False
        )
    run.program._setup_training()
    stream = run.program._open(data, _size_for(data, eval_data, batch_size), shuffle=True)
    try:
        if not _begin(run, stream, data, limits, origin):
            return run.history
        run.set_limits(limits)
        _check_cycles(run)
        materialise(run)
        check_required_metrics(run)
        _run(run)
    finally:
        stream.close()
        if run.data.eval_stream is not None:
            run.data.eval_stream.close()
        if run.files.directory is not None:
            run.files.directory.unlock()
    return run.history


def _size_for(data: Any, other: Any, batch_size: int | None) -> int | None:
    """Return the batch size for `data`; None if that is a loader and the size is meant for `other`,
    which is not."""
    is_for_other = (
        isinstance(data, DataLoader) and other is not None and not isinstance(other, DataLoader)
    )
    return None if is_for_other else batch_size


def _check_passes(data: Any, limits: Limits, callbacks: Iterable[Callback]) -> None:
    """Refuse an iterator that can be used only once for several epochs, before the first one is
    trained.

    With a callback that ends epochs itself, one without an end is right.
    """
    cuts_epochs = any(
        type(callback).adapt_stream is not Callback.adapt_stream for callback in callbacks
    )
    if (
        isinstance(data, (GeneratorType, zip, map, filter, enumerate))
        and (limits.epochs or 0) > 1
        and not cuts_epochs
    ):
        raise DataError(
            "one-use-data",
            f"Data is a {type(data).__name__}, which can be used only once, and "
            f"num_epochs={limits.epochs}: pass an object that can be iterated in each epoch (a "
            "data set, a list, one whose `__iter__` starts anew), or limit training by "
            "`num_updates=`.",
        )


def _check_cycles(run: TrainingRun) -> None:
    """Refuse a OneCycleLR that ends before the run does: torch raises only when it is stepped once
    too often."""
    for schedule in run.components.schedules.values():
        if isinstance(schedule.scheduler, OneCycleLR) and schedule.interval == "update":
            planned = planned_totals(run).get("update")
            total = schedule.scheduler.total_steps
            if planned is not None and planned > total:
                raise ConfigurationError(
                    "one-cycle-too-short",
                    f"OneCycleLR was made for {total} updates, and this run has {planned}: make "
                    f"it with total_steps={planned}, or use `scheduler=WarmupCosine()` of "
                    "loopwright.schedules, which takes the length of the run.",
                )


def _checked(limits: Limits) -> Limits:
    for unit, value in asdict(limits).items():
        is_time = unit == "seconds"
        if value is not None:
            name = "max_time" if is_time else f"num_{unit}"
            check_number(name, value, least=0, is_whole=not is_time, of=unit)
    return Limits(epochs=1) if limits == Limits() else limits


def _begin(run: TrainingRun, stream: Stream, data: Any, limits: Limits, origin: Origin) -> bool:
    """Restore the state in which this call starts; return False if an earlier process finished this
    call."""
    progress = run.progress
    call = run.call
    call.number += 1
    is_start = call.number == 1
    try:
        resumed = restore_run(run, stream, origin)
    except BaseException:
        call.number -= 1  # this call did not begin; the next one looks for the run again
        raise
    position = run.files.pending
    if position is not None:
        position.restore_updates(run)
    is_new = call.number > progress.call  # otherwise an earlier process has begun this call
    if is_new or (origin.accepts_changes and call.number == progress.call):
        run.train_on()  # an earlier reason to stop must not end the run again
    if call.number < progress.call or (not is_new and _is_finished(run, limits)):
        _leave_out(run)
        return False
    run.files.pending = None
    if is_new:
        run.files.callback_schedulers.forget()
        _continue_epoch(run, stream, position or _left_position(run, data))
        if position is not None and resumed is not None:
            position.restore_rng(run)  # otherwise the program may have used the generators since
        progress.next_call()
        if progress.step == 0 and (seed := run.rank_seed) is not None:
            seed_generators(seed)
    elif position is not None:
        _place(run, stream, position, is_changed=resumed is not None and resumed.is_changed)
    if is_start or resumed is not None:
        run.say(starting_line(run, resumed))
    run.data.given = data
    run.data.train_stream = stream
    return True


def _leave_out(run: TrainingRun) -> None:
    """Leave out a call that an earlier process finished; the state waits for the next one."""
    run.say(_finished_line(run))
    if run.files.pending is not None:
        run.files.pending.restore_rng(run)
    if run.call.number == run.progress.call:
        for callback in run.callbacks:
            callback.finish_again(run.program._trainer_given_to(callback))


def _finished_line(run: TrainingRun) -> str:
    """Return the line that says why a call has nothing to train, and what to do about it."""
    progress = run.progress
    if run.call.number < progress.call:
        return (
            f"Call {run.call.number} of `train` was finished by an earlier process; the run "
            f"continues in call {progress.call}."
        )
    words = run.message_names
    length = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
    start = f"Nothing to train: the run in {run.files.run_dir} is finished ({length})"
    if run.stopping.reason is not None:
        return (
            f"{start}; it ended because: {run.stopping.reason}. Pass {words.accept_changes} to "
            f"continue anyway, or {words.start_over} to start over."
        )
    return f"{start}. Raise its limit to continue, or pass {words.start_over} to start over."


def _place(run: TrainingRun, stream: Stream, position: SavedPosition, *, is_changed: bool) -> None:
    """Restore the position in the data; in data that was changed on purpose it may not exist."""
    try:
        position.place(run, stream)
        if stream.remark is not None:
            run.say(stream.remark)
    except DataError as error:
        if not is_changed:
            raise
        run.say(f"The rest of epoch {run.progress.epoch + 1} is skipped: {error}")
        run.progress.next_epoch()
        position.restore_rng(run)


def _is_finished(run: TrainingRun, limits: Limits) -> bool:
    progress = run.progress
    reached = limits.from_call(progress).reached(progress)
    return progress.call_finished and (reached is not None or run.stopping.reason is not None)


def _left_position(run: TrainingRun, data: Any) -> SavedPosition | None:
    """Return the position at which an earlier call of this process left an epoch of this data."""
    if run.data.train_stream is None or data is not run.data.given or not run.progress.in_epoch:
        return None
    return SavedPosition(run.data.train_stream.state_dict())


def _continue_epoch(run: TrainingRun, stream: Stream, position: SavedPosition | None) -> None:
    """Continue the epoch in which an earlier call stopped; with other data, or without seeking,
    begin the next one."""
    is_placed = False
    if position is not None:
        if position.eval_data is not None and run.data.eval_stream is not None:
            _can_seek(run.data.eval_stream, position.eval_data)
        # data may continue from one epoch to the next
        is_placed = position.data is not None and _can_seek(stream, position.data)
    if run.progress.in_epoch and not is_placed:
        run.progress.next_epoch()


def _can_seek(stream: Stream, state: dict[str, Any]) -> bool:
    """Restore the position in the data, if possible; return whether it was."""
    try:
        stream.check_resumable()
        seek(stream, state)
    except DataError:
        return False
    return True


def _run(run: TrainingRun) -> None:
    progress = run.progress
    progress.call_finished = False
    with run.handling_signals():
        try:
            run.updates.reset()
            _start(run)
            _complete_history(run)
            run.media.begin()
            with workers_explained():
                loop.train(run)
            run.runtime.finish_exchange()
            _end(run)
        except BaseException as error:
            emit_exception(run, error)
            raise
        _leave_if_interrupted(run)


def _start(run: TrainingRun) -> None:
    """Emit `on_train_start`; then load the schedulers that callbacks made there, and name what no
    checkpoint holds."""
    optimizers = run.components.optimizers.values()
    with run.files.callback_schedulers.loaded_after(optimizers) as lost:
        run.emit("on_train_start")
    for name in lost:
        run.say(
            f"The checkpoint has the state of the scheduler {name}, which does not exist when "
            "training starts: this state is ignored. Make the scheduler in the callback's "
            "constructor or in `on_train_start`."
        )
    if run.files.directory is None:
        return
    for callback in run.callbacks:
        is_shipped = type(callback).__module__.startswith("loopwright.")
        if not is_shipped and not callback.has_own_state:
            for text in unsaved_texts(callback, run.components):
                run.say(text)


def _end(run: TrainingRun) -> None:
    """Finish a call that reached a limit or a stop; after a signal, save and leave."""
    if run.is_interrupted:
        run.stopping.signals.is_saving = True
        run.emit("on_loop_end")
        _leave_if_interrupted(run)
    finish(run)


def finish(run: TrainingRun) -> None:
    """Emit the final events of a call, which is finished from here on: a signal waits until these
    events are over."""
    run.progress.call_finished = True
    with run.stopping.signals.deferred():
        run.emit("on_loop_end")
        run.emit("on_train_end")


def _complete_history(run: TrainingRun) -> None:
    """Add the steps that an exception kept from being read, and the row of an epoch that it cut
    short for good.

    Its steps were taken: without a row, the rows of later epochs would be those of other numbers.
    """
    # several processes may have been left at different steps
    if run.metrics.meter.is_over or run.runtime.world > 1:
        return
    run.flush()
    progress = run.progress
    if (
        not (progress.in_epoch or run.metrics.meter.is_empty)
        and len(run.history.epochs) == progress.epoch - 1
    ):
        run.history.set_epoch(progress.epoch - 1, run.metrics.meter.compute())


def emit_exception(run: TrainingRun, error: BaseException) -> None:
    """Emit `on_exception` to every callback; an error in one of them becomes a note of the
    first."""
    run.window.stage = ""  # the step under way is not taken
    for hook in run.hooks["on_exception"]:
        try:
            hook(error)
        except Exception as second:
            error.add_note(f"on_exception failed as well: {second!r}")


def _leave_if_interrupted(run: TrainingRun) -> None:
    """After a signal, when everything is saved, end the program with the signal's exit code."""
    if not run.is_interrupted:
        return
    signals = run.stopping.signals
    is_saved = run.files.directory is not None
    update = f"update {run.progress.update}"
    if not is_notebook():
        last = "the last " if run.progress.call_finished else ""
        saved = (
            "saved; start the same program again to resume"
            if is_saved
            else "nothing was saved, because there is no run_dir"
        )
        run.say(f"{signals.name} after {last}{update}: {saved}.")
    raise interruption(
        signals.exit_code,
        f"Interrupted after {update}{', which was saved' if is_saved else ''}. The trainer "
        "keeps this state: call `train` to continue.",
    )
