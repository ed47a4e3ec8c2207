"""Saving the whole state of a run from time to time, to go on from after an interruption."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....checkpoint import CheckpointStore
from ....checkpoint.destination import check_inside
from ....errors import ConfigurationError
from .events import TrainerCallback

if TYPE_CHECKING:
    from ..trainer import Trainer


SAVED = re.compile(r"(epoch|step)_\d+|final|interrupted|requested")


class SaveTrainingStateCallback(TrainerCallback):
    """Writes training states to directories in `save_dir`, which `train(resume_from=...)` takes.

    They are written every so many epochs or training steps, at the end or when a signal ends the run, and when SIGUSR1
    asks for one; with `max_checkpoints` only the latest are kept.
    """

    save_dir: Path = Path("training_state")  # values here are for subclasses that do not call `super().__init__()`
    save_every_n_epochs: int | None = None
    save_every_n_steps: int | None = None
    save_at_end: bool = True
    max_checkpoints: int | None = None

    def __init__(
        self,
        save_dir: str | Path = "training_state",
        save_every_n_epochs: int | None = None,
        save_every_n_steps: int | None = None,
        save_at_end: bool = True,
        max_checkpoints: int | None = None,
    ) -> None:
        for name, value in (
            ("save_every_n_epochs", save_every_n_epochs),
            ("save_every_n_steps", save_every_n_steps),
            ("max_checkpoints", max_checkpoints),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"SaveTrainingStateCallback({name}={value!r}): use 1 or more, or None.")
        self.save_dir = Path(save_dir)
        self.save_every_n_epochs = save_every_n_epochs
        self.save_every_n_steps = save_every_n_steps
        self.save_at_end = save_at_end
        self.max_checkpoints = max_checkpoints

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        check_inside(self.save_dir, None if trainer._overrides("save_training_state") else SAVED, "save_dir")

    def on_train_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        step = trainer._core.progress.step + 1
        if self.save_every_n_steps is not None and step % self.save_every_n_steps == 0:
            trainer._core.after_update(lambda: self.save(trainer, f"step_{step}"))

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        epoch = trainer.run_history.current_epoch
        if self.save_every_n_epochs is not None and epoch % self.save_every_n_epochs == 0:
            self.save(trainer, f"epoch_{epoch}")

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.save_at_end:
            self.save(trainer, "final")

    def save_interrupted_run(self, trainer: Trainer) -> None:
        """Called when SIGTERM or SIGINT ends the run after an update, instead of its end."""
        if self.save_at_end:
            self.save(trainer, "interrupted")

    def save_requested_run(self, trainer: Trainer) -> None:
        """Called after the update in which SIGUSR1 came."""
        self.save(trainer, "requested")

    def save(self, trainer: Trainer, name: str) -> None:
        """Write a state under this name, then remove those that are too many."""
        trainer.save_training_state(self.save_dir / name)
        if self.max_checkpoints is not None and trainer.run_config.is_world_process_zero:
            CheckpointStore(self.save_dir, keep=self.max_checkpoints).prune()

    @property
    def latest(self) -> Path | None:
        """The newest sound state in `save_dir`, to be passed to `train(resume_from=...)`."""
        found = CheckpointStore(self.save_dir, keep=sys.maxsize).newest()
        return None if found is None else found.path
