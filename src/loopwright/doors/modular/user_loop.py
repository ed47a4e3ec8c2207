"""The batches of an epoch for a training loop that is the user's own: the core's bookkeeping around somebody's body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError
from ...training import steps as loop

if TYPE_CHECKING:
    from .engine import Engine


class LoopLeft(BaseException):
    """Training is over and a loop of the user's goes on; no `Exception`, so that nobody stops it on the way."""


class Lending:
    """Lends batches one by one; what the loop does with one is over when it asks for the next.

    An epoch ends when the next one begins or the loop is left, so that whatever the loop does after its batches, such
    as a validation, still belongs to it.
    """

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self._steps: Iterator[Any] | None = None
        self._is_left = False
        self._started = self._seconds = self._flushed = 0.0

    def run(self) -> None:
        """Call the user's loop, or the door's own; one that trains nothing is a mistake."""
        trainer = self.trainer
        calls, step = trainer.optimization.calls, trainer.progress.step
        try:
            trainer.door.training_loop()
        except StopIteration as error:
            raise ConfigurationError(
                "`training_loop` asked for a batch after the last one of an epoch: `iter(self.train_loader)` is one "
                "epoch, so call it again for the next."
            ) from error
        self.end_epoch()
        if trainer.optimization.calls == calls and trainer.progress.step == step and not trainer.is_done(trainer.until):
            raise ConfigurationError(
                "`training_loop` has ended, and it trained nothing: iterate `self.train_loader` in it, once for each "
                "epoch, and call `self.training_step(batch, batch_idx)` or `self.backward(loss)` for each batch."
            )

    @property
    def is_open(self) -> bool:
        """Whether an epoch is under way."""
        return self._steps is not None

    def begin_epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, or what is left of the one that a resumed run is in."""
        self.end_epoch()
        trainer, progress = self.trainer, self.trainer.progress
        if trainer.is_interrupted or (trainer.is_done(trainer.until) and not progress.is_unrecorded):
            raise LoopLeft
        assert trainer.train_stream is not None
        loop.begin_epoch(trainer, trainer.train_stream)
        self._is_left = False
        self._started = monotonic() - trainer.eval_seconds
        self._seconds = self._flushed = progress.seconds
        self._steps = self._lend()
        return self._steps

    def end_epoch(self) -> None:
        """Close the epoch under way: its row in the history, its schedulers. One left in the middle is over, too."""
        if self._steps is None:
            return
        self._is_left = True
        next(self._steps, None)  # a loop that was left by `break` never asked for more
        self._steps = None
        loop.record_epoch(self.trainer, {})

    def _lend(self) -> Iterator[Any]:
        trainer, progress, stream = self.trainer, self.trainer.progress, self.trainer.train_stream
        assert stream is not None
        if not trainer.is_done(trainer.until):
            for batches in loop.take_windows(trainer, stream, trainer.until):
                yield from self._lend_window(batches)
                if self._is_left or trainer.is_done(trainer.until):
                    progress.is_exhausted = self._is_left
                    break
        if progress.epoch_step == stream.num_batches:
            progress.is_exhausted = True
        trainer.flush()
        if trainer.is_interrupted:
            raise LoopLeft
        if progress.is_exhausted:
            trainer.emit("on_train_epoch_end")

    def _lend_window(self, batches: list[Any]) -> Iterator[Any]:
        trainer, window, progress = self.trainer, self.trainer.window, self.trainer.progress
        divisors = loop.shares(batches, trainer.runtime.num_shares)
        window.is_spent = False
        for position, (value, size, total) in enumerate(batches, start=1):
            window.divisor, window.size, window.is_last = divisors[position - 1], size, position == len(batches)
            if trainer.accord is not None:
                trainer.runtime.start_step(window.is_last, size)
            batch = trainer.prepare_batch(value)
            trainer.emit("on_train_step_start", batch)
            trainer.open_step()
            yield batch
            trainer.end_batch()
            result = trainer.close_step(size)
            progress.next_step(size if total is None else total)
            trainer.meter.add(result if size or total is None else loop.NOTHING, progress)
            trainer.emit("on_train_step_end", batch, result)
            if self._is_left and not window.is_last:
                trainer.optimization.reset()  # the rest of the window is not coming
                trainer.gradients.reset()
                return
        self._end_update()

    def _end_update(self) -> None:
        trainer, progress = self.trainer, self.trainer.progress
        progress.next_update()
        progress.seconds = self._seconds + monotonic() - trainer.eval_seconds - self._started
        if trainer.accord is not None:
            trainer.accord.after_update(trainer)
        trainer.emit("on_update_end")
        if progress.seconds - self._flushed > loop.FLUSH_SECONDS or trainer.meter.num_pending >= loop.FLUSH_STEPS:
            self._flushed = progress.seconds
            trainer.flush()


class Loader:
    """Gives batches on the device, and each process its part of them; all else is as on the loader behind it."""

    def __init__(self, loader: Any, iterate: Callable[[], Iterator[Any]], measure: Callable[[], int | None]) -> None:
        self.loader = loader
        self._iterate = iterate
        self._measure = measure

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def __len__(self) -> int:
        """Batches in an epoch, as this process sees them."""
        length = self._measure()
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return length

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)
