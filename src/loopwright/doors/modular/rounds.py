"""What a modular run does after the callbacks of an update or epoch had their turn, and before it is saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...callback import Callback
from ...checkpoint.destination import check_inside
from ...errors import ConfigurationError
from .own_steps import nothing_trained

if TYPE_CHECKING:
    from ...trainer import Trainer
    from .engine import Engine


SAVED = re.compile(r"epoch_\d+")


class Rounds(Callback):
    """Validations, checkpoints that were asked for inside an update, and those of `save_dir`."""

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
            with engine.validation.undisturbed():
                engine.door.validation_loop()
        waiting, engine.waiting = engine.waiting, []
        for action in waiting:
            action()

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        engine = cast("Engine", trainer)
        if engine.optimization.calls == engine.calls_before:
            raise nothing_trained(engine)
        is_ours = engine.config.val_every_n_steps is None and not engine.overrides("training_loop")
        if is_ours and _is_time(engine):
            engine.door.validation_loop()

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        engine = cast("Engine", trainer)
        folder, epoch = engine.config.save_dir, engine.progress.epoch
        if epoch == 1 and engine.overrides("compute_metrics") and not engine.has_computed:
            engine.say(
                "compute_metrics was not called: call it in a step, or return 'outputs' and 'targets' from the step, "
                "of which the trainer then computes the metrics."
            )
        if folder is not None and epoch % engine.config.save_every_n_epochs == 0:
            Path(folder).mkdir(parents=True, exist_ok=True)
            engine.door.save_checkpoint(Path(folder) / f"epoch_{epoch}")

    def state_dict(self) -> dict[str, Any]:
        return {"validated_at": self._validated_at if self._trainer is None else self._trainer.validation.done_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._validated_at = state["validated_at"]
        if self._trainer is not None:
            self._trainer.validation.done_at = self._validated_at


def _is_time(engine: Engine) -> bool:
    answer = engine.door.should_validate()
    if answer is None:
        raise ConfigurationError("should_validate returned None: return True or False.")
    return bool(answer)
