"""Several processes acting alike: at the same update, on the same wishes, by the same clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..trainer import Trainer


class Accord:
    """What all processes of a trainer know of each other's wishes; nobody waits for it, it is one update late."""

    def __init__(self, trainer: Trainer) -> None:
        self.clock = trainer.progress.seconds
        self.has_stop = False

    def after_update(self, trainer: Trainer) -> None:
        """Hear what any process wished in the update before, and go by the first one's clock."""
        signals, runtime, progress = trainer.signals, trainer.runtime, trainer.progress
        runtime.finish_update(trainer.modules.values())
        clock = int(progress.seconds * 1e6) if runtime.is_main else 0
        wishes = (signals.requested or 0, int(trainer.stop_reason is not None), int(signals.take_save()), clock)
        stop, has_stop, save, clock = runtime.exchange(wishes)
        self.clock = progress.seconds = max(self.clock, clock / 1e6)
        signals.wants_save = bool(save)
        if stop:
            signals.stop = stop
        if has_stop:
            self.on_stop(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        """Take over a reason to stop that only some processes have; all of them have to ask at once."""
        reasons = trainer.runtime.gather_objects(trainer.stop_reason)
        trainer.stop_reason = next((reason for reason in reasons if reason is not None), None)
        self.has_stop = trainer.stop_reason is not None
