"""A `train` call from beginning to end: what is built, restored and checked before the loop, and what comes after."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ..data.open import Stream
from ..data.order import derive_seed
from ..data.random import seed_everything, set_rng_state
from ..errors import ConfigurationError, DataError, Interrupted
from ..metrics.history import History
from ..runtime import dry_run
from . import steps as loop
from .consensus import StopConsensus
from .lazy_layers import materialise
from .progress import Limits, counted
from .required_metrics import check_required_metrics
from .resume import Mark, Origin, restore_run, seek, starting_line

if TYPE_CHECKING:
    from ..trainer import Trainer


def run_training(
    trainer: Trainer,
    data: Any,
    eval_data: Any,
    limits: Limits,
    *,
    batch_size: int | None,
    resume: bool | str | Path,
    changes: str = "refuse",
) -> History:
    """Train until a limit is reached; without any, for one epoch."""
    limits, origin = _checked(limits), Origin.checked(resume, changes)
    with trainer.runtime.supervised():
        return _train(trainer, data, eval_data, limits, batch_size, origin)


def _train(
    trainer: Trainer, data: Any, eval_data: Any, limits: Limits, batch_size: int | None, origin: Origin
) -> History:
    if data is None:
        data, configured = trainer.configure_data()
        eval_data = configured if eval_data is None else eval_data
    trainer.eval_stream = None
    if eval_data is not None:
        trainer.eval_stream = trainer.open(eval_data, _size_for(eval_data, data, batch_size), shuffle=False)
    trainer.setup_training()
    stream = trainer.open(data, _size_for(data, eval_data, batch_size), shuffle=True)
    try:
        if not _begin(trainer, stream, data, limits, origin):
            return trainer.history
        trainer.until = limits.from_call(trainer.progress)
        materialise(trainer)
        check_required_metrics(trainer)
        _run(trainer, stream)
    finally:
        stream.close()
        if trainer.eval_stream is not None:
            trainer.eval_stream.close()
        if trainer.run is not None:
            trainer.run.unlock()
    return trainer.history


def _size_for(data: Any, other: Any, batch_size: int | None) -> int | None:
    """The batch size, unless the data is a loader and the size is there for the other, which is none."""
    is_for_other = isinstance(data, DataLoader) and other is not None and not isinstance(other, DataLoader)
    return None if is_for_other else batch_size


def _checked(limits: Limits) -> Limits:
    for field in fields(limits):
        value = getattr(limits, field.name)
        is_time = field.name == "seconds"
        is_number = isinstance(value, (int, float) if is_time else int) and not isinstance(value, bool)
        if value is not None and not (is_number and value >= 0):
            name, kind = ("max_time", "number") if is_time else (f"num_{field.name}", "whole number")
            raise ConfigurationError(f"{name}={value!r}: use a {kind} of {field.name}, 0 or more.")
    return Limits(epochs=1) if limits == Limits() else limits


def _begin(trainer: Trainer, stream: Stream, data: Any, limits: Limits, origin: Origin) -> bool:
    """Put the run where this call starts; False when an earlier process already finished this call."""
    progress = trainer.progress
    trainer.num_calls += 1
    try:
        is_start = trainer.num_calls == 1
        resumed = restore_run(trainer, stream, origin)
    except BaseException:
        trainer.num_calls -= 1  # a call that never began; the next one is to look for the run again
        raise
    mark, trainer.mark = trainer.mark, None
    if mark is not None:
        trainer.optimization.load_state_dict(mark.lanes)
    if origin.accepts_changes and trainer.num_calls == progress.call:
        trainer.stop_reason = None  # what ended the run before is not to end it again
    if trainer.num_calls > progress.call:
        trainer.stop_reason = None
        _continue_epoch(trainer, stream, data, mark)
        progress.next_call()
        if progress.step == 0 and trainer.seed is not None:
            rank = trainer.runtime.sample_rank
            seed_everything(trainer.seed if rank == 0 else derive_seed(trainer.seed, rank))
    elif trainer.num_calls < progress.call or _is_finished(trainer, limits):
        trainer.say(_finished_line(trainer))
        trainer.mark = mark
        if trainer.num_calls == progress.call:
            for callback in trainer.active_callbacks:
                callback.finish_again(trainer.trainer_for(callback))
        return False
    elif mark is not None:
        _enter(trainer, stream, mark, is_changed=resumed is not None and resumed.is_changed)
    if (is_start or resumed is not None) and dry_run.current is None:
        trainer.say(starting_line(trainer, resumed))
    trainer.train_data, trainer.train_stream = data, stream
    return True


def _finished_line(trainer: Trainer) -> str:
    """Why a call has nothing to train, and what to do about it."""
    progress = trainer.progress
    if trainer.num_calls < progress.call:
        number, later = trainer.num_calls, progress.call
        return f"Call {number} of `train` was finished by an earlier process; the run goes on in call {later}."
    length = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
    start = f"Nothing to train: the run in {trainer.run_dir} is finished ({length})"
    if trainer.stop_reason is not None:
        return (
            f"{start}; what ended it: {trainer.stop_reason}. Pass {trainer.accept_changes} to go on all the same, or "
            f"{trainer.start_over} to start over."
        )
    return f"{start}. Raise the limit to go on, or pass {trainer.start_over} to start over."


def _enter(trainer: Trainer, stream: Stream, mark: Mark, *, is_changed: bool) -> None:
    """Take up the position in the data; in data that was changed on purpose there may be none."""
    try:
        mark.enter(stream, trainer.eval_stream)
    except DataError as error:
        if not is_changed:
            raise
        trainer.say(f"The rest of epoch {trainer.progress.epoch + 1} is left out: {error}")
        trainer.progress.next_epoch()
        set_rng_state(mark.rng)


def _is_finished(trainer: Trainer, limits: Limits) -> bool:
    progress = trainer.progress
    reached = limits.from_call(progress).reached(progress)
    return progress.call_finished and (reached is not None or trainer.stop_reason is not None)


def _continue_epoch(trainer: Trainer, stream: Stream, data: Any, mark: Mark | None) -> None:
    """Go on in the epoch that an earlier call stopped in; on other data, or where one cannot seek, it is over."""
    if mark is not None and mark.eval_data is not None and trainer.eval_stream is not None:
        _can_seek(trainer.eval_stream, mark.eval_data)
    if not trainer.progress.in_epoch:
        if mark is not None and mark.data is not None:  # data that goes on from one epoch to the next
            _can_seek(stream, mark.data)
        return
    state = None
    if mark is not None:
        state = mark.data
    elif data is trainer.train_data and trainer.train_stream is not None:
        state = trainer.train_stream.state_dict()
    if state is None or not _can_seek(stream, state):
        trainer.progress.next_epoch()


def _can_seek(stream: Stream, state: dict[str, Any]) -> bool:
    """Whether the position could be taken up, which is also done."""
    try:
        stream.check_resumable()
        seek(stream, state)
    except DataError:
        return False
    return True


def _run(trainer: Trainer, stream: Stream) -> None:
    progress = trainer.progress
    progress.call_finished = False
    trainer.accord = StopConsensus(trainer) if trainer.runtime.world > 1 else None
    with trainer.signals:
        try:
            trainer.optimization.reset()
            trainer.emit("on_train_start")
            loop.train(trainer, stream, trainer.until)
            trainer.runtime.finish_exchange()
            progress.call_finished = not trainer.is_interrupted
            trainer.emit("on_loop_end")
            _leave_if_interrupted(trainer)
            trainer.emit("on_train_end")
        except BaseException as error:
            _tell_of(error, trainer)
            raise


def _tell_of(error: BaseException, trainer: Trainer) -> None:
    """Let every callback hear of the exception; one that fails at that does not hide it."""
    for hook in trainer.hooks["on_exception"]:
        try:
            hook(error)
        except Exception as second:
            error.add_note(f"and on_exception itself failed: {second!r}")


def _leave_if_interrupted(trainer: Trainer) -> None:
    """Everything is saved: end the program with the code that belongs to the signal."""
    if not trainer.is_interrupted:
        return
    saved = (
        "saved; start the same program again to continue" if trainer.run is not None else "nothing saved: no run_dir"
    )
    trainer.say(f"{trainer.signals.name} after update {trainer.progress.update}: {saved}.")
    raise Interrupted(trainer.signals.exit_code)
