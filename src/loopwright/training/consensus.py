"""Consensus of all ranks: they stop and save at the same update, and go by the same clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..trainer import Trainer


class StopConsensus:
    """The requests of all ranks to stop or to save, one update late, so that no rank waits for another."""

    def __init__(self, trainer: Trainer) -> None:
        self.clock = trainer.progress.seconds
        self.has_stop = False

    def after_update(self, trainer: Trainer) -> None:
        """Exchange requests: act on all ranks' requests of the previous update, and set the clock to that of rank 0."""
        signals, runtime, progress = trainer.signals, trainer.runtime, trainer.progress
        runtime.finish_update(trainer.modules.values())
        clock = int(progress.seconds * 1e6) if runtime.is_main else 0
        requests = (signals.requested or 0, int(trainer.stop_reason is not None), int(signals.take_save()), clock)
        stop, has_stop, save, clock = runtime.exchange(requests)
        self.clock = progress.seconds = max(self.clock, clock / 1e6)
        signals.wants_save = bool(save)
        if stop:
            signals.stop = stop
        if has_stop:
            self.on_stop(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        """Take over the reason to stop of another rank; all ranks have to call this at the same update."""
        reasons = trainer.runtime.gather_objects(trainer.stop_reason)
        trainer.stop_reason = next((reason for reason in reasons if reason is not None), None)
        self.has_stop = trainer.stop_reason is not None
