"""Checkpoints: the callbacks that fill a run directory, and the user's own `save_checkpoint` on
several processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...callback import Callback
from ...callback import Callback as CoreCallback
from ...callbacks.best import BestModel
from ...callbacks.checkpoints import Checkpoints
from ...checkpoint.manifest import check_inside
from ...errors import ConfigurationError
from .own_steps import nothing_trained

if TYPE_CHECKING:
    from ...trainer import Trainer
    from .config import DreamTrainerConfig
    from .engine import Engine


Write = Callable[[Any], Any]


class OwnFiles:
    """Runs the user's `save_checkpoint` so that no two processes write one file.

    With replicated models only the first rank runs it. If it calls `super().save_checkpoint(path)`,
    which writes a full checkpoint and needs all ranks, it broadcasts the path; the other ranks wait
    for such requests. Of a sharded model every rank has a part, so each rank runs it, with a path
    of its own.
    """

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self._broadcasts_requests = False

    def save(self, write: Write, path: str | Path) -> Any:
        runtime = self.trainer.runtime
        if runtime.world == 1:
            return write(path)
        if runtime.forwards_together:
            return write(self._part(path))
        if runtime.is_main:
            self._broadcasts_requests = True
            try:
                return write(path)
            finally:
                self._broadcasts_requests = False
                runtime.broadcast_object(None)
        while (requested := runtime.broadcast_object(None)) is not None:
            self.trainer.save_soon(requested)
        return None

    def load(self, read: Write, path: str | Path) -> Any:
        is_divided = self.trainer.runtime.forwards_together and not self._full(path).is_dir()
        return read(self._part(path) if is_divided else path)

    def full_path(self, path: str | Path) -> Path:
        """Where a full checkpoint requested with this path goes; all ranks get to know the path."""
        if self._broadcasts_requests:
            self.trainer.runtime.broadcast_object(Path(path))
        return self._full(path)

    def _part(self, path: str | Path) -> Path:
        return Path(path).with_name(f"{Path(path).name}.rank{self.trainer.runtime.rank}")

    def _full(self, path: str | Path) -> Path:
        return Path(path).with_name(
            Path(path).name.removesuffix(f".rank{self.trainer.runtime.rank}")
        )


def default_callbacks(config: DreamTrainerConfig, given: list[CoreCallback]) -> list[CoreCallback]:
    """What a run directory is filled with, as the config says, unless the user brought such
    callbacks."""
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
    best = BestModel(metric, config.monitor_mode, keep=config.keep_best, required=is_wanted)
    best.watched.argument = "monitor_mode"
    return [
        new for new in (best, saving) if not any(isinstance(other, type(new)) for other in given)
    ]


SAVED = re.compile(r"epoch_\d+")


class Rounds(Callback):
    """Validations, the checkpoints requested inside an update, and the checkpoints of `save_dir`.

    Checkpoints hold its state under the class name, so that the name is part of their format.
    """

    def __init__(self) -> None:
        self._trainer: Engine | None = None
        self._validated_at = 0

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = cast("Engine", trainer)
        self._trainer.validation.done_at = self._validated_at
        if self._trainer.config.save_dir is not None:
            names = None if self._trainer.overrides("save_checkpoint") else SAVED
            check_inside(self._trainer.config.save_dir, names, "save_dir")

    def on_update_end(self, trainer: Trainer) -> None:
        engine = cast("Engine", trainer)
        every = engine.config.val_every_n_steps
        is_due = every is not None and engine.progress.update % every == 0
        if is_due and not engine.overrides("training_loop") and _is_time(engine):
            with engine.validation.deferring_signals():
                engine.interface.validation_loop()
        waiting = engine.waiting
        engine.waiting = []
        for action in waiting:
            action()

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        engine = cast("Engine", trainer)
        if engine.run.updates.calls == engine.calls_before:
            raise nothing_trained(engine)
        is_ours = engine.config.val_every_n_steps is None and not engine.overrides("training_loop")
        if is_ours and _is_time(engine):
            engine.interface.validation_loop()

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        engine = cast("Engine", trainer)
        folder = engine.config.save_dir
        epoch = engine.progress.epoch
        if epoch == 1 and engine.overrides("compute_metrics") and not engine.has_computed:
            engine.run.say(
                "compute_metrics was not called: call it in a step, or return 'outputs' and "
                "'targets' from the step, from which the trainer then computes the metrics."
            )
        if folder is not None and epoch % engine.config.save_every_n_epochs == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            engine.interface.save_checkpoint(Path(folder) / f"epoch_{epoch}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "validated_at": self._validated_at
            if self._trainer is None
            else self._trainer.validation.done_at
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._validated_at = state["validated_at"]
        if self._trainer is not None:
            self._trainer.validation.done_at = self._validated_at


def _is_time(engine: Engine) -> bool:
    answer = engine.interface.should_validate()
    if answer is None:
        raise ConfigurationError("should_validate returned None: return True or False.")
    return bool(answer)
