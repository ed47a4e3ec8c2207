"""A `train` call from beginning to end: what is built, restored and checked before the loop, and what comes after."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import loop
from .data.seeding import seed_everything
from .data.stream import Stream
from .errors import ConfigurationError, Interrupted
from .history import History
from .progress import Limits
from .required import check_required_metrics
from .resuming import restore_run

if TYPE_CHECKING:
    from .trainer import Trainer


def run_training(
    trainer: Trainer,
    data: Any,
    eval_data: Any,
    limits: Limits,
    *,
    batch_size: int | None,
    resume: bool | str | Path,
) -> History:
    """Train until a limit is reached; without any, for one epoch."""
    limits = _checked(limits)
    if data is None:
        data, eval_data = trainer.configure_data()
    trainer.num_calls += 1
    trainer.eval_stream = None if eval_data is None else trainer.open(eval_data, batch_size, shuffle=False)
    trainer.setup_training()
    stream = trainer.open(data, batch_size, shuffle=True)
    try:
        if not _begin(trainer, stream, data, limits, resume):
            return trainer.history
        trainer.until = limits.from_call(trainer.progress)
        check_required_metrics(trainer)
        _run(trainer, stream)
    finally:
        stream.close()
        if trainer.eval_stream is not None:
            trainer.eval_stream.close()
        if trainer.run is not None:
            trainer.run.unlock()
    return trainer.history


def _checked(limits: Limits) -> Limits:
    for field in fields(limits):
        value = getattr(limits, field.name)
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            name = "max_time" if field.name == "seconds" else f"num_{field.name}"
            raise ConfigurationError(f"{name}={value!r}: use a number of {field.name}, 0 or more.")
    return Limits(epochs=1) if limits == Limits() else limits


def _begin(trainer: Trainer, stream: Stream, data: Any, limits: Limits, resume: bool | str | Path) -> bool:
    """Put the run where this call starts; False when an earlier process already finished this call."""
    progress = trainer.progress
    restore_run(trainer, stream, resume)
    if trainer.num_calls > progress.call:
        trainer.stop_reason = None
        _continue_epoch(trainer, stream, data)
        progress.next_call()
        if progress.step == 0 and trainer.seed is not None:
            seed_everything(trainer.seed)
    elif trainer.num_calls < progress.call or _is_finished(trainer, limits):
        trainer.say(
            f"Nothing to train: the run in {trainer.run_dir} is finished ({progress.epoch} epochs, "
            f"{progress.update} updates). Raise the limit to go on, or pass resume=False to start over."
        )
        return False
    trainer.train_data, trainer.train_stream = data, stream
    return True


def _is_finished(trainer: Trainer, limits: Limits) -> bool:
    progress = trainer.progress
    reached = limits.from_call(progress).reached(progress)
    return progress.call_finished and (reached is not None or trainer.stop_reason is not None)


def _continue_epoch(trainer: Trainer, stream: Stream, data: Any) -> None:
    """Go on in the epoch that an earlier call stopped in, if the data is the same; on other data that epoch is over."""
    if not trainer.progress.in_epoch or trainer.train_stream is None:
        return
    if data is trainer.train_data:
        stream.load_state_dict(trainer.train_stream.state_dict())
    else:
        trainer.progress.next_epoch()


def _run(trainer: Trainer, stream: Stream) -> None:
    progress = trainer.progress
    progress.call_finished = False
    with trainer.signals:
        try:
            trainer.optimization.reset()
            trainer.emit("on_train_start")
            loop.train(trainer, stream, trainer.until)
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
