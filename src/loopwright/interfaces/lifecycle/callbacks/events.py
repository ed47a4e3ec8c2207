"""The events of a run, the errors of callbacks, and the callback that saves."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....callback import hook_names
from ....checkpoint import CheckpointStore
from ....checkpoint.manifest import check_inside
from ....errors import ConfigurationError, LoopwrightError

if TYPE_CHECKING:
    from ....data.open import Stream
    from ..trainer import Trainer


class StopTrainingError(LoopwrightError):
    """Raise it in a callback or a method of the trainer to end the training run; it goes no further
    than that."""


class CallbackNotFoundError(LoopwrightError, TypeError):
    """What was passed as a callback is none."""


class TrainerCallback:
    """Observes a run. Every event comes right after the trainer's method of the same name without
    `on_`."""

    def why_over(self) -> str | None:
        """Why a run that is resumed has nothing left to train, where this callback had ended it."""
        return None

    def on_init_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called at the end of `Trainer.__init__`; the `__init__` of a subclass may still be
        running."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training run begins: loaders, run config and scheduler exist."""

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training epoch begins; not again when a run is resumed inside the epoch."""

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each training batch goes through the model."""

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        """Called when the loss of a training batch is computed, before its backward pass.

        `batch_output` is the dict that `calculate_train_batch_loss` returned; its loss is not
        divided for accumulation. A method that takes it also gets `step`, the number of the batch
        in its epoch, from 0.
        """

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of a training epoch; `train_loss_epoch` is recorded."""

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when an evaluation epoch begins; the model is in eval mode until it ends.

        A method that takes it also gets `is_intermediate`: whether the evaluation is inside a
        training epoch.
        """

    def on_eval_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each evaluation batch goes through the model."""

    def on_eval_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        """Called when the loss of an evaluation batch is computed."""

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of an evaluation epoch; its loss is recorded.

        The name is `eval_loss_epoch` in training, `evaluation_loss` in `evaluate`, and
        `intermediate_eval_loss` with `is_intermediate`, which a method that takes it gets too.
        """

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after each epoch and its evaluation."""

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training run is over, also if it was stopped."""

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when `evaluate` begins."""

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when `evaluate` is over."""

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a `StopTrainingError` ended a training or evaluation run, before the event of
        its end."""

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        """The stream that an epoch is to read instead of this one."""
        return stream

    def state_dict(self) -> dict[str, Any]:
        """What a training state must hold for this callback to go on: tensors, numbers, strings,
        lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


EVENTS = hook_names(TrainerCallback)


SAVED = re.compile(r"(epoch|step)_\d+|final|interrupted|requested")


class SaveTrainingStateCallback(TrainerCallback):
    """Writes training states to directories in `save_dir`, which `train(resume_from=...)` takes.

    They are written every n epochs or training steps, at the end or when a signal ends the run, and
    when SIGUSR1 requests one; with `max_checkpoints` only the latest are kept.
    """

    # values here are for subclasses that do not call `super().__init__()`
    save_dir: Path = Path("training_state")
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
                raise ConfigurationError(
                    f"SaveTrainingStateCallback({name}={value!r}): use 1 or more, or None."
                )
        self.save_dir = Path(save_dir)
        self.save_every_n_epochs = save_every_n_epochs
        self.save_every_n_steps = save_every_n_steps
        self.save_at_end = save_at_end
        self.max_checkpoints = max_checkpoints

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        check_inside(
            self.save_dir, None if trainer._overrides("save_training_state") else SAVED, "save_dir"
        )

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
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
        """Write a state under this name, then remove the oldest beyond `max_checkpoints`."""
        trainer.save_training_state(self.save_dir / name)
        if self.max_checkpoints is not None and trainer.run_config.is_world_process_zero:
            CheckpointStore(self.save_dir, keep=self.max_checkpoints).prune()

    @property
    def latest(self) -> Path | None:
        """The newest sound state in `save_dir`, to be passed to `train(resume_from=...)`."""
        found = CheckpointStore(self.save_dir, keep=sys.maxsize).newest()
        return None if found is None else found.path
