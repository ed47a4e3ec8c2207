"""Checkpoints: what a run directory is filled with, and those that a user writes, on several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callback import Callback as CoreCallback
from ...callbacks.checkpoints import BestModel, Checkpoints

if TYPE_CHECKING:
    from .config import DreamTrainerConfig
    from .engine import Engine

Write = Callable[[Any], Any]


class OwnFiles:
    """Runs somebody's `save_checkpoint` so that no two processes write one file.

    With copies of the models the first process alone runs it; the others stand by for a whole checkpoint that it may
    ask for on the way (`super().save_checkpoint(path)`), which takes all of them. Of a sharded model every process has
    a part, so each runs it, with a path of its own.
    """

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self._is_asking = False

    def save(self, write: Write, path: str | Path) -> Any:
        runtime = self.trainer.runtime
        if runtime.world == 1:
            return write(path)
        if runtime.forwards_together:
            return write(self._part(path))
        if runtime.is_main:
            self._is_asking = True
            try:
                return write(path)
            finally:
                self._is_asking = False
                runtime.broadcast_object(None)
        while (asked := runtime.broadcast_object(None)) is not None:
            self.trainer.save_soon(asked)
        return None

    def load(self, read: Write, path: str | Path) -> Any:
        is_divided = self.trainer.runtime.forwards_together and not self._whole(path).is_dir()
        return read(self._part(path) if is_divided else path)

    def whole_path(self, path: str | Path) -> Path:
        """Where a whole checkpoint goes that was asked for with this path, known to all processes."""
        if self._is_asking:
            self.trainer.runtime.broadcast_object(Path(path))
        return self._whole(path)

    def _part(self, path: str | Path) -> Path:
        return Path(path).with_name(f"{Path(path).name}.rank{self.trainer.runtime.rank}")

    def _whole(self, path: str | Path) -> Path:
        return Path(path).with_name(Path(path).name.removesuffix(f".rank{self.trainer.runtime.rank}"))


def default_callbacks(config: DreamTrainerConfig, given: list[CoreCallback]) -> list[CoreCallback]:
    """What a run directory is filled with, as the config says, unless the user brought such callbacks."""
    if config.run_dir is None:
        return []
    saving = Checkpoints(
        config.checkpoint_every_n_steps,
        config.checkpoint_every_n_epochs,
        config.checkpoint_every_n_minutes,
        keep=config.keep_checkpoints,
    )
    is_wanted = config.monitor is not None
    metric = config.monitor or "val_loss"
    keeping = BestModel(metric, config.monitor_mode, keep=config.keep_best, required=is_wanted)
    keeping.watched.argument = "monitor_mode"
    return [new for new in (keeping, saving) if not any(isinstance(other, type(new)) for other in given)]
