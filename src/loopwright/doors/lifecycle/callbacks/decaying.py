"""Checkpoints around the decays of a warm-up, stable, decay schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ConfigurationError
from .events import TrainerCallback

if TYPE_CHECKING:
    from ..trainer import Trainer


class WSDCheckpointCallback(TrainerCallback):
    """Saves before each decay of a `WSDLrScheduler` (a training state, to go on from) and after it (a checkpoint).

    `initial_checkpoint` is loaded when training starts: a training state from before a decay, or a checkpoint from
    after one; a path that does not exist is an error.
    """

    save_dir: Path = Path("checkpoints")  # values here are for subclasses that do not call `super().__init__()`
    save_optimizer: bool = True
    save_scheduler: bool = True
    initial_checkpoint: Path | None = None
    last_checkpoint_step: int | None = None
    decay_fraction: float | None = None

    def __init__(
        self,
        save_dir: str | Path = "checkpoints",
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        initial_checkpoint: str | Path | None = None,
    ) -> None:
        self.save_dir = Path(save_dir)
        self.save_optimizer = save_optimizer
        self.save_scheduler = save_scheduler
        self.initial_checkpoint = None if initial_checkpoint is None else Path(initial_checkpoint)

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        if not hasattr(trainer.scheduler, "get_checkpoint_steps"):
            raise ConfigurationError(
                f"WSDCheckpointCallback saves where a WSDLrScheduler decays, but the scheduler is "
                f"{type(trainer.scheduler).__name__}: pass `create_scheduler_fn=WSDLrScheduler.create_scheduler_fn()`."
            )
        self.decay_fraction = trainer.scheduler.decay_phase_ratio
        if self.initial_checkpoint is not None:
            self._load(trainer, self.initial_checkpoint)

    def _load(self, trainer: Trainer, path: Path) -> None:
        """A state from before a decay has that in its name; everything else is a checkpoint."""
        if not path.exists():
            raise ConfigurationError(
                f"initial_checkpoint={str(path)!r} does not exist: pass one that was saved, or None."
            )
        is_state = path.suffix != ".pt"
        content = trainer.load_training_state(str(path)) if is_state else trainer.load_checkpoint(path)
        self.last_checkpoint_step = content.get("step")
        trainer.print(f"Loaded {path}, saved after {self.last_checkpoint_step} updates")

    def on_train_step_end(self, trainer: Trainer, step: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        self._save_if_due(trainer)
        if trainer._core.window.is_last is True:  # this batch ends an update, after which another one is done
            trainer._core.after_update(lambda: self._save_if_due(trainer))

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._save_if_due(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"last_checkpoint_step": self.last_checkpoint_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_checkpoint_step = state["last_checkpoint_step"]

    def _save_if_due(self, trainer: Trainer) -> None:
        """Save if a decay begins or ends after the updates that are done, once."""
        done = trainer.scheduler.get_current_step() + 1
        phase = trainer.scheduler.get_phase_info(done)
        if done == self.last_checkpoint_step or done not in (phase["pre_decay_step"], phase["period_end"]):
            return
        self.last_checkpoint_step = done
        if done == phase["pre_decay_step"]:
            name = f"checkpoint_{done}_wsd_pre_decay"
            trainer.save_training_state(str(self.save_dir / name), checkpoint_kwargs=self._about(trainer, done, "pre"))
        else:
            name = f"checkpoint_{done}_wsd_post_decay.pt"
            trainer.save_checkpoint(
                self.save_dir / name,
                save_optimizer=self.save_optimizer,
                save_scheduler=self.save_scheduler,
                checkpoint_kwargs=self._about(trainer, done, "post"),
            )
        trainer.print(f"Saved {name}")

    def _about(self, trainer: Trainer, done: int, when: str) -> dict[str, Any]:
        return {
            "step": done,
            "checkpoint_type": f"wsd_{when}_decay",
            "total_steps": trainer.run_config.max_num_train_steps,
            "decay_fraction": self.decay_fraction,
            "timestamp": datetime.now().isoformat(),
        }
