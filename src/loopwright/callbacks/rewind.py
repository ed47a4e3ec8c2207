"""Rewinding: after a bad batch, restore the last good state and continue without that batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._torch_compat import are_finite
from ..data.stream import SkippingStream
from ..errors import ConfigurationError, NonFiniteLossError, Rewinding, check_number
from ..text import counted
from .nonfinite import NonFiniteGuard

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import SnapshotBuffers
    from ..data.open import Stream
    from ..metrics.result import StepResult


class Rewind(NonFiniteGuard):
    """Restores the last good state when a loss or gradient norm is not finite, and continues
    without that batch.

    The result is, bit for bit, that of training on data without the batch. The state is copied to
    host memory at the start of each epoch and every `every_updates` updates, which takes the memory
    of one copy. The loss is read at every step, which synchronizes with an accelerator. Takes the
    place of `NonFiniteGuard`; for one process only.

    Args:
        spike: A factor above 1: a loss above `spike` times the median of the last `window` losses
            is bad, too.
        window: The number of losses for that median.
        every_updates: The number of updates between copies of the state, which limits how many are
            repeated.
        max_rewinds: The number of bad batches after which the next one is an error.

    >>> from loopwright.callbacks import Rewind
    >>> callback = Rewind(spike=3.0, every_updates=100)
    """

    is_immediate = True

    def __init__(
        self,
        spike: float | None = None,
        window: int = 50,
        *,
        every_updates: int = 50,
        max_rewinds: int = 3,
    ) -> None:
        super().__init__("raise")
        if spike is not None:
            check_number("Rewind(spike", spike, above=1, is_whole=False, otherwise="None")
        check_number("Rewind(window", window, least=1)
        check_number("Rewind(every_updates", every_updates, least=1)
        check_number("Rewind(max_rewinds", max_rewinds, least=1)
        self.spike = spike
        self.every_updates = every_updates
        self.max_rewinds = max_rewinds
        self.num_rewinds = 0
        self._losses: deque[float] = deque(maxlen=window)
        self._stream: SkippingStream | None = None
        self._snapshot: dict[str, Any] | None = None
        self._buffers: SnapshotBuffers | None = None
        self._history: dict[str, Any] = {}
        self._taken_at = 0
        self._refused: str | None = None
        self._is_searching = False

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        if not is_training:
            return stream
        self._stream = SkippingStream(stream)
        return self._stream

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        guards = [other for other in trainer.run.callbacks if isinstance(other, NonFiniteGuard)]
        if guards != [self]:
            raise ConfigurationError(
                "two-guards", "Rewind replaces NonFiniteGuard: pass only one of them."
            )
        if trainer.runtime.world > 1:
            raise ConfigurationError(
                "rewind-on-several-processes",
                "Rewind works in one process only: use NonFiniteGuard('skip') with several.",
            )
        assert self._stream is not None
        self._stream.check_resumable()
        self._refused = None
        self._is_searching = False
        if trainer.progress.in_epoch:
            self._stream.count_from(trainer.progress.epoch_step)
            self._keep(trainer)

    def on_epoch_start(self, trainer: Trainer) -> None:
        self._keep(trainer)

    def refuse(self, what: str) -> None:
        self._refused = self._refused or what

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        if self._is_searching:
            self._search(trainer, optimizer)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if self._is_searching and not trainer.run.window.is_last:
            for name in trainer.run.updates.by_name:
                self._search(trainer, name)
        value = _loss_of(result)
        reason = self._refused or self._judge(value)
        if reason is None:
            if value is not None:
                self._losses.append(value)
        else:
            self._go_back(trainer, reason, blame=self._is_sure(trainer, value))

    def on_update_end(self, trainer: Trainer) -> None:
        """Copy the state when due, if all weights are finite: the loss only depends on the weights
        before the step."""
        progress = trainer.progress
        is_due = progress.update - self._taken_at >= self.every_updates
        if not is_due and progress.epoch_step != trainer.run.epoch_length():
            return
        if not are_finite(trainer.parameters()):
            self._go_back(trainer, "the weights are not finite", blame=self._is_searching)
        if is_due:
            self._keep(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        self._release()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "num_rewinds": self.num_rewinds,
            "losses": list(self._losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.num_rewinds = state["num_rewinds"]
        self._losses = deque(state["losses"], maxlen=self._losses.maxlen)

    def _judge(self, loss: float | None) -> str | None:
        """Return what is wrong with a loss, or None. Spikes are detected only with a full window of
        positive losses."""
        if loss is None:
            return None
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.spike is None or len(self._losses) != self._losses.maxlen:
            return None
        usual = median(self._losses)
        if usual <= 0 or loss <= self.spike * usual:
            return None
        return f"the loss is {loss:.6g}, more than {self.spike:g} times the usual {usual:.6g}"

    def _is_sure(self, trainer: Trainer, loss: float | None) -> bool:
        """Whether the batch of this step is the cause, and not an earlier batch of the window or
        bad weights."""
        if self._is_searching:
            return True
        is_of_window = self._refused is not None and (loss is None or math.isfinite(loss))
        return not (is_of_window and trainer.accumulate > 1) and are_finite(trainer.parameters())

    def _search(self, trainer: Trainer, optimizer: str) -> None:
        """Find the step with a finite loss and gradients that are not; a loss scaler skips such
        steps itself."""
        update = trainer.run.updates.by_name[optimizer]
        if update.scaler is None and not are_finite(
            p.grad for p in update.params if p.grad is not None
        ):
            self.refuse(f"a gradient of optimizer {optimizer!r} is not finite")

    def _keep(self, trainer: Trainer) -> None:
        from ..checkpoint import SnapshotBuffers

        assert trainer.run.data.train_stream is not None
        if self._buffers is None:
            self._buffers = SnapshotBuffers()
        data = trainer.run.data.train_stream.state_dict()  # also before the first batch
        self._snapshot = self._buffers.take(
            trainer._core._capture(has_history=False) | {"data": data}
        )
        self._history = trainer.history.state_dict()
        self._taken_at = trainer.progress.update
        self._is_searching = False

    def _go_back(self, trainer: Trainer, reason: str, *, blame: bool) -> None:
        """Make the loop rewind: to skip the batch of this step, or to find the batch that is the
        cause."""
        assert self._stream is not None
        progress = trainer.progress
        where = f"in batch {progress.epoch_step} of epoch {progress.epoch + 1}"
        if self.num_rewinds >= self.max_rewinds:
            times = counted(self.max_rewinds, "rewind")
            raise NonFiniteLossError(
                "too-many-rewinds",
                f"{reason[0].upper()}{reason[1:]} {where}, after {times}. So many bad batches "
                "point to a real problem. Lower the learning rate, clip gradients "
                "(`clip_norm=`), look for bad samples, or raise `max_rewinds`.",
            )
        self._is_searching = not blame
        skipped = (
            self._stream.skipped_with(progress.epoch_step - 1) if blame else self._stream.skipped
        )
        raise Rewinding(partial(self._undo, trainer, f"{reason} {where}", skipped))

    def _undo(self, trainer: Trainer, reason: str, skipped: Mapping[int, int]) -> None:
        from ..checkpoint import snapshot

        trainer = trainer._core
        assert self._stream is not None
        num_rewinds = self.num_rewinds
        seconds = trainer.progress.seconds
        trainer.run.updates.reset()
        state = snapshot(self._snapshot)  # a copy: optimizers work on what they are given
        trainer._return_to(state | {"history": self._history}, "in memory")
        self._stream.skip(skipped)
        trainer.progress.seconds = seconds  # the time of undone updates counts
        self.num_rewinds = num_rewinds
        self._refused = None
        reason = f"{reason[0].upper()}{reason[1:]}"
        if self._is_searching:
            trainer.run.say(
                f"{reason}; repeating the updates after update {self._taken_at} to find the batch "
                "that caused it."
            )
        else:
            self.num_rewinds += 1
            count = f"rewind {self.num_rewinds} of {self.max_rewinds}"
            trainer.run.say(
                f"{reason}; returning to update {self._taken_at} and continuing without this "
                f"batch ({count})."
            )
        trainer.run.emit("on_rewind")

    def _release(self) -> None:
        """Free the copies."""
        self._snapshot = None
        self._buffers = None
        self._history = {}


def _loss_of(result: StepResult) -> float | None:
    """Return the mean loss of a step as a number, read from the device."""
    if result.loss is None:
        return None
    loss = float(result.loss.detach() if isinstance(result.loss, Tensor) else result.loss)
    if result.count is None:
        return loss
    count = float(result.count)
    return loss / count if count else loss
