"""An exponential moving average of the model's weights, with an evaluation of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....errors import ConfigurationError
from .events import CallbackHandler, TrainerCallback
from .watching import SaveBestModelCallback

if TYPE_CHECKING:
    from ..trainer import Trainer

PREFIX = "ema_model_"


class ModelEma(nn.Module):
    """A copy of a model in eval mode whose weights follow the original's; buffers are taken over as they are."""

    module: nn.Module

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ConfigurationError(f"ModelEma(decay={decay!r}): use a number from 0 to 1, such as 0.999.")
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the average computes."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the averages towards the model's weights by 1 - decay of the way."""
        own, other = _averaged(self.module), _averaged(model)
        if own:
            torch._foreach_lerp_(own, other, 1 - self.decay)
        self._copy(self.module.buffers(), model.buffers())

    @torch.no_grad()
    def set(self, model: nn.Module) -> None:
        """Take over the model's weights as they are."""
        self._copy(self.module.parameters(), model.parameters())
        self._copy(self.module.buffers(), model.buffers())

    def _copy(self, own: Iterable[Tensor], other: Iterable[Tensor]) -> None:
        for mine, theirs in zip(own, other, strict=True):
            mine.copy_(theirs)


def _averaged(model: nn.Module) -> list[Tensor]:
    return [p.detach() for p in model.parameters() if p.is_floating_point() or p.is_complex()]


class ModelEmaCallback(SaveBestModelCallback):
    """Averages the weights after every optimizer update, evaluates the average after each epoch, saves the best.

    Its metrics are recorded with `ema_model_` in front of their names. Put it before callbacks that log metrics.
    Only the `callbacks` given here hear of its evaluations; without evaluation the average is saved every epoch.
    """

    watch_metric: str = f"{PREFIX}eval_loss_epoch"
    save_path: str | Path = "ema_model.pt"
    save_optimizer = load_saved_checkpoint = False
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
        super().__init__(save_path, watch_metric, greater_is_better, save_optimizer=False, load_saved_checkpoint=False)
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
                "ModelEmaCallback is to evaluate the average, but there is no data for it: pass `eval_dataset=`, or "
                "evaluate_during_training=False."
            )
        self.ema_model = self._model_ema(trainer.get_model(keep_torch_compile=False), decay=self.decay)
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
        """The average as the trainer's model, its metrics under their prefix, and only its own callbacks listening."""
        assert self.ema_model is not None
        history = trainer.run_history
        before = (trainer.model, trainer.callback_handler, history.metric_name_prefix)
        trainer.model, trainer.callback_handler = self.ema_model.module, self._handler or CallbackHandler(())
        history.set_metric_name_prefix(PREFIX)
        try:
            yield
        finally:
            trainer.model, trainer.callback_handler = before[0], before[1]
            history.set_metric_name_prefix(before[2])
