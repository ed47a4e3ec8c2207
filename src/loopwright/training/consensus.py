"""Several processes acting alike: at the same update, on the same wishes, by the same clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.run import TrainingRun


class Accord:
    """What all processes of a trainer know of each other's wishes; nobody waits for it, it is one update late."""

    def __init__(self, run: TrainingRun) -> None:
        self.clock = run.progress.seconds
        self.has_stop = False

    def after_update(self, run: TrainingRun) -> None:
        """Hear what any process wished in the update before, and go by the first one's clock."""
        signals, runtime, progress = run.signals, run.runtime, run.progress
        runtime.finish_update(run.components.modules.values())
        clock = int(progress.seconds * 1e6) if runtime.is_main else 0
        wishes = (signals.requested or 0, int(run.stop_reason is not None), int(signals.take_save()), clock)
        stop, has_stop, save, clock = runtime.exchange(wishes)
        self.clock = progress.seconds = max(self.clock, clock / 1e6)
        signals.wants_save = bool(save)
        if stop:
            signals.stop = stop
        if has_stop:
            self.on_stop(run)

    def on_stop(self, run: TrainingRun) -> None:
        """Take over a reason to stop that only some processes have; all of them have to ask at once."""
        reasons = run.runtime.gather_objects(run.stop_reason)
        run.stop_reason = next((reason for reason in reasons if reason is not None), None)
        self.has_stop = run.stop_reason is not None
