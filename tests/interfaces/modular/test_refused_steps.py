"""Steps and loops replaced whole that would train wrongly: each is refused, with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ...loops import build_net
from ...mistakes import raises
from . import idioms
from .idioms import Idiom, fit
from .programs import Config, MyTrainer

# Bodies of `training_step`


def second_only(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(self.loss(batch) / 2)
    if batch_idx % 2:
        self.optimizer.step()


def both_steps(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(self.loss(batch))
    self.step(self.optimizer)
    self.optimizer.step()


def backward_alone(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(self.loss(batch))


def zeroing(self: Any, batch: Any, batch_idx: int) -> Any:
    self.optimizer.zero_grad()
    self.backward(self.loss(batch))


def zeroing_in_place(self: Any, batch: Any, batch_idx: int) -> Any:
    self.optimizer.zero_grad(set_to_none=False)
    self.backward(self.loss(batch))


def zeroing_late(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(self.loss(batch))
    self.model.zero_grad()


def raw_backward(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.loss(batch)
    loss.backward(retain_graph=True)
    return {"loss": loss}


def raw_later(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.loss(batch)
    if batch_idx > 1:
        loss.backward(retain_graph=True)
    return {"loss": loss}


def both_backwards(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.loss(batch)
    loss.backward() if batch_idx == 0 else self.backward(loss)
    return {"loss": loss}


def detached(self: Any, batch: Any, batch_idx: int) -> Any:
    return {"loss": self.loss(batch).detach()}


def other_name(self: Any, batch: Any, batch_idx: int) -> Any:
    return {"total": self.loss(batch)}


def sometimes_returning(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.loss(batch)
    if batch_idx > 1:
        self.backward(loss)
    return loss


def of(step: Any, **methods: Any) -> type[Idiom]:
    return type("Mine", (Idiom,), {"training_step": step, **methods})


# Loops, validations and schedulers


def stepping_again(self: Any) -> None:
    for batch_idx, batch in enumerate(self.train_loader):
        self.training_step(batch, batch_idx)
        self.optimizer.step()


def other_data(self: Any) -> None:
    for batch in self.configure_dataloaders()[0]:
        self.backward(self.loss(batch))


class InValidation(MyTrainer):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.enable_grad():
            self.criterion(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()


class SchedulerTwice(idioms.Scheduled):
    training_step = backward_alone

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.scheduler.step()


class EpochSchedulerTwice(MyTrainer):
    def configure_schedulers(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def on_epoch_end(self, metrics: Any) -> None:
        self.scheduler.step()


WINDOW: dict[str, Any] = {"gradient_accumulation_steps": 2}
FP16: dict[str, Any] = {"precision": "fp16"}
REFUSED: dict[str, tuple[type[MyTrainer], dict[str, Any], str]] = {
    "optimizer.step() after every second self.backward": (of(second_only), {}, "two-ways-to-step"),
    "self.step(optimizer), then optimizer.step()": (of(both_steps), {}, "two-ways-to-step"),
    "training_loop steps again what training_step has": (
        of(backward_alone, training_loop=stepping_again), {}, "two-ways-to-step"),
    "optimizer.step() in a window": (idioms.OwnStep, WINDOW, "step-in-window"),
    "loss.backward(); optimizer.step() in fp16": (idioms.OwnBackward, FP16, "step-without-scaling"),
    "clip_grad_norm_ in a window": (idioms.ClippingAlone, WINDOW, "gradients-changed"),
    "clip_grad_norm_ in fp16": (idioms.ClippingAlone, FP16, "gradients-changed"),
    "zero_grad() before each backward of a window": (of(zeroing), WINDOW, "gradients-gone"),
    "zero_grad(set_to_none=False) in a window": (of(zeroing_in_place), WINDOW, "gradients-changed"),
    "zero_grad() after self.backward(loss)": (of(zeroing_late), {}, "gradients-gone"),
    "loss.backward(), and the loss returned": (of(raw_backward), {}, "modular-trained-nothing"),
    "loss.backward() in some, returned in others": (of(raw_later), {}, "two-ways-to-step"),
    "loss.backward() in some, self.backward in others": (of(both_backwards), {}, "gradients-mixed"),
    "a detached loss returned": (of(detached), {}, "modular-trained-nothing"),
    "a loss returned under another name": (of(other_name), {}, "loss-not-trained"),
    "returned by some, backward in others": (of(sometimes_returning), {}, "two-ways-to-step"),
    "a training_loop without batches": (
        of(backward_alone, training_loop=lambda self: None), {}, "loop-trained-nothing"),
    "backward in a loop over another loader": (
        of(backward_alone, training_loop=other_data), {}, "backward-outside-batch"),
    "optimizer.step() in validation_step": (InValidation, {}, "update-in-evaluation"),
    "a scheduler stepped in a callback, too": (SchedulerTwice, {}, "scheduler-stepped-twice"),
    "a scheduler of epochs stepped in on_epoch_end, too": (
        EpochSchedulerTwice, {}, "scheduler-stepped-twice"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "code"), REFUSED.values(), ids=list(REFUSED))
def test_what_would_train_wrongly_is_refused(
    kind: type[MyTrainer], options: dict[str, Any], code: str
) -> None:
    trainer = kind(Config(n_epochs=2, **options), build_net())
    with raises(code):
        trainer.fit()


def test_accumulation_by_hand_is_refused_where_a_run_is_to_be_resumed(tmp_path: Path) -> None:
    with raises("gradients-of-earlier-steps", "gradient_accumulation_steps"):
        fit(idioms.OwnAccumulation, run_dir=tmp_path)
