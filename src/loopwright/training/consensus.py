"""Consensus of all ranks: they stop and save at the same update, and go by the same clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.run import TrainingRun


class StopConsensus:
    """The requests of all ranks to stop or to save, one update late, so that no rank waits for another."""

    def __init__(self, run: TrainingRun) -> None:
        self.clock = run.progress.seconds
        self.has_stop = False

    def after_update(self, run: TrainingRun) -> None:
        """Exchange requests: act on all ranks' requests of the previous update, and set the clock to that of rank 0."""
        signals, runtime, progress = run.signals, run.runtime, run.progress
        runtime.finish_update(run.components.modules.values())
        clock = int(progress.seconds * 1e6) if runtime.is_main else 0
        requests = (signals.requested or 0, int(run.stop_reason is not None), int(signals.take_save()), clock)
        stop, has_stop, save, clock = runtime.exchange(requests)
        self.clock = progress.seconds = max(self.clock, clock / 1e6)
        signals.wants_save = bool(save)
        if stop:
            signals.stop = stop
        if has_stop:
            self.on_stop(run)

    def on_stop(self, run: TrainingRun) -> None:
        """Take over the reason to stop of another rank; all ranks have to call this at the same update."""
        reasons = run.runtime.gather_objects(run.stop_reason)
        run.stop_reason = next((reason for reason in reasons if reason is not None), None)
        self.has_stop = run.stop_reason is not None
