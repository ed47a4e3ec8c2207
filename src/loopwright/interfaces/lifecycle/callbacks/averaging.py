"""An exponential moving average of the model's weights, with an evaluation of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....callbacks.ema import averaged_parameters, move_averages, paired_groups
from ....errors import ConfigurationError
from .events import TrainerCallback
from .handler import CallbackHandler
from .watching import SaveBestModelCallback

if TYPE_CHECKING:
    from ..trainer import Trainer


PREFIX = "ema_model_"


class ModelEma(nn.Module):
    """A copy of a model in eval mode whose weights follow the original's; buffers are taken over as
    they are."""

    module: nn.Module

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ConfigurationError(
                f"ModelEma(decay={decay!r}): use a number from 0 to 1, such as 0.999."
            )
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the average computes."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the averages towards the model's weights by 1 - decay of the distance."""
        groups = paired_groups(averaged_parameters(model), averaged_parameters(self.module))
        move_averages(groups, 1 - self.decay)
        self._copy(self.module.buffers(), model.buffers())

    @torch.no_grad()
    def set(self, model: nn.Module) -> None:
        """Take over the model's weights as they are."""
        self._copy(self.module.parameters(), model.parameters())
        self._copy(self.module.buffers(), model.buffers())

    def _copy(self, own: Iterable[Tensor], other: Iterable[Tensor]) -> None:
        for mine, theirs in zip(own, other, strict=True):
            mine.copy_(theirs)


class ModelEmaCallback(SaveBestModelCallback):
    """Averages the weights after every optimizer update, evaluates the average after each epoch,
    saves the best.

    Its metrics are recorded with `ema_model_` in front of their names. Put it before callbacks that
    log metrics. Its evaluations call only the `callbacks` given here; without evaluation the
    average is saved every epoch.
    """

    watch_metric: str = f"{PREFIX}eval_loss_epoch"
    save_path: str | Path = "ema_model.pt"
    save_optimizer = False
    load_saved_checkpoint = False
    decay: float = 0.99
    evaluate_during_training: bool = True
    ema_model: ModelEma | None = None
    _model_ema: Callable[..., ModelEma] = ModelEma
    _handler: CallbackHandler | None = None
    _num_averaged: int = 0

    def __init__(
        self,
        decay: float = 0.99,
        evaluate_during_training: bool = True,
        save_path: str | Path = "ema_model.pt",
        watch_metric: str = f"{PREFIX}eval_loss_epoch",
        greater_is_better: bool | None = None,
        model_ema: Callable[..., ModelEma] = ModelEma,
        callbacks: Iterable[TrainerCallback | type[TrainerCallback]] = (),
    ) -> None:
        super().__init__(
            save_path,
            watch_metric,
            greater_is_better,
            save_optimizer=False,
            load_saved_checkpoint=False,
        )
        self.decay = decay
        self.evaluate_during_training = evaluate_during_training
        self.ema_model = None
        self._model_ema = model_ema
        self._handler = CallbackHandler(callbacks)
        self._num_averaged = 0

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        super().on_training_run_start(trainer)
        if self.evaluate_during_training and trainer.eval_dataset is None:
            raise ConfigurationError(
                "ModelEmaCallback should evaluate the averaged model, but there is no data: pass "
                "`eval_dataset=`, or evaluate_during_training=False."
            )
        self.ema_model = self._model_ema(
            trainer.get_model(keep_torch_compile=False), decay=self.decay
        )
        self._num_averaged = trainer._core.progress.update

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._follow(trainer)

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._follow(trainer)

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        with self._in_place(trainer):
            if self.evaluate_during_training:
                trainer._run_eval_epoch(trainer._eval_dataloader)
                super().on_training_run_epoch_end(trainer)
            else:
                trainer.save_checkpoint(self.save_path, save_optimizer=False)

    def state_dict(self) -> dict[str, Any]:
        average = None if self.ema_model is None else self.ema_model.module.state_dict()
        return super().state_dict() | {"average": average, "num_averaged": self._num_averaged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_averaged = state["num_averaged"]
        if self.ema_model is not None and state["average"] is not None:
            self.ema_model.module.load_state_dict(state["average"])

    def _follow(self, trainer: Trainer) -> None:
        """Average once for every update: a step that only adds to a window changes no weights."""
        num_updates = trainer._core.progress.update
        if self.ema_model is not None and num_updates > self._num_averaged:
            self._num_averaged = num_updates
            self.ema_model.update(trainer.get_model(keep_torch_compile=False))

    @contextmanager
    def _in_place(self, trainer: Trainer) -> Iterator[None]:
        """The average as the trainer's model, its metrics under their prefix, and only its own
        callbacks listening."""
        assert self.ema_model is not None
        history = trainer.run_history
        before = (trainer.model, trainer.callback_handler, history.metric_name_prefix)
        trainer.model, trainer.callback_handler = (
            self.ema_model.module,
            self._handler or CallbackHandler(()),
        )
        history.set_metric_name_prefix(PREFIX)
        try:
            yield
        finally:
            trainer.model = before[0]
            trainer.callback_handler = before[1]
            history.set_metric_name_prefix(before[2])


class WSDCheckpointCallback(TrainerCallback):
    """Saves before each decay of a `WSDLrScheduler` (a training state to continue from) and after
    it (a checkpoint).

    `initial_checkpoint` is loaded when training starts: a training state from before a decay, or a
    checkpoint from after one; a path that does not exist is an error.
    """

    # values here are for subclasses that do not call `super().__init__()`
    save_dir: Path = Path("checkpoints")
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
                "WSDCheckpointCallback saves when a WSDLrScheduler decays, but the scheduler is "
                f"{type(trainer.scheduler).__name__}: pass "
                "`create_scheduler_fn=WSDLrScheduler.create_scheduler_fn()`."
            )
        self.decay_fraction = trainer.scheduler.decay_phase_ratio
        if self.initial_checkpoint is not None:
            self._load(trainer, self.initial_checkpoint)

    def _load(self, trainer: Trainer, path: Path) -> None:
        """A state from before a decay has that in its name; everything else is a checkpoint."""
        if not path.exists():
            raise ConfigurationError(
                f"initial_checkpoint={str(path)!r} does not exist: pass a saved checkpoint, or "
                "None."
            )
        is_state = path.suffix != ".pt"
        content = (
            trainer.load_training_state(str(path)) if is_state else trainer.load_checkpoint(path)
        )
        self.last_checkpoint_step = content.get("step")
        trainer.print(f"Loaded {path}, saved after {self.last_checkpoint_step} updates")

    def on_train_step_end(self, trainer: Trainer, step: int = 0, **kwargs: Any) -> None:  # type: ignore[override]
        self._save_if_due(trainer)
        # this batch ends an update, after which another one is done
        if trainer._core.run.window.is_last is True:
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
        if done == self.last_checkpoint_step or done not in (
            phase["pre_decay_step"],
            phase["period_end"],
        ):
            return
        self.last_checkpoint_step = done
        if done == phase["pre_decay_step"]:
            name = f"checkpoint_{done}_wsd_pre_decay"
            trainer.save_training_state(
                str(self.save_dir / name), checkpoint_kwargs=self._about(trainer, done, "pre")
            )
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
