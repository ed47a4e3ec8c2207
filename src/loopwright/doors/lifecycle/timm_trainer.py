"""The trainer for timm's schedulers."""

from __future__ import annotations

from .trainer import Trainer


class TrainerWithTimmScheduler(Trainer):
    """A trainer for timm's schedulers: told the number of updates after each one, and of epochs after each of those."""

    num_updates: int = 0

    def scheduler_step(self) -> None:
        self.num_updates = self._core.progress.update + 1
        if self.scheduler is not None:
            self.scheduler.step_update(num_updates=self.num_updates)

    def training_run_epoch_end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step(self.run_history.current_epoch)
