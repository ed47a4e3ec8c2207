"""The speed of a run and the time that it still takes, by what this process has measured."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.progress import Progress


class TimeLeft:
    """Estimates the time that the `train` call and its epoch still take.

    Training and evaluations are estimated apart. Training goes on as fast as since the call began
    in this process, so an earlier process on another machine does not count; compiling and a slow
    first update do not, either. Evaluations at the end of an epoch take as long as those before,
    and come once for each epoch that is left; those inside epochs keep their share of the time.

    Call `log` at log points, `begin_epoch` and `end_epoch` at the ends of epochs.
    """

    def __init__(self, trainer: Trainer) -> None:
        progress = trainer.progress
        self._seconds = progress.seconds
        self._update = progress.update
        # before and after the first update
        self._start = self._warm = (
            done_of(trainer) or 0.0,
            progress.seconds,
        )
        self._epoch = progress.epoch
        self._epochs_ended_at = progress.seconds  # the training time at the end of the last epoch
        self._evaluated = _evaluated(trainer)
        self._inside = 0.0
        self._at_ends = 0.0
        self.begin_epoch(trainer)

    def begin_epoch(self, trainer: Trainer) -> None:
        """Measure the speed from here on."""
        progress = trainer.progress
        self._first = (progress.epoch_step, progress.sample, progress.seconds)

    def log(self, trainer: Trainer) -> None:
        """Note the evaluations since the last call, which were inside the epoch; leave out a slow
        first update.

        A log point after a single update comes of one that took long: workers start in it, kernels
        are chosen, `torch.compile` compiles. Once there are others, it says nothing of the speed.
        """
        self._inside += _evaluated(trainer) - self._evaluated
        self._evaluated = _evaluated(trainer)
        if trainer.progress.update == self._update + 1:
            self._warm = (done_of(trainer) or 0.0, trainer.progress.seconds)

    def end_epoch(self, trainer: Trainer) -> None:
        """Note the evaluations since the last log point, which were at the end of the epoch."""
        self._at_ends += _evaluated(trainer) - self._evaluated
        self._evaluated = _evaluated(trainer)
        self._epochs_ended_at = trainer.progress.seconds

    def samples_per_second(self, trainer: Trainer) -> float | None:
        """Samples per second of training in this epoch, without evaluations."""
        samples = trainer.progress.sample - self._first[1]
        seconds = trainer.progress.seconds - self._first[2]
        return samples / seconds if seconds > 0 and samples else None

    def of_epoch(self, trainer: Trainer) -> float | None:
        """Seconds of training to the end of the epoch, or to a limit inside it; None where that is
        not known."""
        progress = trainer.progress
        length = trainer.run.epoch_length()
        steps = progress.epoch_step - self._first[0]
        seconds = progress.seconds - self._first[2]
        if length is None or steps <= 0 or seconds <= 0:
            return None
        left = max(length - progress.epoch_step, 0) * seconds / steps
        whole = self._training_left(trainer)
        return left if whole is None else min(left, whole)

    def of_run(self, trainer: Trainer, evaluated: float = 0.0) -> float | None:
        """Seconds to the end of the `train` call, with its evaluations; None where that is not
        known.

        Args:
            trainer: The trainer.
            evaluated: The completed fraction of the evaluation at the end of this epoch.
        """
        training = self._training_left(trainer)
        if training is None:
            return None
        seconds = trainer.progress.seconds - self._seconds
        inside = self._inside / seconds if seconds > 0 else 0.0
        ended = trainer.progress.epoch - self._epoch
        at_ends = self._at_ends / ended if ended > 0 else 0.0
        return training * (1 + inside) + at_ends * max(
            self._ends_left(trainer, training) - evaluated, 0.0
        )

    def _training_left(self, trainer: Trainer) -> float | None:
        progress = trainer.progress
        limits = trainer.run.limits
        by_time = None if limits.seconds is None else max(limits.seconds - progress.seconds, 0.0)
        done = done_of(trainer)
        if done is None:
            return by_time
        if (
            limits.epochs is not None
            and limits.updates is limits.samples is None
            and not _has_length(trainer)
        ):
            by_count = self._left_of_epochs(trainer, limits.epochs)
        else:
            first = self._warm if done > self._warm[0] else self._start
            part = done - first[0]
            seconds = progress.seconds - first[1]
            by_count = None if part <= 0 or seconds <= 0 else seconds * (1 - done) / part
        known = [left for left in (by_time, by_count) if left is not None]
        return min(known) if known else None

    def _left_of_epochs(self, trainer: Trainer, epochs: int) -> float | None:
        """The training time of epochs whose length is not known: as long as those before."""
        progress = trainer.progress
        ended = progress.epoch - self._epoch
        if ended <= 0:
            return None
        one = (self._epochs_ended_at - self._seconds) / ended
        return max(
            one * (epochs - progress.epoch) - (progress.seconds - self._epochs_ended_at), 0.0
        )

    def _ends_left(self, trainer: Trainer, training: float) -> int:
        """How many epochs are still to end."""
        progress = trainer.progress
        limits = trainer.run.limits
        if limits.epochs is not None and limits.updates is limits.samples is limits.seconds is None:
            return limits.epochs - progress.epoch
        ended = progress.epoch - self._epoch
        one = (self._epochs_ended_at - self._seconds) / ended if ended > 0 else 0.0
        inside = progress.seconds - self._epochs_ended_at
        # the last one may be cut short
        return ceil((training + inside) / one - 1e-6) if one > 0 else 0


def _evaluated(trainer: Trainer) -> float:
    """Seconds of evaluations; the time of compiling comes once, and says nothing of what is to
    come."""
    return trainer.run.eval_seconds - trainer.run.compile_seconds


def _has_length(trainer: Trainer) -> bool:
    stream = trainer.run.train_stream
    return stream is not None and bool(stream.num_samples or stream.num_batches)


def done_of(trainer: Trainer) -> float | None:
    """Return the completed fraction of the current `train` call, by the nearest limit; None without
    a limit."""
    progress = trainer.progress
    until = trainer.run.limits
    parts = []
    if until.epochs is not None:
        inside = _inside_epoch(trainer, progress)
        parts.append(
            _part(progress.epoch + inside - progress.call_epoch, until.epochs - progress.call_epoch)
        )
    if until.updates is not None:
        parts.append(
            _part(progress.update - progress.call_update, until.updates - progress.call_update)
        )
    if until.samples is not None:
        parts.append(
            _part(progress.sample - progress.call_sample, until.samples - progress.call_sample)
        )
    return max(parts) if parts else None


def _part(amount: float, whole: float) -> float:
    return min(amount / whole, 1.0) if whole > 0 else 1.0


def _inside_epoch(trainer: Trainer, progress: Progress) -> float:
    """Return the completed fraction of the epoch; 0 for data without a length."""
    stream = trainer.run.train_stream
    if stream is None:
        return 0.0
    if stream.num_samples:
        return min(progress.epoch_sample / stream.num_samples, 1.0)
    return min(progress.epoch_step / stream.num_batches, 1.0) if stream.num_batches else 0.0


def clock_text(seconds: float) -> str:
    """Whole seconds as "0:42", "1:02:03" or "2 d 1:02:03".

    >>> clock_text(42.4), clock_text(3723), clock_text(180000)
    ('0:42', '1:02:03', '2 d 2:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02d}:{rest:02d}"
