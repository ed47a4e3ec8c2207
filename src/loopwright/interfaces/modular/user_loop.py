"""The batches of an epoch for a training loop that is the user's own: its body between the core's
bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError
from ...training import steps as loop

if TYPE_CHECKING:
    from .engine import Engine


class TrainingOver(BaseException):
    """Training is over and a loop of the user's goes on; no `Exception`, so that no handler of the
    user's stops it."""


class UserLoop:
    """Gives batches to a training loop that the user wrote; a step is over when the loop asks for
    the next batch.

    An epoch ends when the next one begins or the loop ends, so that whatever the loop does after
    its batches, such as a validation, still belongs to it.
    """

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self._batches: Iterator[Any] | None = None
        self._step: loop.Step | None = None

    def run(self) -> None:
        """Call the user's loop, or the interface's own; one that trains nothing is a mistake."""
        trainer = self.trainer
        run = self.trainer.run
        calls = run.updates.calls
        step = run.progress.step
        try:
            trainer.interface.training_loop()
        except StopIteration as error:
            raise ConfigurationError(
                "`training_loop` asked for a batch after the last one of the epoch: "
                "`iter(self.train_loader)` is one epoch, so call it again for the next epoch."
            ) from error
        self.end_epoch()
        if run.updates.calls == calls and run.progress.step == step and not run.is_done():
            raise ConfigurationError(
                "`training_loop` has ended but trained nothing: iterate `self.train_loader` in "
                "it, once for each epoch, and call `self.training_step(batch, batch_idx)` or "
                "`self.backward(loss)` for each batch."
            )

    def begin_epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that a resumed run is in."""
        self.end_epoch()
        run = self.trainer.run
        if run.is_interrupted or (run.is_done() and not run.progress.is_unrecorded):
            raise TrainingOver
        loop.begin_epoch(run)
        self._batches = self._give_batches()
        return self._batches

    def end_epoch(self) -> None:
        """Close the epoch under way: its row in the history, its schedulers. One left in the middle
        is over, too."""
        if self._batches is None:
            return
        if self._step is not None:
            self._step.is_last = True
        next(self._batches, None)  # a loop that was left by `break` never asked for more
        self._batches = None
        loop.record_epoch(self.trainer.run, {})

    def _give_batches(self) -> Iterator[Any]:
        trainer = self.trainer
        run = self.trainer.run
        for step in loop.open_steps(run):
            self._step = step
            trainer.open_step()
            yield step.batch
            trainer.end_batch()
            step.result = trainer.close_step(step.size)
            if step.is_last and not run.window.is_last:
                trainer.gradients.reset()
        self._step = None
        loop.end_steps(run)
        if run.is_interrupted:
            raise TrainingOver


class Loader:
    """Gives batches on the device, and each process its part of them; all else is as on the loader
    behind it."""

    def __init__(
        self, loader: Any, iterate: Callable[[], Iterator[Any]], measure: Callable[[], int | None]
    ) -> None:
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
