"""Stages that a user replaces whole: what the published system does in each, in our words, and
plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

from loopwright.interfaces.lifecycle import StopTrainingError, Trainer

Body = Callable[..., Any]
make_scheduler = partial(LinearLR, start_factor=0.1, total_iters=9)


def replaced(**methods: Body) -> type[Trainer]:
    return type("Replaced", (Trainer,), methods)


def accelerator_backward(self: Any, loss: Tensor) -> None:
    self._accelerator.backward(loss)


def torch_backward(self: Any, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def torch_step(self: Any) -> None:
    self.optimizer.step()


def torch_zero(self: Any) -> None:
    self.optimizer.zero_grad()


def torch_schedule(self: Any) -> None:
    self.scheduler.step()


def accelerator_clip(self: Any) -> None:
    self._accelerator.clip_grad_value_(
        self.model.parameters(), clip_value=self.run_config.gradient_clip_value
    )


def torch_clip(self: Any) -> None:
    nn.utils.clip_grad_value_(self.model.parameters(), self.run_config.gradient_clip_value)


def own_loss(self: Any, batch: Any) -> dict[str, Any]:
    outputs = self.model(batch[0])
    loss = nn.functional.cross_entropy(outputs, batch[1])
    return {"loss": loss, "model_outputs": outputs, "batch_size": batch[1].size(0)}


def published_train_epoch(self: Any, train_dl: Any) -> bool:
    """Every part of the published method, with its own count of updates and its own end at the
    limit."""
    self.train_epoch_start()
    self._loss_tracker.reset()
    self.callback_handler.call_event("on_train_epoch_start", self)
    config, is_over = self.run_config, False
    done = (self.run_history.current_epoch - 1) * config.num_update_steps_per_epoch
    for step, batch in enumerate(train_dl):
        self.callback_handler.call_event("on_train_step_start", self)
        is_update = (step + 1) % config.gradient_accumulation_steps == 0 or step + 1 == len(
            train_dl
        )
        if is_update:
            self._perform_forward_and_backward_passes(batch, step)
        else:
            with self._accelerator.no_sync(self.model):
                self._perform_forward_and_backward_passes(batch, step)
        if config.gradient_clip_value is not None and is_update:
            self._clip_gradients()
        if is_update:
            self.optimizer_step()
            if self.scheduler is not None and not self._accelerator.optimizer_step_was_skipped:
                self.scheduler_step()
            self.optimizer_zero_grad()
            done += 1
            if config.max_num_train_steps is not None and done >= config.max_num_train_steps:
                is_over = True
                break
    self.train_epoch_end()
    self._add_epoch_loss_to_run_history("train_loss_epoch")
    self.callback_handler.call_event("on_train_epoch_end", self)
    return is_over


def torch_train_epoch(self: Any, train_dl: Any) -> None:
    """A loop as one writes it in plain torch, with the shares of a big batch."""
    self.model.train()
    width = self.run_config.gradient_accumulation_steps
    window: list[Any] = []
    for number, batch in enumerate(train_dl, start=1):
        window.append(batch)
        if len(window) < width and number < len(train_dl):
            continue
        total = sum(len(targets) for _, targets in window)
        for inputs, targets in window:
            loss = self.loss_func(self.model(inputs), targets)
            (loss if len(window) == 1 else loss / (total / len(targets))).backward()
        if self.run_config.gradient_clip_value is not None:
            nn.utils.clip_grad_value_(self.model.parameters(), self.run_config.gradient_clip_value)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        window = []


def published_run(self: Any) -> None:
    self.training_run_start()
    self.callback_handler.call_event("on_training_run_start", self)
    for _ in range(self.run_config.num_epochs):
        try:
            is_over = self._run_train_epoch(self._train_dataloader)
            if self.eval_dataset is not None:
                self._run_eval_epoch(self._eval_dataloader)
            self.training_run_epoch_end()
            self.callback_handler.call_event("on_training_run_epoch_end", self)
            self.run_history._increment_epoch()
        except StopTrainingError as error:
            self.print(error)
            self.callback_handler.call_event("on_stop_training_error", self)
            break
        if is_over:
            break
    self.training_run_end()
    self.callback_handler.call_event("on_training_run_end", self)


def published_eval_epoch(
    self: Any, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False
) -> None:
    self.eval_epoch_start()
    self._loss_tracker.reset()
    self.callback_handler.call_event("on_eval_epoch_start", self, is_intermediate=is_intermediate)
    with self._accelerator.join_uneven_inputs([self.model], even_batches=False), torch.no_grad():
        for batch in valid_dl:
            self.callback_handler.call_event("on_eval_step_start", self)
            output = self.calculate_eval_batch_loss(batch)
            self._update_loss_tracker(output["loss"], output["batch_size"])
            self.callback_handler.call_event(
                "on_eval_step_end", self, batch_output=output, batch=batch
            )
    self.eval_epoch_end()
    self._add_epoch_loss_to_run_history("eval_loss_epoch" if is_training else "evaluation_loss")
    self.callback_handler.call_event("on_eval_epoch_end", self, is_intermediate=is_intermediate)


def torch_eval_epoch(self: Any, valid_dl: Any, is_training: bool = True) -> None:
    self.model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in valid_dl:
            total += self.loss_func(self.model(inputs), targets).item() * len(targets)
            count += len(targets)
    self.run_history.update_metric(
        "eval_loss_epoch" if is_training else "evaluation_loss", total / count
    )


STAGES: dict[str, dict[str, Body]] = {
    "accelerator": {"backward_step": accelerator_backward, "_clip_gradients": accelerator_clip},
    "backward": {"backward_step": torch_backward},
    "step": {"optimizer_step": torch_step},
    "zero": {"optimizer_zero_grad": torch_zero},
    "schedule": {"scheduler_step": torch_schedule},
    "clip": {"_clip_gradients": torch_clip},
    "loss": {"calculate_train_batch_loss": own_loss},
    "all": {
        "calculate_train_batch_loss": own_loss,
        "backward_step": torch_backward,
        "_clip_gradients": torch_clip,
        "optimizer_step": torch_step,
        "scheduler_step": torch_schedule,
        "optimizer_zero_grad": torch_zero,
    },
    "published epoch": {"_run_train_epoch": published_train_epoch},
    "published run": {"_run_training": published_run},
    "published epoch and run": {
        "_run_train_epoch": published_train_epoch,
        "_run_training": published_run,
    },
    "plain epoch and published run": {
        "_run_train_epoch": torch_train_epoch,
        "_run_training": published_run,
    },
    "plain epoch": {"_run_train_epoch": torch_train_epoch},
    "epoch of plain stages": {
        "_run_train_epoch": published_train_epoch,
        "backward_step": torch_backward,
        "optimizer_step": torch_step,
        "_clip_gradients": torch_clip,
    },
}


def zero_backward_step(self: Any, loss: Tensor) -> None:
    self.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    self.optimizer.step()
